# SPDX-License-Identifier: Apache-2.0
"""Prefill traces on the twin: values of replays, what a refresh copies, ownership, priming, failures."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ns
from llm_runtime.prefill.sampling_params import SamplingParams
from support.prefill_model import (
    EchoLane,
    EchoModel,
    check_result,
    echo_row,
    expected_logits,
    expected_tokens,
    make_call,
    names,
    watch,
)

GREEDY = SamplingParams(0.0, 1, 1.0)
STOCHASTIC = SamplingParams(1.0, 8, 0.9)
SEEDED = SamplingParams(1.0, 8, 0.9, seed=7)


class CopyLog:
    """The host-to-device and device copies of a section, by destination."""

    def __init__(self, monkeypatch):
        self.host, self.device = [], []
        host, device = ns.copy_host_to_device_tensor, ns.copy

        def copy_host(source, target, *args, **options):
            self.host.append(target)
            return host(source, target, *args, **options)

        def copy_device(input_a, input_b):
            self.device.append(input_b)
            return device(input_a, input_b)

        monkeypatch.setattr(ns, "copy_host_to_device_tensor", copy_host)
        monkeypatch.setattr(ns, "copy", copy_device)

    def clear(self):
        self.host.clear()
        self.device.clear()


@pytest.fixture
def copies(monkeypatch):
    return CopyLog(monkeypatch)


def same(tensors, expected):
    return len(tensors) == len(expected) and all(a is b for a, b in zip(tensors, expected, strict=True))


CASES = {
    "single": ([80], 0, [[1], [33], [128], [97]]),
    "thousand": ([700], 0, [[129], [1000], [1024]]),
    "wave": ([80] * 4, 0, [[3, 128, 77], [90, 1, 60, 31]]),
    "cached": ([160], 32, [[33], [64], [150]]),
    "chunked": ([4096], 0, [[2100], [4097], [6000]]),
    "cached-long": ([2200], 64, [[2177], [4000]]),
}


@pytest.mark.covers("T32", "T10", "PTR-09", "D18")
@pytest.mark.parametrize("execution", ["immediate", "deferred"])
@pytest.mark.parametrize("params", [None, GREEDY, STOCHASTIC])
@pytest.mark.parametrize("case", sorted(CASES))
def test_replays_equal_eager_runs_for_other_requests(open_mesh, execution, params, case):
    lane = EchoLane(EchoModel(open_mesh(execution=execution)))
    captured, start, served = CASES[case]
    # A sampled prompt of the 128 bucket has one program per tile, as in warmup.
    tiles = [[32], [64], [128]] if params is not None and case == "single" else []
    traces = lane.trace(*(make_call(lane, lengths, start=start, params=params) for lengths in [captured, *tiles]))
    programs = lane.mesh.num_program_cache_entries()
    alive = names(lane.mesh)
    replays = lane.mesh.counters.replays
    for shift, lengths in enumerate(served):
        call = make_call(lane, lengths, start=start, params=params, shift=shift + 1)
        check_result(call, lane.replay(traces, call))
        assert names(lane.mesh) == alive
    assert lane.mesh.counters.replays > replays
    assert lane.mesh.num_program_cache_entries() == programs


@pytest.mark.covers("P16", "PTR-09", "T10", "T32")
def test_a_replayed_wave_writes_every_active_row_and_no_padding(lane):
    (trace,) = lane.trace(make_call(lane, [80] * 2 + [80]))
    cache = lane.model.cache
    ns.copy_host_to_device_tensor(
        ns.to_layout(ns.Tensor(np.full(cache.shape, 9.0, np.float32), ns.bfloat16), ns.TILE_LAYOUT), cache
    )
    call = make_call(lane, [40, 80, 5, 64], shift=3)
    check_result(call, lane.replay([trace], call))
    contents = cache.cpu().to_numpy()
    for row, length in enumerate(call["prompt_lens"]):
        for position in range(length):
            block = call["page_table"][row, position // 32]
            assert np.array_equal(
                contents[block, 0, position % 32], echo_row(int(call["tokens"][row, position]), position)
            )
    # Row 2 uses one block of its three, row 3 two; nobody owns anything beyond the call's table.
    assert (contents[[7, 8, 11]] == 9.0).all()
    assert (contents[12:] == 9.0).all()


@pytest.mark.covers("PTR-02")
@pytest.mark.parametrize("params", [None, GREEDY, SEEDED])
def test_regular_refresh_copies_tokens_and_table_only(lane, copies, params):
    (trace,) = lane.trace(make_call(lane, [80], params=params))
    inputs = trace.persistent.device_inputs
    copies.clear()
    (prepared,) = lane.runtime.prepare(**make_call(lane, [80], params=params, shift=5))
    lane.runtime.refresh_trace(prepared, trace.persistent, trace.workspace)
    assert same(copies.host, [inputs.tokens, inputs.page_table])
    assert copies.device == []


@pytest.mark.parametrize(("params", "refreshed"), [(None, True), (GREEDY, True), (SEEDED, False)])
def test_position_tensors_are_copied_when_read_and_changed(lane, copies, params, refreshed):
    (trace,) = lane.trace(make_call(lane, [80], params=params))
    copies.clear()
    (prepared,) = lane.runtime.prepare(**make_call(lane, [70], params=params))
    lane.runtime.refresh_trace(prepared, trace.persistent, trace.workspace)
    positions = trace.workspace.position_inputs.values()
    assert same(
        [item for item in copies.host if any(item is other for other in positions)], positions if refreshed else ()
    )
    copies.clear()
    lane.runtime.refresh_trace(prepared, trace.persistent, trace.workspace)
    assert len(copies.host) == 2


def test_a_wave_reads_no_position_tensors(lane, copies):
    (trace,) = lane.trace(make_call(lane, [80] * 2))
    copies.clear()
    (prepared,) = lane.runtime.prepare(**make_call(lane, [70, 60]))
    lane.runtime.refresh_trace(prepared, trace.persistent, trace.workspace)
    assert len(copies.host) == 2


@pytest.mark.covers("T10", "T32")
@pytest.mark.parametrize("execution", ["immediate", "deferred"])
def test_a_wave_extracted_row_by_row_replays_any_rows_and_positions(open_mesh, execution):
    lane = EchoLane(EchoModel(open_mesh(execution=execution)), batched_prefill_batched_extract=False)
    traces = lane.trace(make_call(lane, [80] * 3))
    programs, alive = lane.mesh.num_program_cache_entries(), names(lane.mesh)
    for shift, lengths in enumerate([[3, 128, 77], [90, 1, 60, 31], [33, 64, 97, 96], [90, 64, 31]]):
        call = make_call(lane, lengths, shift=shift + 1)
        check_result(call, lane.replay(traces, call))
        assert names(lane.mesh) == alive
    assert lane.mesh.counters.replays == 4
    assert lane.mesh.num_program_cache_entries() == programs


def test_only_rows_whose_position_changed_are_copied(model, copies):
    lane = EchoLane(model, batched_prefill_batched_extract=False)
    (trace,) = lane.trace(make_call(lane, [80] * 3))
    rows = trace.workspace.position_inputs

    def refresh(lengths):
        copies.clear()
        (prepared,) = lane.runtime.prepare(**make_call(lane, lengths))
        lane.runtime.refresh_trace(prepared, trace.persistent, trace.workspace)
        return copies.host[2:]

    assert len(rows) == 4
    assert same(refresh([80] * 3), ())
    assert same(refresh([80, 70, 80, 60]), [*rows[1].values(), *rows[3].values()])
    assert same(refresh([80, 70, 80, 60]), ())


def test_sampler_values_are_copied_when_they_change(lane, copies):
    (trace,) = lane.trace(make_call(lane, [80], params=SEEDED))
    device = trace.workspace.kpt

    def refresh(params):
        copies.clear()
        (prepared,) = lane.runtime.prepare(**make_call(lane, [80], params=params))
        lane.runtime.refresh_trace(prepared, trace.persistent, trace.workspace)
        return copies.host[2:]

    assert same(refresh(SamplingParams(1.0, 8, 0.5, seed=7)), device[:3])
    assert same(refresh(SamplingParams(1.0, 8, 0.5, seed=7)), ())
    assert same(refresh(SamplingParams(1.0, 8, 0.5, seed=8)), [device.seeds])
    assert same(refresh(SamplingParams(1.0, 8, 0.5)), [device.seeds])
    assert same(refresh(SamplingParams(1.0, 8, 0.5)), [device.seeds])


def test_sampler_inputs_must_not_appear_after_capture(lane):
    (trace,) = lane.trace(make_call(lane, [80], params=GREEDY))
    (sampled,) = lane.runtime.prepare(**make_call(lane, [80], params=STOCHASTIC))
    with pytest.raises(RuntimeError, match="compiled sampling path"):
        lane.runtime.refresh_trace(sampled, trace.persistent, trace.workspace)


@pytest.mark.covers("PTR-10", "P34")
def test_chunk_refresh_rebuilds_everything_and_copies_rotary_rows(lane, copies):
    traces = lane.trace(make_call(lane, [2200], start=32))
    call = make_call(lane, [4129], start=32)
    (prepared,) = lane.runtime.prepare(**call)
    trace = next(trace for trace in traces if trace.serves(prepared))
    chunk = prepared.request.chunks[-1]
    assert chunk.chunk_start_idx == 4128
    inputs = trace.persistent.device_inputs
    seen = []
    watch(
        lane.runtime._stager,
        "prepare_host_inputs",
        seen,
        lambda _tokens, table, **options: (options["start_pos"], options["chunk_start_idx"], table.min()),
    )
    before = names(lane.mesh)
    copies.clear()
    lane.runtime.refresh_trace(prepared, trace.persistent, trace.workspace, chunk)
    assert seen == [(4128, 4128, 0)]
    positions = trace.workspace.position_inputs.values()
    assert same(copies.host[:5], inputs.uploaded_values())
    assert same(copies.host[5:], positions)
    assert same(copies.device, [inputs.rotary_cos, inputs.rotary_sin])
    assert names(lane.mesh) == before
    assert inputs.chunk_page_table.cpu().to_numpy().tolist() == [[129] + [-1] * 63]
    assert inputs.chunk_start_idx.cpu().to_numpy().tolist() == [4128]


@pytest.mark.covers("PTR-01", "R01")
@pytest.mark.parametrize("params", [STOCHASTIC, GREEDY])
def test_finish_writes_the_workspaces_output_and_frees_only_its_own(lane, params):
    (trace,) = lane.trace(make_call(lane, [80], params=params))
    call = make_call(lane, [80], params=params, shift=9)
    (prepared,) = lane.runtime.prepare(**call)
    result = trace.run(prepared)
    assert result.value == (trace.workspace.sampled_output, None)
    ownership = result.replay_ownership
    assert ownership.trace_owned_hidden_output is trace.output
    assert ownership.nested_persistent_output is trace.workspace.sampled_output
    assert ownership.new_logprob_output is None
    tokens, _ = lane.runtime.assemble([(prepared, result)], batch_size=1, sampling_params=params)
    assert tokens.tolist() == expected_tokens(call)
    assert trace.output.is_allocated() and trace.workspace.sampled_output.is_allocated()


def test_replayed_log_probs_are_released_after_reading(lane):
    params = SamplingParams(1.0, 8, 0.9, enable_log_probs=True)
    (trace,) = lane.trace(make_call(lane, [80], params=params))
    call = make_call(lane, [80], params=params, shift=2)
    (prepared,) = lane.runtime.prepare(**call)
    result = trace.run(prepared)
    log_probs = result.replay_ownership.new_logprob_output
    assert any(item is log_probs for item in result.owned)
    assert all(item is not log_probs for item in result.replay_ownership.replay_local_intermediates)
    tokens, values = lane.runtime.assemble([(prepared, result)], batch_size=1, sampling_params=params)
    assert values.tolist() == [-echo_row(int(tokens[0]), 79).max()]
    assert not log_probs.is_allocated()


def test_a_sampler_must_return_a_pair_on_replay(lane):
    (trace,) = lane.trace(make_call(lane, [80], params=STOCHASTIC))
    sample = lane.model.sampling.decode_forward
    lane.model.sampling.decode_forward = lambda *args, **options: sample(*args, **options)[0]
    (prepared,) = lane.runtime.prepare(**make_call(lane, [80], params=STOCHASTIC))
    alive = names(lane.mesh)
    with pytest.raises(TypeError, match="tokens, log_probs"):
        trace.run(prepared)
    assert names(lane.mesh) == alive


@pytest.mark.covers("PTR-04")
def test_capture_runs_the_hidden_body_over_all_physical_rows(lane):
    (trace,) = lane.trace(make_call(lane, [80] * 3))
    ran = []
    lane.runtime._sequence_runner.run = lambda *_args, **_options: ran.append(1)
    lane.model.calls.clear()
    hidden = trace.plan.capture(trace.persistent)
    assert [call["user_id"] for call in lane.model.calls] == [[0, 1, 2, 3]]
    assert lane.model.calls[0]["slice"] is False
    assert ran == []
    ns.deallocate(hidden)


@pytest.mark.covers("PTR-05")
def test_capture_of_a_chunk_bakes_in_no_start(lane):
    (trace,) = lane.trace(make_call(lane, [4096]))
    lane.model.calls.clear()
    ns.deallocate(trace.plan.capture(trace.persistent))
    (call,) = lane.model.calls
    assert call["chunk_start_idx"] is None
    assert call["start_tensor"] and call["chunked"]
    assert not call["slice"] and not call["index"]


@pytest.mark.covers("PTR-06", "PTR-07", "PTR-08")
@pytest.mark.parametrize(
    ("primed", "lengths", "expected"),
    [((128,), [80] * 3, True), ((1024,), [700] * 3, True), ((1024,), [80] * 3, False), ((128,), [80], False)],
)
def test_priming_is_for_listed_waves(model, primed, lengths, expected):
    lane = EchoLane(model, trace_capture_prime_sequence_lengths=primed)
    (prepared,) = lane.runtime.prepare(**lane.prompt(lengths))
    plan = lane.runtime.capture_plan(prepared)
    assert (plan.prime is not None) is expected
    assert (plan.release_prime_output is not None) is expected
    if expected:
        persistent = plan.prepare_inputs()
        alive = names(lane.mesh)
        model.calls.clear()
        output = plan.prime(persistent)
        assert model.calls[0]["user_id"] == [0, 1, 2, 3]
        assert output.shape[2] == 4 * prepared.request.padded_sequence_length
        assert plan.release_prime_output(output) == []
        assert names(lane.mesh) == alive


def test_a_request_outside_every_trace_family_has_no_plan(model):
    lane = EchoLane(model, can_enable_trace=lambda length, cached: False)
    (prepared,) = lane.runtime.prepare(**lane.prompt([80]))
    with pytest.raises(ValueError, match="no configured trace family"):
        lane.runtime.capture_plan(prepared)


@pytest.mark.covers("P08")
def test_refreshed_table_has_the_captured_shape(lane):
    (trace,) = lane.trace(make_call(lane, [1500]))
    call = make_call(lane, [1100])
    call["page_table"] = np.arange(40, 80, dtype=np.int32).reshape(1, 40)
    check_result(call, lane.replay([trace], call))
    table = trace.persistent.device_inputs.page_table.cpu().to_numpy()
    assert table.shape == (1, 264)
    assert table[0, :35].tolist() == list(range(40, 75))
    assert (table[0, 35:] == -1).all()


@pytest.mark.covers("ASM-05")
def test_each_replay_is_read_before_the_next_one_starts(lane):
    (trace,) = lane.trace(make_call(lane, [700]))
    call = make_call(lane, [700, 800, 129])
    lane.model.config.max_batch_size = 32
    sequence = EchoLane(lane.model, supports_batched_prefill=False)
    order = []
    watch(sequence.runtime.config.output_reader, "read_synchronized", order, "read")
    watch(trace, "run", order, "replay")
    trace.runtime = sequence.runtime
    check_result(call, sequence.replay([trace], call))
    assert order == ["replay", "read"] * 3


@pytest.mark.covers("O06")
def test_host_arrays_may_change_right_after_the_call(open_mesh):
    lane = EchoLane(EchoModel(open_mesh(execution="deferred")))
    (trace,) = lane.trace(make_call(lane, [80]))
    call = make_call(lane, [90], shift=4)
    wanted = expected_logits(call)
    (prepared,) = lane.runtime.prepare(**call)
    lane.runtime.refresh_trace(prepared, trace.persistent, trace.workspace)
    for name in ("tokens", "page_table"):
        call[name][:] = 0
    ns.execute_trace(lane.mesh, trace.trace_id, cq_id=0, blocking=False)
    result = lane.runtime.finish_trace(prepared, trace.output, trace.workspace)
    assert np.array_equal(lane.runtime.assemble([(prepared, result)], batch_size=1), wanted)
