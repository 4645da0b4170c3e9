# SPDX-License-Identifier: Apache-2.0
"""Eager steps: values, ownership of what is staged, and every way in which a step can fail."""

from __future__ import annotations

import gc
import logging
from types import SimpleNamespace

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


@pytest.mark.covers("DEC-53")
def test_a_failed_release_blocks_until_it_is_retried(mesh, runtime, request_for):
    result = runtime.invoke(runtime.prepare(**request_for()), count_tokens=False)
    mesh.faults.fail("deallocate", at=2)
    failures = runtime._health.release(result.owned)
    assert [str(failure) for failure in failures] == ["injected fault: deallocate"]
    assert runtime.transient_orphan_count == 1
    with pytest.raises(RuntimeError, match="unreleased transients"):
        runtime.prepare(**request_for())
    freed = mesh.counters.deallocations
    runtime.cleanup_transients()
    assert mesh.counters.deallocations == freed + 1
    assert runtime.transient_orphan_count == 0
    runtime.prepare(**request_for())
    runtime.cleanup_transients()


def test_a_cleanup_that_fails_again_can_be_repeated(mesh, runtime, request_for):
    result = runtime.invoke(runtime.prepare(**request_for()), count_tokens=False)
    mesh.faults.fail("deallocate", times=2)
    runtime._health.release(result.owned)
    mesh.faults.clear()
    mesh.faults.fail("deallocate")
    with pytest.raises(RuntimeError, match="injected fault"):
        runtime.cleanup_transients()
    assert runtime.transient_orphan_count == 1
    runtime.cleanup_transients()
    assert runtime.transient_orphan_count == 0


@pytest.mark.parametrize("at", [1, 3, 5, 7])
def test_a_staging_failure_releases_what_was_staged(mesh, runtime, request_for, topk, at):
    before = live(mesh)
    prepared = runtime.prepare(**request_for(sampling_params=topk()))
    mesh.faults.fail("to_device", at=at)
    with pytest.raises(RuntimeError, match="injected fault: to_device"):
        runtime.invoke(prepared, count_tokens=False)
    assert live(mesh) == before
    tokens, _ = run(runtime, request_for(sampling_params=topk(), reset_batch=True))
    assert tokens.tolist() == [1, 2]


def test_a_staging_failure_whose_release_fails_is_retained(mesh, runtime, request_for):
    prepared = runtime.prepare(**request_for())
    mesh.faults.fail("to_device", at=3)
    mesh.faults.fail("deallocate", at=1)
    with pytest.raises(RuntimeError, match="injected fault: to_device") as error:
        runtime.invoke(prepared, count_tokens=False)
    assert [str(failure) for failure in error.value.cleanup_failures] == ["injected fault: deallocate"]
    assert runtime.transient_orphan_count == 1
    with pytest.raises(RuntimeError, match="unreleased transients"):
        runtime.invoke(prepared)
    runtime.cleanup_transients()
    run(runtime, request_for())


@pytest.mark.parametrize("op", ["embedding", "paged_update_cache", "argmax", "copy_host_to_device_tensor"])
def test_a_counted_failure_releases_everything_and_ends_the_runtime(mesh, runtime, request_for, greedy, topk, op):
    params = topk() if op.startswith("copy") else greedy()
    before = live(mesh)
    mesh.faults.fail(op)
    with pytest.raises(RuntimeError, match=f"injected fault: {op}"):
        runtime.invoke(runtime.prepare(**request_for(sampling_params=params, reset_batch=True)))
    assert live(mesh) == before
    runtime.cleanup_transients()
    runtime.drain_external_outputs()
    for refused in (
        lambda: runtime.prepare(**request_for()),
        lambda: runtime.invoke(object()),
        lambda: runtime.validate_submission(object()),
        runtime.ensure_trace_safe,
    ):
        with pytest.raises(RuntimeError, match="rebuild the executor"):
            refused()


def test_a_compile_failure_leaves_the_runtime_usable(mesh, runtime, request_for, greedy):
    mesh.faults.fail("argmax")
    with pytest.raises(RuntimeError, match="argmax"):
        runtime.invoke(runtime.prepare(**request_for(sampling_params=greedy())), count_tokens=False)
    tokens, _ = run(runtime, request_for(sampling_params=greedy(), reset_batch=True))
    assert tokens.tolist() == [1, 2]


