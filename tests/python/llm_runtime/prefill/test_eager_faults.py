# SPDX-License-Identifier: Apache-2.0
"""Failing eager prefills: the primary error, what is released, what a failed release blocks."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.prefill.sampling_params import SamplingParams
from support.prefill_faults import each_failing_once
from support.prefill_model import EchoLane, check_result, expected_logits, names, watch

GREEDY = SamplingParams(0.0, 1, 1.0)
STOCHASTIC = SamplingParams(1.0, 8, 0.9)


def prepare_one(lane, lengths, params=None, **options):
    (prepared,) = lane.runtime.prepare(**lane.prompt(lengths), sampling_params=params, **options)
    return prepared


CALLS = {
    "logits": ([80], None, None),
    "cached": ([160], 32, None),
    "chunked": ([2049], None, None),
    "wave": ([80, 90], None, None),
    "topk": ([80], None, STOCHASTIC),
    "argmax": ([700], None, GREEDY),
    "wave-topk": ([80, 90], None, SamplingParams([1.0, 1.0], 8, 0.9)),
    "cached-topk": ([160], 32, STOCHASTIC),
}


def build_call(lane, case):
    lengths, start, params = CALLS[case]
    call = {**lane.prompt(lengths), "sampling_params": params}
    if start is not None:
        call["start_pos"] = np.array([start])
    return call


@pytest.mark.covers("SEQ-08", "SEQ-09", "SEQ-10", "SEQ-11", "SEQ-12", "SEQ-16", "R04")
@pytest.mark.parametrize("case", sorted(CALLS))
def test_every_device_call_may_fail_once(lane, case):
    call = build_call(lane, case)
    check_result(call, lane.eager(call))
    each_failing_once(lane, lambda: lane.eager(call), lambda: check_result(call, lane.eager(call)))


def test_every_device_call_of_a_wave_extracted_row_by_row_may_fail_once(model):
    lane = EchoLane(model, batched_prefill_batched_extract=False)
    call = build_call(lane, "wave")
    check_result(call, lane.eager(call))
    each_failing_once(lane, lambda: lane.eager(call), lambda: check_result(call, lane.eager(call)))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_cleaned_up_like_an_error(lane, kind):
    prepared = prepare_one(lane, [4097])
    alive = names(lane.mesh)
    error = kind()
    lane.mesh.faults.fail("add", at=2, error=error)
    with pytest.raises(kind) as caught:
        lane.runtime.invoke(prepared)
    assert caught.value is error
    assert names(lane.mesh) == alive


@pytest.mark.covers("SEQ-13")
def test_failed_cleanup_is_attached_and_blocks_until_retried(lane):
    prepared = prepare_one(lane, [80])
    alive = names(lane.mesh)
    primary, secondary = RuntimeError("body"), RuntimeError("free")

    def broken(*_args, **_options):
        lane.mesh.faults.fail("deallocate", at=1, error=secondary)
        raise primary

    body, lane.model.prefill_forward = lane.model.prefill_forward, broken
    embedded = []
    embed, lane.model.embed_prefill = lane.model.embed_prefill, lambda tokens: embedded.append(embed(tokens))
    with pytest.raises(RuntimeError) as caught:
        lane.runtime.invoke(prepared)
    assert caught.value is primary
    assert primary.cleanup_failures == (secondary,)
    assert lane.runtime.transient_orphan_count == 1
    for blocked in (lambda: lane.runtime.invoke(prepared), lambda: prepare_one(lane, [80])):
        with pytest.raises(RuntimeError, match="cleanup"):
            blocked()
    with pytest.raises(RuntimeError, match="cleanup"):
        lane.runtime.capture_plan(prepared)
    lane.runtime.cleanup()
    assert lane.runtime.transient_orphan_count == 0
    embedded.clear()
    assert names(lane.mesh) == alive
    lane.model.prefill_forward, lane.model.embed_prefill = body, embed
    assert np.array_equal(lane.eager(lane.prompt([80])), expected_logits(lane.prompt([80])))


def test_failed_release_of_an_intermediate_output_fails_the_run(lane):
    prepared = prepare_one(lane, [4097])
    alive = names(lane.mesh)
    error, runner = RuntimeError("free"), lane.runtime._sequence_runner
    watch(
        runner,
        "_release",
        [],
        lambda _output: lane.mesh.faults.active or lane.mesh.faults.fail("deallocate", error=error),
    )
    with pytest.raises(RuntimeError) as caught:
        lane.runtime.invoke(prepared)
    assert caught.value is error
    assert lane.runtime.transient_orphan_count == 1
    lane.runtime.cleanup()
    assert names(lane.mesh) == alive


def test_a_body_without_output_is_an_error(lane):
    prepared = prepare_one(lane, [160], start_pos=np.array([32]))
    alive = names(lane.mesh)

    def nothing(x, *_args, **_options):
        lane.model._ns.deallocate(x)

    lane.model.prefill_forward = nothing
    with pytest.raises(RuntimeError, match="no final output"):
        lane.runtime.invoke(prepared)
    assert names(lane.mesh) == alive
