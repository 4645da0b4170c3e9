# SPDX-License-Identifier: Apache-2.0
"""When capturing begins: both operations complete, once, and only when nobody defers it."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from llm_runtime.prefill.sampling_helpers import SamplingParams
from llm_runtime.warmup import WarmupCoordinator


@pytest.mark.covers("WRM-34", "T04")
@pytest.mark.parametrize("order", ["decode first", "prefill first"])
def test_sampling_buffers_come_first_and_captures_last(new_lane, order):
    lane = new_lane(lengths=(128,), raw=8)
    steps = [lane.warm_decode, lane.warm_prefill]
    for step in steps if order == "decode first" else reversed(steps):
        step(trace=True, sampling=True)
    compiles = [index for index, entry in enumerate(lane.log) if len(entry) == 3]
    assert lane.log.index(("buffers",)) < compiles[0]
    assert lane.log.index(("capture",)) > compiles[-1]
    assert lane.captures() == 1
    assert lane.coordinator.trace_activated
    with pytest.raises(RuntimeError, match="after trace activation"):
        lane.eager.compile_decode(
            tokens=np.ones(4, np.int64),
            start_pos=np.zeros(4, np.int64),
            page_table=np.zeros((4, 1), np.int32),
            sampling_params=SamplingParams(temperature=[1.0] * 4, top_k=[4] * 4, top_p=[1.0] * 4),
        )


@pytest.mark.covers("WRM-37")
def test_prefill_that_stays_eager_does_not_hold_decode_back(new_lane):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    lane.warm_prefill(trace=False)
    lane.warm_decode(trace=True)
    assert lane.captures() == 1
    assert lane.coordinator.already_warmed_up_prefill
    assert lane.traces.replay_count == 0


@pytest.mark.covers("WRM-38")
def test_an_eager_round_before_the_traced_round(new_lane):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    captures = []
    for step, trace in ((lane.warm_prefill, False), (lane.warm_decode, False), (lane.warm_prefill, True)):
        step(trace=trace)
        captures.append(lane.captures())
    lane.warm_decode(trace=True)
    assert (captures, lane.captures()) == ([0, 0, 0], 1)
    assert lane.coordinator.already_warmed_up_prefill


@pytest.mark.covers("WRM-42", "WRM-40")
@pytest.mark.parametrize("order", list(permutations(("warm_prefill", "warm_decode"))))
def test_the_barrier_waits_for_both_operations_in_any_order(new_lane, order):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    captures = []
    for name in (*order, *order):
        getattr(lane, name)(trace=True)
        captures.append(lane.captures())
    assert captures == [0, 1, 1, 1]
    assert lane.coordinator.coverage_manifest is not None


def test_an_incomplete_eager_prefill_holds_the_capture_back(new_lane, mesh):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    mesh.faults.fail("embedding", at=4)
    with pytest.raises(RuntimeError, match="injected fault"):
        lane.warm_prefill(trace=False)
    mesh.faults.clear()
    lane.warm_decode(trace=True)
    assert (lane.captures(), lane.coordinator.already_warmed_up_prefill) == (0, False)
    lane.warm_prefill(trace=False)
    assert (lane.captures(), lane.coordinator.already_warmed_up_prefill) == (1, True)


def test_eager_then_traced_prefill_then_eager_decode_captures_prefill_only(new_lane):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    lane.warm_prefill(trace=False)
    lane.warm_prefill(trace=True)
    lane.warm_decode(trace=False)
    assert lane.captures() == 1
    with pytest.raises(RuntimeError, match="active"):
        lane.warm_decode(trace=True)


@pytest.mark.covers("WRM-39")
def test_a_deferred_capture_waits_for_its_activation(new_lane):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    coordinator = lane.coordinator
    with coordinator.defer_capture():
        lane.warm_prefill(trace=True)
        assert coordinator.capture_pending is False
        lane.warm_decode(trace=True)
        assert (coordinator.capture_pending, coordinator.trace_activated, lane.captures()) == (True, False, 0)
        assert coordinator.coverage_manifest is None
        coordinator.activate_pending_capture()
        assert (lane.captures(), coordinator.trace_activated) == (1, True)
    assert coordinator.capture_pending is False
    assert coordinator.coverage_manifest is not None


def test_an_abandoned_deferral_leaves_the_capture_to_the_next_call(new_lane):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    coordinator = lane.coordinator
    with coordinator.defer_capture():
        lane.warm_prefill(trace=True)
        lane.warm_decode(trace=True)
        with pytest.raises(RuntimeError, match="already deferred"), coordinator.defer_capture():
            pass
    assert (coordinator.capture_pending, lane.captures()) == (False, 0)
    with pytest.raises(RuntimeError, match="pending"):
        coordinator.activate_pending_capture()
    lane.warm_decode(trace=True)
    assert lane.captures() == 1


def test_a_failed_capture_is_tried_again(new_lane, mesh):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    lane.warm_prefill(trace=True)
    mesh.faults.fail("begin_trace_capture")
    with pytest.raises(RuntimeError, match="begin_trace_capture"):
        lane.warm_decode(trace=True)
    assert (lane.coordinator.trace_activated, lane.coordinator.coverage_manifest) == (False, None)
    compiled = len(lane.requests("decode"))
    lane.warm_decode(trace=True)
    assert (lane.coordinator.trace_activated, lane.captures()) == (True, 2)
    assert len(lane.requests("decode")) == compiled


def test_progress_counts_missing_cases_and_announces_the_capture(new_lane):
    lane = new_lane(sampling=False, lengths=(128,), raw=8)
    seen = []
    lane.coordinator.progress = lambda done, total, case: seen.append((done, total, case and case.operation))
    lane.warm_prefill(trace=True)
    prefill = len(lane.coordinator.config.eager_plan.prefill)
    assert seen == [(index, prefill, "prefill") for index in range(1, prefill + 1)]
    seen.clear()
    lane.warm_decode(trace=True)
    assert seen[0] == (1, 1, "decode")
    assert seen[1:] == [(prefill + 1, prefill + 1, None)]


def test_a_coordinator_without_traces_never_captures(new_lane):
    lane = new_lane(mode="none", lengths=(128,), raw=8, sampling=False)
    assert isinstance(lane.coordinator, WarmupCoordinator)
    assert lane.coordinator.trace_compiler is None
    assert lane.coordinator.eager is lane.coordinator.execution is lane.eager