@pytest.mark.covers("T09")
def test_a_compile_only_step_is_not_a_submission(runtime, request_for):
    run(runtime, request_for(), count_tokens=False)
    assert runtime.prepare(**request_for()).page_table_changed is True


def test_a_failing_state_reset_after_a_compile_is_reported_and_nothing_leaks(mesh, runtime, request_for, topk):
    before = live(mesh)
    prepared = runtime.prepare(**request_for(sampling_params=topk()))
    mesh.faults.fail("copy_host_to_device_tensor", at=2)
    with pytest.raises(RuntimeError, match="copy_host_to_device_tensor"):
        runtime.invoke(prepared, count_tokens=False)
    assert live(mesh) == before


def test_a_failing_read_releases_and_keeps_its_error(mesh, runtime, request_for):
    before = live(mesh)
    result = runtime.invoke(runtime.prepare(**request_for()))
    mesh.faults.fail("cpu")
    mesh.faults.fail("deallocate", at=1)
    with pytest.raises(RuntimeError, match="injected fault: cpu") as error:
        runtime.consume(result)
    assert [str(failure) for failure in error.value.cleanup_failures] == ["injected fault: deallocate"]
    del result, error
    with pytest.raises(RuntimeError, match="rebuild"):
        runtime.prepare(**request_for())
    runtime.cleanup_transients()
    assert live(mesh) == before


def test_a_failing_release_after_a_good_read_is_raised(mesh, runtime, request_for):
    result = runtime.invoke(runtime.prepare(**request_for()))
    mesh.faults.fail("deallocate", at=2)
    with pytest.raises(RuntimeError, match="injected fault: deallocate"):
        runtime.consume(result)
    with pytest.raises(RuntimeError, match="rebuild"):
        runtime.ensure_trace_safe()
    runtime.cleanup_transients()
    assert runtime.transient_orphan_count == 0


@pytest.mark.covers("D17")
def test_what_the_sampler_would_drop_is_refused_before_device_work(mesh, runtime, request_for, topk):
    calls = mesh.counters.calls.copy()
    penalised = runtime.prepare(**request_for(sampling_params=topk(presence_penalty=[0.5, 0.0])))
    logged = runtime.prepare(**request_for(sampling_params=topk(enable_log_probs=[False, True])))
    for prepared, match in ((penalised, "penalties"), (logged, "slot 1 asks for log-probabilities.*1 device")):
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


@pytest.mark.covers("D18", "DEC-50", "D17")
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


class Checked:
    """A module that declares where its decode input lives."""

    def __init__(self, memory_config):
        self.config = SimpleNamespace(decode_input_memcfg=memory_config)
        self.inputs = 0

    def decode_forward(self, x):
        self.inputs += 1


def test_a_module_input_in_another_place_is_a_warning(model, request_for, caplog):
    right, wrong = Checked(ttnn_twin.DRAM_MEMORY_CONFIG), Checked(ttnn_twin.L1_MEMORY_CONFIG)
    silent = Checked(None)
    model.named_modules = [("layer[0].right", right), ("layer[0].wrong", wrong), ("norm", silent)]
    with caplog.at_level(logging.WARNING):
        run(decode_runtime(model), request_for())
    assert [record.args[0] for record in caplog.records] == ["layer[0].wrong"]
    assert (right.inputs, wrong.inputs, silent.inputs) == (1, 1, 1)
    assert not any("decode_forward" in vars(module) for module in (right, wrong, silent))


def test_wrapped_modules_are_restored_on_every_way_out(mesh, model, request_for):
    module = Checked(ttnn_twin.DRAM_MEMORY_CONFIG)
    own = module.decode_forward = module.decode_forward
    broken = SimpleNamespace(config=SimpleNamespace(decode_input_memcfg=ttnn_twin.DRAM_MEMORY_CONFIG))
    model.named_modules = [("a", module), ("b", broken)]
    with pytest.raises(AttributeError, match="decode_forward"):
        run(decode_runtime(model), request_for())
    assert module.decode_forward is own
    model.named_modules = [("a", module)]
    mesh.faults.fail("paged_update_cache")
    with pytest.raises(RuntimeError, match="paged_update_cache"):
        run(decode_runtime(model), request_for())
    assert module.decode_forward is own


def test_a_model_without_named_modules_is_not_checked(mesh, request_for):
    model = TinyDecodeModel(mesh)
    model.iter_executor_named_modules = lambda: None
    run(decode_runtime(model), request_for())
