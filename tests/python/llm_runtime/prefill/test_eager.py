# SPDX-License-Identifier: Apache-2.0
"""Eager prefill on the twin: values of every path, order of work, ownership, cleanup after failures."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.prefill.sampling_params import SamplingParams
from support.prefill_model import (
    VOCAB,
    EchoLane,
    EchoModel,
    EchoSampler,
    echo_row,
    expected_logits,
    expected_tokens,
    names,
    watch,
)

GREEDY = SamplingParams(0.0, 1, 1.0)
STOCHASTIC = SamplingParams(1.0, 8, 0.9)


def prepare_one(lane, lengths, params=None, **options):
    (prepared,) = lane.runtime.prepare(**lane.prompt(lengths), sampling_params=params, **options)
    return prepared


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
@pytest.mark.parametrize(
    ("lengths", "starts"),
    [
        ([1], None),
        ([32], None),
        ([33], None),
        ([128], None),
        ([129], None),
        ([1000], None),
        ([160], [32]),
        ([160], [160]),
        ([2049], None),
        ([5000], [64]),
        ([87, 115, 3], None),
        ([80, 700, 90, 2100], None),
        ([80, 96], [0, 64]),
    ],
)
def test_logits_come_from_the_last_token_of_each_row(open_mesh, execution, lengths, starts):
    lane = EchoLane(EchoModel(open_mesh(execution=execution)))
    call = lane.prompt(lengths)
    if starts is not None:
        call["start_pos"] = np.array(starts)
    before = names(lane.mesh)
    logits = lane.eager(call)
    assert logits.dtype == np.float32
    assert np.array_equal(logits, expected_logits(call))
    assert names(lane.mesh) == before


@pytest.mark.parametrize("params", [GREEDY, STOCHASTIC])
@pytest.mark.parametrize(
    ("lengths", "starts"),
    [([31], None), ([80], None), ([129], None), ([160], [32]), ([2049], None), ([80, 700, 90], None)],
)
def test_sampled_tokens_come_from_the_last_token_of_each_row(lane, params, lengths, starts):
    call = {**lane.prompt(lengths), "sampling_params": params}
    if starts is not None:
        call["start_pos"] = np.array(starts)
    before = names(lane.mesh)
    tokens, log_probs = lane.eager(call)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == expected_tokens(call)
    assert log_probs is None
    assert names(lane.mesh) == before


@pytest.mark.covers("D18", "POST-11")
def test_log_probs_belong_to_the_rows_that_asked(lane):
    params = SamplingParams([1.0] * 3, 8, 0.9, enable_log_probs=[True, False, True])
    call = {**lane.prompt([80, 90, 700]), "sampling_params": params}
    tokens, log_probs = lane.eager(call)
    assert tokens.tolist() == expected_tokens(call)
    assert log_probs.dtype == np.float32
    best = [echo_row(token, n - 1).max() for token, n in zip(tokens.tolist(), call["prompt_lens"], strict=True)]
    assert log_probs.tolist() == [-best[0], 1.0, -best[2]]


@pytest.mark.covers("P01", "P02", "P16", "P17", "P31")
@pytest.mark.parametrize("path", ["single", "batched", "chunked", "cached"])
def test_kv_is_written_into_the_rows_own_blocks_only(mesh, path):
    model = EchoModel(mesh, num_blocks=264)
    lane = EchoLane(model)
    lengths = {"single": [65], "batched": [65, 100], "chunked": [2100], "cached": [160]}[path]
    start = 128 if path == "cached" else 0
    call = lane.prompt(lengths)
    needed = [-(-length // 32) for length in lengths]
    own = [np.arange(100 * row + 10, 100 * row + 10 + count) for row, count in enumerate(needed)]
    poison = 250
    call["page_table"] = np.full((len(lengths), 80), poison, np.int32)
    for row, blocks in enumerate(own):
        call["page_table"][row, : len(blocks)] = blocks
    call["start_pos"] = np.full(len(lengths), start)
    lane.eager({**call, "empty_slots": [9, 4][: len(lengths)]})
    cache = model.cache.cpu().to_numpy()
    for row, blocks in enumerate(own):
        for position in range(start, lengths[row]):
            written = cache[blocks[position // 32], 0, position % 32]
            assert np.array_equal(written, echo_row(int(call["tokens"][row, position]), position))
    untouched = np.setdiff1d(np.arange(264), np.concatenate([blocks[start // 32 :] for blocks in own]))
    assert not cache[untouched].any()


@pytest.mark.covers("P15")
def test_results_keep_the_order_of_the_call_whatever_the_slots(lane):
    call = {**lane.prompt([700, 80, 90]), "empty_slots": [5, 0, 9]}
    assert np.array_equal(lane.eager(call), expected_logits(call))


@pytest.mark.covers("POST-10", "SEQ-01", "SEQ-02")
def test_whole_tile_sampling_writes_the_preallocated_output(lane):
    prepared = prepare_one(lane, [80], STOCHASTIC)
    runner = lane.runtime._sequence_runner
    events = []
    watch(runner._stager, "stage_step", events, "stage")
    watch(runner._postprocessor.sampling_inputs, "make_device_values", events, "sampling-values")
    watch(runner, "_run_hidden_body", events, "execute")
    watch(runner._postprocessor, "make_sampling_output", events, "allocate")
    watch(runner._postprocessor, "finish_prefill_sequence", events, "finish")
    result = lane.runtime.invoke(prepared)
    assert events == ["stage", "sampling-values", "execute", "allocate", "finish"]
    assert lane.model.extractions == [(79, False, False)]
    assert lane.model.sampling.calls[0]["rows"] == 32
    device_inputs, positions, kpt, hidden, output = result.owned[:5]
    assert device_inputs.tokens.shape == (1, 1, 1, 128)
    assert positions.row_index.shape == (1, 1)
    assert [tensor.shape for tensor in kpt] == [(32,)] * 4
    assert hidden.shape == (1, 1, 128, VOCAB)
    assert result.value == (output, None)
    assert output.shape == (1, 1, 1, 32)
    tokens, _ = lane.runtime.assemble([(prepared, result)], batch_size=1, sampling_params=STOCHASTIC)
    assert tokens.tolist() == [79 % VOCAB]
    assert not output.is_allocated() and not hidden.is_allocated()


@pytest.mark.covers("SEQ-03")
@pytest.mark.parametrize(
    ("length", "start", "params", "allocated"),
    [(80, 0, STOCHASTIC, True), (80, 0, GREEDY, False), (160, 32, STOCHASTIC, False)],
)
def test_only_regular_top_k_preallocates(lane, length, start, params, allocated):
    events = []
    watch(lane.runtime._postprocessor, "make_sampling_output", events)
    lane.runtime.invoke(prepare_one(lane, [length], params, start_pos=np.array([start])))
    assert bool(events) is allocated


@pytest.mark.covers("SEQ-04", "SEQ-05", "SEQ-06", "SEQ-07")
def test_chunks_run_in_order_and_only_the_last_output_is_kept(lane):
    prepared = prepare_one(lane, [4097])
    runner = lane.runtime._sequence_runner
    events, positions, released = [], [], []
    watch(runner._postprocessor.sampling_inputs, "make_device_values", events, "sampling-values")
    watch(runner._stager, "stage_step", events, lambda _request, chunk, _last: ("stage", chunk.chunk_start_idx))
    watch(runner._stager, "stage_step", positions, lambda _request, _chunk, last: last)
    watch(runner, "_run_chunk_body", events, lambda _p, chunk, *_rest: ("execute", chunk.chunk_start_idx))
    watch(runner, "_release", events, "release")
    watch(runner, "_release", released, lambda output: output)
    watch(runner._postprocessor, "finish_prefill_sequence", events, "finish")
    result = lane.runtime.invoke(prepared)
    assert events == [
        "sampling-values",
        *[("stage", 0), ("execute", 0), "release"],
        *[("stage", 2048), ("execute", 2048), "release"],
        *[("stage", 4096), ("execute", 4096), "finish"],
    ]
    assert positions == [0, 0, 0]
    assert len(released) == 2 and not any(output.is_allocated() for output in released)
    kinds = [type(value).__name__ for value in result.owned]
    assert kinds == ["PrefillDeviceInputs", "PrefillPositionInputs"] * 3 + ["Tensor", "Tensor"]
    assert all(output is not kept for output in released for kept in result.owned)
    assert result.owned[-1] is result.value


@pytest.mark.covers("SEQ-14")
def test_cached_prompt_uses_the_chunked_body(lane):
    lane.runtime.invoke(prepare_one(lane, [160], start_pos=np.array([32])))
    assert lane.model.calls == [
        {
            "user_id": 0,
            "batch_size": 1,
            "chunk_start_idx": 32,
            "chunked": True,
            "start_tensor": True,
            "slice": True,
            "index": False,
            "get_last_token": -1,
        }
    ]


@pytest.mark.covers("SEQ-15", "POST-12", "POST-13")
def test_wave_fills_active_rows_and_extracts_all(lane):
    events = []
    watch(lane.model, "embed_prefill", events)
    result = lane.runtime.invoke(prepare_one(lane, [80] * 3))
    assert events == ["embed_prefill"]
    (call,) = lane.model.calls
    assert call["user_id"] == [0, 1, 2]
    assert call["batch_size"] == 4
    assert not call["chunked"] and not call["slice"]
    assert call["get_last_token"] == -1
    assert lane.model.extractions == [([79, 79, 79, 0], 4, 128)]
    assert result.value.layout.name == "ROW_MAJOR"


@pytest.mark.covers("POST-14")
def test_wave_extracts_each_rows_own_last_token(lane):
    lane.runtime.invoke(prepare_one(lane, [87, 115], empty_slots=[7, 3]))
    assert lane.model.extractions == [([86, 114], 2, 128)]


@pytest.mark.covers("POST-15")
def test_wave_without_batched_extraction_is_extracted_row_by_row(model):
    lane = EchoLane(model, batched_prefill_batched_extract=False)
    call = lane.prompt([80, 80])
    prepared = lane.runtime.prepare(**call)[0]
    result = lane.runtime.invoke(prepared)
    assert model.extractions == [(79, True, True)] * 2
    assert len(result.value) == 2
    logits = lane.runtime.assemble([(prepared, result)], batch_size=2)
    assert np.array_equal(logits, expected_logits(call))


@pytest.mark.covers("T04", "T10")
def test_a_compiled_wave_extracted_row_by_row_serves_any_rows_and_positions(model):
    lane = EchoLane(model, batched_prefill_batched_extract=False)
    (prepared,) = lane.runtime.prepare(**lane.prompt([80] * 3))
    result = lane.runtime.invoke(prepared, count_tokens=False)
    assert len(result.value) == 4  # the padding row too, which another call fills
    assert lane.runtime._release_transient(result.owned) == []
    programs = lane.mesh.num_program_cache_entries()
    for lengths in ([80, 90, 100, 110], [1, 32, 33], [128, 65, 64, 97]):
        call = lane.prompt(lengths)
        assert np.array_equal(lane.eager(call), expected_logits(call))
        assert lane.mesh.num_program_cache_entries() == programs


@pytest.mark.covers("POST-16", "POST-17")
@pytest.mark.parametrize(
    ("params", "order"),
    [
        (None, ["stage", "sampling-values", "execute", "post-process", "untilize"]),
        (GREEDY, ["stage", "sampling-values", "execute", "post-process", "pad", "sample"]),
    ],
)
def test_order_of_a_regular_run(lane, params, order):
    import ttnn_twin

    prepared = prepare_one(lane, [129], params)
    runner, events = lane.runtime._sequence_runner, []
    watch(runner._stager, "stage_step", events, "stage")
    watch(runner._postprocessor.sampling_inputs, "make_device_values", events, "sampling-values")
    watch(runner, "_run_hidden_body", events, "execute")
    watch(runner._postprocessor, "make_sampling_output", events, "allocate")
    watch(lane.model.sampling, "decode_forward", events, "sample")
    calls = lane.mesh.counters.calls
    pads, cuts = calls["pad"], calls["untilize"]
    watch(lane.model, "post_process_prefill_output", events, "post-process")
    lane.runtime.invoke(prepared)
    events[4:4] = ["pad"] * (calls["pad"] - pads)
    # One untilize belongs to the model's own row extraction, a sampler makes one more.
    events += ["untilize"] * (calls["untilize"] - cuts - 1 - (params is not None))
    assert events == order
    assert ttnn_twin.ROW_MAJOR_LAYOUT is not None


@pytest.mark.parametrize("position", [0, 31, 32, 79, 127, 128, 1000])
def test_no_position_needs_a_program_of_its_own(lane, position):
    for length in (100, 900):
        for params in (None, GREEDY):
            lane.eager({**lane.prompt([length]), "sampling_params": params})
    programs = lane.mesh.num_program_cache_entries()
    for params in (None, GREEDY):
        lane.eager({**lane.prompt([position + 1]), "sampling_params": params})
    assert lane.mesh.num_program_cache_entries() == programs


def sampled_seeds(lane, lengths, seeds, **options):
    params = SamplingParams([1.0] * len(lengths), 8, 0.9, seed=seeds)
    done = len(lane.model.sampling.calls)
    lane.eager({**lane.prompt(lengths), "sampling_params": params, **options})
    return [call["seeds"] for call in lane.model.sampling.calls[done:]]


@pytest.mark.covers("D15", "D16")
def test_seed_of_a_single_row_fills_the_sampler_and_knows_no_neighbour(lane):
    (alone,) = sampled_seeds(lane, [80], [7], empty_slots=[3])
    assert len(set(alone)) == 1
    first, second = sampled_seeds(lane, [80, 700], [7, None], empty_slots=[1, 2])
    assert first == alone
    assert second != alone
    assert sampled_seeds(lane, [80, 700], [7, 9]) == [alone, sampled_seeds(lane, [700], [9])[0]]


@pytest.mark.covers("D14")
def test_seeds_of_a_wave_depend_on_seed_and_position_alone(lane):
    (wave,) = sampled_seeds(lane, [80, 90, 80], [7, 7, None])
    assert wave[0] == sampled_seeds(lane, [80], [7])[0][0]
    assert wave[1] == sampled_seeds(lane, [90], [7])[0][0]
    assert wave[0] != wave[1]
    (again,) = sampled_seeds(lane, [80, 90, 80], [7, 7, None])
    assert again[:2] == wave[:2]
    assert again[2] != wave[2]
    (equal,) = sampled_seeds(lane, [80] * 4, [5] * 4)
    assert len(set(equal[:4])) == 1
    (fresh,) = sampled_seeds(lane, [80] * 4, None)
    assert len(set(fresh[:4])) == 4


def test_prefill_leaves_the_samplers_own_seed_buffer_alone(lane):
    sampled_seeds(lane, [80, 700], [7, None])
    assert lane.model.sampling.config.seeds.updates == []


def test_sampler_without_seeds_gets_none(mesh):
    lane = EchoLane(EchoModel(mesh, sampler=EchoSampler(mesh, seeds=False)))
    lane.eager({**lane.prompt([80]), "sampling_params": STOCHASTIC})
    assert lane.model.sampling.calls[0]["seeds"] is None


@pytest.mark.covers("POST-07", "PRE-06")
def test_sampler_rows_hold_the_requests_values(lane):
    params = SamplingParams([0.5, 0.0, 1.0], [3, 9, 5], [0.5, 0.25, 0.125])
    lane.eager({**lane.prompt([80, 90, 700]), "sampling_params": params})
    wave, single = lane.model.sampling.calls
    assert wave["k"] == [3, 1] + [1] * 30
    assert wave["p"] == [0.5, 0.0] + [0.0] * 30
    assert wave["temp"] == [2.0, 1.0] + [1.0] * 30
    assert single["k"] == [5] * 32
    assert single["p"] == [0.125] * 32


@pytest.mark.parametrize("rows", [2, 5])
def test_fill_rows_lie_between_active_and_padded_rows(lane, rows):
    prepared = prepare_one(lane, [80] * 3)
    with pytest.raises(ValueError, match=f"between 3 active and 4 padded rows, got {rows}"):
        lane.runtime._sequence_runner._run_hidden_body(prepared.request, None, fill_rows=rows)


@pytest.mark.covers("PRE-14")
def test_invoke_hands_the_request_to_the_one_sequence_runner(lane):
    prepared, seen = prepare_one(lane, [80]), []
    result = object()

    def run(item, *, count_tokens=True):
        seen.append((item, count_tokens))
        return result

    lane.runtime._sequence_runner.run = run
    assert lane.runtime.invoke(prepared) is result
    assert lane.runtime.invoke(prepared, count_tokens=False) is result
    assert seen[0][0] is prepared
    assert [count for _, count in seen] == [True, False]


def test_small_sampler_reads_its_own_rows(mesh):
    lane = EchoLane(EchoModel(mesh, sampler=EchoSampler(mesh, rows=16)))
    call = {**lane.prompt([80]), "sampling_params": STOCHASTIC}
    assert lane.eager(call)[0].tolist() == expected_tokens(call)
    assert lane.model.extractions == [(79, True, True)]
    assert lane.model.sampling.calls[0]["rows"] == 16


@pytest.mark.covers("P30")
@pytest.mark.parametrize("length", [127, 128, 129, 1024, 1025, 4096, 4097, 4109])
def test_no_length_fails_for_being_just_over_a_bucket(lane, length):
    call = lane.prompt([length])
    assert np.array_equal(lane.eager(call), expected_logits(call))
