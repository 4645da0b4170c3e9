# SPDX-License-Identifier: Apache-2.0
"""Postprocessing and result collection: fitting, rows, replicas, source-row order, log-probabilities, release."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

import ttnn_twin as ns
from llm_runtime.prefill.host_results import log_prob_values, logits_array, merge_log_probs, token_rows
from llm_runtime.prefill.ownership import (
    InvocationResult,
    PrefillReplayOwnership,
    new_logprob_output,
    retain_owned,
    without_borrowed,
)
from llm_runtime.prefill.postprocess import fit_prefill_sampling_logits
from llm_runtime.prefill.sampling_params import SamplingParams
from support.prefill_model import VOCAB, EchoLane, EchoModel, EchoSampler, echo_row, watch

GREEDY = SamplingParams(0.0, 1, 1.0)
STOCHASTIC = SamplingParams(1.0, 8, 0.9)


def device_logits(mesh, values):
    host = ns.to_layout(ns.Tensor(np.asarray(values, np.float32), ns.bfloat16), ns.TILE_LAYOUT)
    return ns.to_device(host, device=mesh)


def host(values, dtype=None):
    return ns.Tensor(np.asarray(values), dtype)


def prepared_of(lane, lengths, params=None, **options):
    return lane.runtime.prepare(**lane.prompt(lengths), sampling_params=params, **options)


@pytest.mark.covers("POST-01")
def test_sampling_output_is_a_zeroed_device_row(lane):
    output = lane.runtime._postprocessor.make_sampling_output(1)
    assert output.shape == (1, 1, 1, 1)
    assert output.dtype == ns.uint32
    assert output.layout is ns.ROW_MAJOR_LAYOUT
    assert output.device() is lane.mesh
    assert output.cpu().to_numpy().tolist() == [[[[0]]]]


@pytest.mark.covers("POST-02", "POST-03")
@pytest.mark.parametrize("shape", [(1, 1, 1, 32), (1, 1, 32, 1)])
def test_only_the_first_replica_of_tokens_is_read(shape, monkeypatch):
    mesh = ns.open_mesh_device(ns.MeshShape(1, 2))
    try:
        tokens = ns.to_device(host(np.arange(32, dtype=np.uint32).reshape(shape)), device=mesh).cpu()
        reads = []
        read = ns.Tensor.to_numpy
        monkeypatch.setattr(ns.Tensor, "to_numpy", lambda tensor: reads.append(1) or read(tensor))
        rows = token_rows(tokens, 32)
        assert rows.dtype == np.int64
        assert rows.tolist() == list(range(32))
        assert len(reads) == 1
    finally:
        ns.close_mesh_device(mesh)


def test_too_few_tokens_are_an_error():
    with pytest.raises(ValueError, match="3 tokens, 4 rows"):
        token_rows(host(np.arange(3, dtype=np.uint32)), 4)


@pytest.mark.covers("POST-04", "POST-05", "POST-06")
def test_logits_are_fitted_to_the_sampler(mesh):
    values = np.arange(128 * 32, dtype=np.float32).reshape(1, 1, 128, 32) % 100
    same = device_logits(mesh, values[:, :, :32])
    assert fit_prefill_sampling_logits(same, 32) is same
    cut = fit_prefill_sampling_logits(device_logits(mesh, values), 32)
    assert np.array_equal(cut.cpu().to_numpy(), values[:, :, :32])
    padded = fit_prefill_sampling_logits(device_logits(mesh, values[:, :, :1] + 1), 32).cpu().to_numpy()
    assert padded.shape == (1, 1, 32, 32)
    assert np.array_equal(padded[0, 0, 0], values[0, 0, 0] + 1)
    assert not padded[0, 0, 1:].any()
    with pytest.raises(ValueError, match="sampler rows must be positive, got 0"):
        fit_prefill_sampling_logits(same, 0)


@pytest.mark.covers("POST-07", "POST-08")
@pytest.mark.parametrize(
    ("rows", "length", "start", "expected"),
    [(32, 80, 0, 32), (16, 80, 0, 16), (1, 160, 32, 1), (1, 129, 0, 1)],
)
def test_rows_of_the_sampler(mesh, rows, length, start, expected):
    lane = EchoLane(EchoModel(mesh, sampler=EchoSampler(mesh, rows=rows)))
    (prepared,) = prepared_of(lane, [length], STOCHASTIC, start_pos=np.array([start]))
    assert lane.runtime._postprocessor.sampling_output_rows(prepared) == expected


@pytest.mark.covers("POST-11")
def test_whole_tile_result_is_read_at_the_row_of_the_last_token(lane):
    params = SamplingParams(1.0, 8, 0.9, enable_log_probs=True)
    (prepared,) = prepared_of(lane, [80], params)
    ids = np.arange(500, 532, dtype=np.uint32).reshape(1, 1, 1, 32)
    ids[0, 0, 0, 15] = 123
    released = []
    watch(lane.runtime._assembler, "_release", released, lambda values: values)
    owned = (object(),)
    result = InvocationResult((host(ids), host(np.arange(32, dtype=np.float32).reshape(1, 1, 1, 32))), owned)
    tokens, log_probs = lane.runtime.assemble([(prepared, result)], batch_size=1, sampling_params=params)
    assert tokens.tolist() == [123]
    assert log_probs.tolist() == [15.0]
    assert released == [owned]


def logits_result(rows, *, traced=False, tile=1):
    values = np.zeros((1, 1, tile, VOCAB), np.float32)
    for row, value in rows.items():
        values[0, 0, row] = value
    replay = PrefillReplayOwnership(None, None, None, ()) if traced else None
    return InvocationResult(host(values, ns.float32), (), replay)


@pytest.mark.covers("ASM-01")
def test_single_results_land_in_their_source_rows(model):
    lane = EchoLane(model, supports_batched_prefill=False)
    first, second = prepared_of(lane, [80, 80], empty_slots=[7, 3])
    order = []
    watch(lane.runtime._assembler, "_release", order, lambda values: values)
    one, two = (logits_result({0: value}) for value in (1.0, 2.0))
    one, two = (InvocationResult(result.value, (name,)) for result, name in ((one, "one"), (two, "two")))
    logits = lane.runtime.assemble([(second, two), (first, one)], batch_size=2)
    assert logits.shape == (2, 1, VOCAB)
    assert logits[:, 0, 0].tolist() == [1.0, 2.0]
    assert order == [("two",), ("one",)]


@pytest.mark.covers("ASM-02")
def test_wave_rows_are_read_by_wave_row_never_by_slot(lane):
    (prepared,) = prepared_of(lane, [80, 80], empty_slots=[7, 3])
    logits = lane.runtime.assemble([(prepared, logits_result({0: 1.0, 1: 2.0}, tile=32))], batch_size=2)
    assert logits[:, 0, 0].tolist() == [1.0, 2.0]


@pytest.mark.covers("ASM-02")
def test_mesh_columns_hold_parts_of_the_vocabulary():
    mesh = ns.open_mesh_device(ns.MeshShape(2, 2))
    try:
        value = ns.to_device(host(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)), device=mesh).cpu()
        whole = logits_array(value, (2, 2))
        assert whole.shape == (1, 2, 2, 8)
        assert whole[0, 0, 1].tolist() == [4.0, 5.0, 6.0, 7.0] * 2
    finally:
        ns.close_mesh_device(mesh)


def test_logits_must_have_been_read_to_the_host(mesh):
    with pytest.raises(ValueError, match="still on the device"):
        logits_array(device_logits(mesh, np.zeros((1, 1, 32, 32))), (1, 1))


@pytest.mark.covers("ASM-03", "ASM-06")
def test_no_results_give_zeros(lane):
    logits = lane.runtime.assemble([], batch_size=1)
    assert logits.shape == (1, 1, VOCAB)
    assert not logits.any()
    tokens, log_probs = lane.runtime.assemble([], batch_size=1, sampling_params=GREEDY)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [0]
    assert log_probs is None


@pytest.mark.parametrize(
    ("lengths", "start", "traced", "row"),
    [([80], 0, False, 0), ([80], 0, True, 0), ([160], 32, False, 31), ([160], 32, True, 0), ([150], 32, False, 21)],
)
def test_row_rule_of_single_logits(lane, lengths, start, traced, row):
    (prepared,) = prepared_of(lane, lengths, start_pos=np.array([start]))
    result = logits_result({row: 5.0}, traced=traced, tile=32)
    logits = lane.runtime.assemble([(prepared, result)], batch_size=1)
    assert logits[0, 0].tolist() == [5.0] * VOCAB


@pytest.mark.covers("ASM-04")
def test_failed_release_of_a_result_is_reported_and_retried(lane):
    call = lane.prompt([80])
    (prepared,) = lane.runtime.prepare(**call)
    alive = len(lane.mesh.live_tensors())
    result = lane.runtime.invoke(prepared)
    lane.mesh.faults.fail("deallocate", at=2, times=2)
    with pytest.raises(RuntimeError, match="deallocate"):
        lane.runtime.assemble([(prepared, result)], batch_size=1)
    assert lane.runtime.transient_orphan_count == 1
    lane.mesh.faults.fail("deallocate", at=1)
    with pytest.raises(RuntimeError, match="deallocate"):
        lane.runtime.cleanup()
    assert lane.runtime.transient_orphan_count == 1
    lane.runtime.cleanup()
    lane.runtime.cleanup()
    assert lane.runtime.transient_orphan_count == 0
    del result
    assert len(lane.mesh.live_tensors()) == alive


@pytest.mark.parametrize("value", [("a", "b", "c"), ("only",)])
def test_sampled_results_are_pairs(lane, value):
    (prepared,) = prepared_of(lane, [80], GREEDY)
    with pytest.raises(TypeError, match=r"tokens, log_probs"):
        lane.runtime.assemble([(prepared, InvocationResult(value, ()))], batch_size=1, sampling_params=GREEDY)


def test_disagreement_about_sampling_releases_the_result(lane):
    (prepared,) = prepared_of(lane, [80])
    result = lane.runtime.invoke(prepared)
    alive = result.value
    with pytest.raises(ValueError, match="disagree"):
        lane.runtime.assemble([(prepared, result)], batch_size=1, sampling_params=GREEDY)
    assert not alive.is_allocated()


def test_read_failure_keeps_the_primary_error_and_releases(lane):
    (prepared,) = prepared_of(lane, [80])
    result = lane.runtime.invoke(prepared)
    error = RuntimeError("link down")
    lane.mesh.faults.fail("cpu", error=error)
    with pytest.raises(RuntimeError) as caught:
        lane.runtime.assemble([(prepared, result)], batch_size=1)
    assert caught.value is error
    assert not result.value.is_allocated()


def test_a_bare_token_tensor_has_no_log_probs(lane):
    (prepared,) = prepared_of(lane, [80], GREEDY)
    result = InvocationResult(host(np.arange(32, dtype=np.uint32).reshape(1, 1, 1, 32)), ())
    tokens, log_probs = lane.runtime.assemble([(prepared, result)], batch_size=3, sampling_params=GREEDY)
    assert tokens.tolist() == [0, 0, 0]
    assert log_probs is None


def test_log_prob_payloads():
    assert log_prob_values(-2.0, 3).tolist() == [-2.0] * 3
    assert log_prob_values([-1.0, -2.0, -3.0], 2).tolist() == [-1.0, -2.0]
    assert log_prob_values(host(np.array([[-1.0], [-2.0]], np.float32)), 2).tolist() == [-1.0, -2.0]
    with pytest.raises(ValueError, match="2 log-probabilities for 3 rows"):
        log_prob_values([-1.0, -2.0], 3)
    with pytest.raises(TypeError, match="str"):
        log_prob_values("-1", 1)
    assert merge_log_probs([], 4) is None
    merged = merge_log_probs([((3, 0), np.array([-3.0, -0.5], np.float32))], 4)
    assert merged.tolist() == [-0.5, 1.0, 1.0, -3.0]


def test_ownership_by_identity():
    first, second = [1], [1]
    owned = []
    for value in (first, second, first, None):
        retain_owned(owned, value)
    assert len(owned) == 2
    hidden, kept = object(), object()
    pruned = without_borrowed([hidden, (kept, hidden), [hidden], kept], [hidden, None])
    assert pruned == ((kept,), kept)
    whole = (kept,)
    assert without_borrowed([whole], [hidden])[0] is whole
    assert new_logprob_output("anything", None) is None
    assert new_logprob_output((1, 2), persistent=object()) == 2


@pytest.mark.covers("POST-18")
def test_regular_top_k_finish_owns_raw_fitted_and_output(lane):
    (prepared,) = prepared_of(lane, [129], STOCHASTIC)
    post = lane.runtime._postprocessor
    positions = lane.runtime._stager.stage_position_inputs(128, 1024)
    hidden = device_logits(lane.mesh, np.zeros((1, 1, 1024, VOCAB)))
    kpt = post.sampling_inputs.make_device_values(post.sampling_inputs.values(prepared, 32))
    output, owned = post.make_sampling_output(32), []
    value = post.finish_regular_prefill(prepared, hidden, kpt, positions, sampled_output=output, owned=owned)
    assert [item.shape for item in owned] == [(1, 1, 1, VOCAB), (1, 1, 32, VOCAB), (1, 1, 1, 32)]
    assert value == (output, None)
    assert owned[2] is output


@pytest.mark.covers("POST-19")
def test_chunked_top_k_finish_lists_the_raw_logits_once(lane):
    (prepared,) = prepared_of(lane, [160], STOCHASTIC, start_pos=np.array([32]))
    post = lane.runtime._postprocessor
    raw = device_logits(lane.mesh, np.zeros((1, 1, 1, VOCAB)))
    kpt = post.sampling_inputs.make_device_values(post.sampling_inputs.values(prepared, 32))
    owned = [raw]
    value = post.finish_prefill_sequence(prepared, raw, kpt, None, sampled_output=None, owned=owned)
    assert owned[0] is raw
    assert owned[1].shape == (1, 1, 32, VOCAB)
    assert owned[2] is value[0]
    assert len(owned) == 3


class Controller:
    """A sampling-state controller that samples through the echo sampler and records its calls."""

    def __init__(self, sampling):
        self.sampling = sampling
        self.events = []

    def admit(self, *_args, **_options):
        raise AssertionError("prefill admits through admit_prefill")

    def admit_prefill(self, state, sampling, *, slots, positions):
        self.events.append(("admit", state, slots, positions, sampling.active_rows))

    def reset(self, state, sampling=None):
        self.events.append(("reset", state, sampling is not None))

    def prefill_forward(self, logits, state, sampling, *, count_tokens, **options):
        self.events.append(("sample", state, count_tokens, sorted(options)))
        return self.sampling.decode_forward(logits, **options)


def test_controller_drives_sampling_and_compile_runs_leave_no_state(model):
    controller = Controller(model.sampling)
    lane = EchoLane(model, sampling_state_controller=controller, sampling_state="state")
    params = SamplingParams(1.0, 8, 0.9, presence_penalty=0.5, seed=3)
    call = {**lane.prompt([80]), "sampling_params": params, "empty_slots": [5]}
    (prepared,) = lane.runtime.prepare(**call)
    assert dict(prepared.program_signatures[0].key_material())["penalties_enabled"] is True
    assert lane.eager(call)[0].tolist() == [79 % VOCAB]
    options = ["k", "p", "temp", "tt_out_tok"]
    assert controller.events == [("admit", "state", (5,), (79,), 1), ("sample", "state", True, options)]
    controller.events.clear()
    lane.runtime._release_transient(lane.runtime.invoke(prepared, count_tokens=False).owned)
    assert controller.events == [
        ("reset", "state", True),
        ("sample", "state", False, options),
        ("reset", "state", False),
    ]
    controller.events.clear()
    lane.mesh.faults.fail("to_device")
    with pytest.raises(RuntimeError, match="to_device"):
        lane.runtime.invoke(prepared, count_tokens=False)
    assert controller.events == [("reset", "state", True), ("reset", "state", False)]
    controller.events.clear()
    lane.eager(lane.prompt([80]))
    assert controller.events == []


class TorchTensor:
    """Stands for a torch CPU tensor as far as the runtime looks: a view of NumPy memory."""

    is_cpu = True

    class device:
        type = "cpu"

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def detach(self):
        return self

    def numpy(self):
        return self.array


@pytest.mark.parametrize("params", [None, SamplingParams(1.0, 8, 0.9, enable_log_probs=True)])
def test_torch_in_gives_torch_out(lane, monkeypatch, params):
    torch = ModuleType("torch")
    torch.Tensor = TorchTensor
    torch.from_numpy = TorchTensor
    monkeypatch.setitem(sys.modules, "torch", torch)
    call = lane.prompt([80])
    wrapped = {name: TorchTensor(value) for name, value in call.items()}
    result = lane.eager({**wrapped, "sampling_params": params})
    if params is None:
        assert isinstance(result, TorchTensor)
        assert np.array_equal(result.array[0, 0], echo_row(79 % VOCAB, 79))
        assert isinstance(lane.eager(call), np.ndarray)
    else:
        assert all(isinstance(part, TorchTensor) for part in result)
        assert result[0].array.tolist() == [79 % VOCAB]


def test_layout_change_reaches_later_calls(lane):
    from llm_runtime.config import PageTableLayout

    small = PageTableLayout(block_size=32, raw_capacity_width=8, prefill_width=72, decode_width=8)
    held = lane.runtime.config
    lane.runtime.configure_page_table_layout(small)
    assert held.page_table_layout.prefill_width == 264
    (prepared,) = lane.runtime.prepare(**lane.prompt([80]))
    assert prepared.request.page_table.shape == (1, 72)
    call = lane.prompt([256])
    assert np.array_equal(lane.eager(call)[0, 0], echo_row(255 % VOCAB, 255))
    with pytest.raises(ValueError, match="row 0"):
        lane.runtime.prepare(**lane.prompt([257]))
