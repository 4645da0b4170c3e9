# SPDX-License-Identifier: Apache-2.0
"""Eager steps: values, ownership of what is staged, and every way in which a step can fail."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ttnn_twin
from support.tiny_decode_model import TinyDecodeModel, decode_runtime, expected_logits


def run(runtime, call, **options):
    return runtime.consume(runtime.invoke(runtime.prepare(**call), **options))


def live(mesh):
    # An exception that a test looked at holds the frames, and so the tensors, of the model body.
    mesh.faults.clear()
    gc.collect()
    return sorted(tensor.name for tensor in mesh.live_tensors())


@pytest.mark.covers("DEC-48")
def test_an_eager_logits_step_owns_its_inputs_and_output(runtime, request_for):
    prepared = runtime.prepare(**request_for())
    result = runtime.invoke(prepared)
    value, log_probs = result.value
    output, (inputs, kpt) = result.owned
    assert (log_probs, kpt, result.is_tokens) == (None, None, False)
    assert output[0] is value
    assert [tuple(tensor.shape) for tensor in inputs.values()] == [(1, 1, 1, 32), (2,), (1, 32), (2, 8)]
    assert runtime.prepare(**request_for()).page_table_changed is False
    runtime.consume(result)


@pytest.mark.covers("DEC-49")
def test_a_blocking_consume_returns_rows_and_releases_once(mesh, runtime, request_for):
    before = live(mesh)
    logits, log_probs = run(runtime, request_for((3, 5), (4, 9)))
    assert logits.shape == (2, 1, 64)
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits[0, 0], expected_logits(3, 4))
    np.testing.assert_array_equal(logits[1, 0], expected_logits(5, 9))
    assert log_probs is None
    assert live(mesh) == before


@pytest.mark.parametrize("path", ["argmax", "topk"])
def test_sampled_tokens_come_back_for_the_lane(runtime, request_for, greedy, topk, path):
    params = greedy() if path == "argmax" else topk()
    tokens, log_probs = run(runtime, request_for((3, 5), (4, 9), sampling_params=params, reset_batch=True))
    assert (tokens.tolist(), tokens.dtype, log_probs) == ([7, 14], np.int64, None)


def test_an_idle_row_writes_nothing(mesh, runtime, request_for):
    run(runtime, request_for((3, 5), (-1, 33)))
    assert [(write.block, write.offset, write.position) for write in mesh.ledger.writes] == [(7, 1, 33)]


def test_the_staged_tensors_hold_the_request(mesh, model, request_for):
    seen = {}
    body = model.decode_forward

    def watching(x, current_pos, rot_mats, page_table=None):
        seen.update(positions=current_pos.cpu().to_numpy().tolist(), page_table=page_table.cpu().to_numpy().tolist())
        return body(x, current_pos, rot_mats, page_table=page_table)

    embed, rope = model.embed_decode, model.rope_setup.decode_forward
    model.decode_forward = watching
    model.embed_decode = lambda tokens: (seen.update(tokens=tokens.cpu().to_numpy()), embed(tokens))[1]
    model.rope_setup.decode_forward = lambda idx: (seen.update(rotary=idx.cpu().to_numpy()), rope(idx))[1]
    run(decode_runtime(model), request_for((9, 11), (-7, 40)))
    assert seen["positions"] == [-7, 40]
    assert seen["page_table"] == [[0] * 8, [6, 7, 0, 0, 0, 0, 0, 0]]
    assert (seen["tokens"].shape, seen["tokens"].dtype) == ((1, 1, 1, 32), np.uint32)
    assert seen["tokens"].reshape(-1).tolist() == [9, 11, *[0] * 30]
    assert (seen["rotary"].shape, seen["rotary"].reshape(-1).tolist()) == ((1, 32), [0, 40, *[0] * 30])


@pytest.mark.parametrize("order", ["feedback", "off"])
def test_the_sampled_token_is_copied_before_positions_advance(mesh, model, request_for, greedy, order):
    runtime = decode_runtime(model)
    prepared = runtime.prepare(**request_for((3, 5), (4, -1), sampling_params=greedy()))
    increment = model.increment_positions
    at_increment = []

    def watching(positions, rotary):
        inputs = result_inputs[0]
        at_increment.append(inputs.tokens.cpu().to_numpy().reshape(-1)[:2].tolist())
        increment(positions, rotary)

    model.increment_positions = watching
    result_inputs = []
    stage = runtime._invoker._stager.stage
    runtime._invoker._stager.stage = lambda host: (result_inputs.append(stage(host)[0]), (result_inputs[0], None))[1]
    result = runtime.invoke(prepared, device_feedback=order == "feedback", count_tokens=False)
    inputs = result_inputs[0]
    staged = [tensor.cpu().to_numpy().reshape(-1)[:2].tolist() for tensor in inputs.values()[:3]]
    if order == "feedback":
        assert at_increment == [[7, 5]]
        assert staged == [[7, 5], [5, -1], [5, 1]]
    else:
        assert at_increment == []
        assert staged == [[3, 5], [4, -1], [4, 0]]
    runtime.consume(result)


def test_a_logits_step_never_feeds_back(runtime, model, request_for):
    model.increment_positions = None
    run(runtime, request_for(), device_feedback=True)


def test_a_checked_step_that_is_dropped_leaves_no_inputs_behind(runtime, request_for):
    runtime.validate_submission(runtime.prepare(**request_for((60, 60), (3, 3))))
    logits, _ = run(runtime, request_for((3, 5), (4, 9)), count_tokens=False)
    np.testing.assert_array_equal(logits[0, 0], expected_logits(3, 4))


def test_a_step_that_runs_twice_reads_its_arrays_twice(runtime, request_for):
    call = request_for((3, 5), (4, 9))
    prepared = runtime.prepare(**call)
    runtime.consume(runtime.invoke(prepared))
    call["tokens"][0] = 8
    logits, _ = runtime.consume(runtime.invoke(prepared, count_tokens=False))
    np.testing.assert_array_equal(logits[0, 0], expected_logits(8, 4))


def test_a_compile_only_step_is_not_a_submission(runtime, request_for):
    run(runtime, request_for(), count_tokens=False)
    assert runtime.prepare(**request_for()).page_table_changed is True


@pytest.mark.covers("D17")
def test_what_the_sampler_would_drop_is_refused_before_device_work(mesh, runtime, request_for, topk):
    calls = mesh.counters.calls.copy()
    penalised = runtime.prepare(**request_for(sampling_params=topk(presence_penalty=[0.5, 0.0])))
    logged = runtime.prepare(**request_for(sampling_params=topk(enable_log_probs=[False, True])))
    for prepared, match in ((penalised, "penalties"), (logged, "slot 1 asks for log-probabilities.*host")):
        for submit in (runtime.validate_submission, runtime.invoke):
            with pytest.raises(ValueError, match=match):
                submit(prepared)
    assert mesh.counters.calls == calls
    runtime.prepare(**request_for())


@pytest.fixture
def wide_runtime():
    """A runtime on eight devices, which is what log-probabilities take."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 8), trace_region_size=1 << 24)
    yield decode_runtime(TinyDecodeModel(mesh))
    ttnn_twin.close_mesh_device(mesh)


@pytest.mark.covers("DEC-50", "D17")
def test_log_probs_come_back_in_row_order(wide_runtime, request_for, topk):
    params = topk(enable_log_probs=[True, False])
    tokens, log_probs = run(wide_runtime, request_for((3, 5), (4, 9), sampling_params=params, reset_batch=True))
    assert tokens.tolist() == [7, 14]
    assert (log_probs.tolist(), log_probs.dtype) == ([-7.0, -14.0], np.float32)
    top_n = wide_runtime.prepare(
        **request_for(sampling_params=topk(enable_log_probs=[False, True], num_logprobs=[0, 2]))
    )
    with pytest.raises(ValueError, match="slot 1 asks for num_logprobs 2"):
        wide_runtime.invoke(top_n)


def test_foreign_values_are_refused(runtime):
    for method in (runtime.invoke, runtime.note_submitted, runtime.capture_plan, runtime.validate_submission):
        with pytest.raises(TypeError, match="PreparedDecode"):
            method("prepared")
    with pytest.raises(TypeError, match="InvocationResult"):
        runtime.consume((1, 2))
