# SPDX-License-Identifier: Apache-2.0
"""Failing captures and replays of prefill: the primary error, what is released, the next replay."""

from __future__ import annotations

import pytest

from llm_runtime.prefill.sampling_params import SamplingParams
from llm_runtime.tensor_resources import raise_cleanup_failures
from support.prefill_faults import each_failing_once
from support.prefill_model import EchoLane, check_result, make_call

GREEDY = SamplingParams(0.0, 1, 1.0)
STOCHASTIC = SamplingParams(1.0, 8, 0.9)

TRACED = {
    "single": ([80], 0, None),
    "wave": ([80] * 2, 0, None),
    "wave-topk": ([80] * 3, 0, STOCHASTIC),
    "chunk": ([160], 32, None),
    "chunk-topk": ([160], 32, STOCHASTIC),
    "chunks": ([2200], 0, None),
    "topk": ([80], 0, STOCHASTIC),
    "argmax": ([80], 0, GREEDY),
    "row by row": ([80] * 3, 0, None),
}


@pytest.fixture
def lane_of(model):
    """The lane that a case runs on."""
    return lambda case: EchoLane(model, batched_prefill_batched_extract=case != "row by row")


@pytest.mark.parametrize("case", sorted(TRACED))
def test_every_device_call_of_a_replay_may_fail_once(lane_of, case):
    lane = lane_of(case)
    lengths, start, params = TRACED[case]
    traces = lane.trace(make_call(lane, lengths, start=start, params=params))
    call = make_call(lane, [length - 1 for length in lengths], start=start, params=params, shift=1)
    other = make_call(lane, [length - 2 for length in lengths], start=start, params=params, shift=2)
    check_result(call, lane.replay(traces, call))

    def check():
        # Another position in between, so that what a failed refresh left must be copied again.
        for item in (call, other):
            check_result(item, lane.replay(traces, item))

    check()
    each_failing_once(lane, lambda: lane.replay(traces, call), check)


@pytest.mark.parametrize("case", sorted(TRACED))
def test_every_device_call_of_a_plan_may_fail_once(lane_of, case):
    lane = lane_of(case)
    lengths, start, params = TRACED[case]
    call = make_call(lane, lengths, start=start, params=params)
    check_result(call, lane.eager(call))
    (prepared,) = lane.runtime.prepare(**call)
    plan = lane.runtime.capture_plan(prepared)
    persistent, workspace = plan.prepare_inputs(), plan.prepare_workspace()
    steps = [plan.prepare_inputs, plan.prepare_workspace]
    if plan.prime_workspace is not None:
        steps.append(lambda: plan.prime_workspace(persistent, workspace))
    for step in steps:

        def run(step=step):
            failures = lane.runtime._release_transient(step())
            if failures:
                raise_cleanup_failures(failures)

        run()
        each_failing_once(lane, run, lambda: check_result(call, lane.eager(call)))
