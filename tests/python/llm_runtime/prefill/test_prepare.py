# SPDX-License-Identifier: Apache-2.0
"""Preparation of whole calls: planning switches, sampling classification, identities, trace queries."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from llm_runtime.prefill import __dict__ as package_names
from llm_runtime.prefill.runtime import PrefillRuntime
from llm_runtime.prefill.sampling_params import SamplingParams
from llm_runtime.prefill.signatures import capture_schema_fingerprint, workspace_fingerprint
from support.prefill_model import EchoLane, EchoModel, EchoSampler

GREEDY = SamplingParams(0.0, 32, 0.08)
STOCHASTIC = SamplingParams(1.0, 32, 0.08)


def sampled(lane, lengths, params=STOCHASTIC, **options):
    return lane.runtime.prepare(**lane.prompt(lengths), sampling_params=params, **options)


def kinds(prepared):
    return [(item.request.kind, item.request.source_rows) for item in prepared]


@pytest.fixture
def two_rows(lane):
    return lane.prompt([80, 80])


@pytest.mark.covers("PRE-24")
def test_call_shapes():
    prepare = inspect.signature(PrefillRuntime.prepare).parameters
    names = "tokens page_table prompt_lens start_pos empty_slots sampling_params prompt_tokens output_tokens slot_remap"
    assert sorted(prepare) == sorted(["self", *names.split()])
    required = [name for name, item in prepare.items() if item.default is item.empty and name != "self"]
    assert sorted(required) == ["page_table", "tokens"]
    assert list(inspect.signature(PrefillRuntime.can_trace).parameters)[1:] == ["tokens", "prompt_lens", "start_pos"]
    for method in (PrefillRuntime.prepare, PrefillRuntime.can_trace):
        assert all(item.kind is item.KEYWORD_ONLY for item in list(inspect.signature(method).parameters.values())[1:])


@pytest.mark.covers("PRE-25")
def test_runtime_takes_one_config_and_the_package_exports_nothing():
    assert list(inspect.signature(PrefillRuntime).parameters) == ["config"]
    assert not [name for name in package_names if name.startswith("Prefill")]
    with pytest.raises(TypeError, match="PrefillRuntimeConfig"):
        PrefillRuntime(object())


@pytest.mark.covers("PLAN-50")
def test_batching_switch_is_read_at_each_prepare(lane, two_rows, monkeypatch):
    monkeypatch.delenv("DISABLE_BATCHED_PREFILL", raising=False)
    assert kinds(lane.runtime.prepare(**two_rows)) == [("batched", (0, 1))]
    monkeypatch.setenv("DISABLE_BATCHED_PREFILL", "1")
    assert kinds(lane.runtime.prepare(**two_rows)) == [("single", (0,)), ("single", (1,))]


@pytest.mark.parametrize(
    ("words", "batched"),
    [(["", "0", "false", "No", "OFF"], True), (["1", "true", "Yes", "on"], False)],
)
def test_batching_switch_words(lane, two_rows, monkeypatch, words, batched):
    for word in words:
        monkeypatch.setenv("DISABLE_BATCHED_PREFILL", word)
        assert (len(lane.runtime.prepare(**two_rows)) == 1) is batched, word


def test_batching_switch_refuses_other_words(lane, two_rows, monkeypatch):
    monkeypatch.setenv("DISABLE_BATCHED_PREFILL", "maybe")
    with pytest.raises(ValueError, match="DISABLE_BATCHED_PREFILL='maybe'"):
        lane.runtime.prepare(**two_rows)


@pytest.mark.covers("PLAN-51", "PLAN-52")
def test_sampled_rows_are_single_without_batched_extraction(model, two_rows):
    lane = EchoLane(model, batched_prefill_batched_extract=False)
    assert kinds(lane.runtime.prepare(**two_rows, empty_slots=[7, 3])) == [("batched", (0, 1))]
    prepared = sampled(lane, [80, 80], SamplingParams([1.0, 1.0], 32, 0.08), empty_slots=[7, 3])
    assert kinds(prepared) == [("single", (0,)), ("single", (1,))]
    assert [item.request.slots for item in prepared] == [(7,), (3,)]


@pytest.mark.covers("PRE-12")
def test_sampling_is_refused_when_disabled(model):
    lane = EchoLane(model, device_sampling_enabled=False)
    with pytest.raises(ValueError, match="device sampling is disabled"):
        sampled(lane, [80])


@pytest.mark.covers("PRE-09", "SIG-17")
def test_greedy_single_row_takes_argmax(lane):
    (prepared,) = sampled(lane, [80], GREEDY)
    assert prepared.sampling_path == "argmax"
    (signature,) = prepared.program_signatures
    assert signature.sampling_path == "argmax"
    assert signature.last_token_tile_start == 64
    traces = {
        lane.runtime.prepare(**lane.prompt([80]))[0].trace_signature,
        prepared.trace_signature,
        sampled(lane, [80])[0].trace_signature,
    }
    assert {signature.sampling_path for signature in traces} == {"logits", "argmax", "topk"}


@pytest.mark.covers("PRE-10")
def test_argmax_needs_the_samplers_permission(mesh):
    lane = EchoLane(EchoModel(mesh, sampler=EchoSampler(mesh, allow_force_argmax=False)))
    assert sampled(lane, [80], GREEDY)[0].sampling_path == "topk"


@pytest.mark.covers("PRE-11", "POST-20")
def test_stochastic_rows_and_waves_take_top_k(lane):
    assert sampled(lane, [80])[0].sampling_path == "topk"
    (wave,) = sampled(lane, [80, 80], SamplingParams([0.0, 0.0], 1, 1.0))
    assert wave.request.kind == "batched"
    assert wave.sampling_path == "topk"


def test_scalar_temperature_samples_every_row_of_a_wave(lane):
    (wave,) = sampled(lane, [80, 80, 80], SamplingParams(0.5, 4, 0.9))
    assert wave.prepared_sampling.active_rows == 3
    assert wave.prepared_sampling.temperature[:4] == (2.0, 2.0, 2.0, 1.0)


@pytest.mark.covers("P18")
def test_each_request_gets_its_own_sampling_rows(lane):
    params = SamplingParams([0.5, 0.25, 1.0], [3, 4, 5], 0.9, seed=[7, 8, 9])
    wave, single = sampled(lane, [80, 700, 90], params)
    assert wave.request.source_rows == (0, 2)
    assert wave.prepared_sampling.top_k[:2] == (3, 5)
    assert wave.prepared_sampling.seeds[:2] == (7, 9)
    assert single.prepared_sampling.temperature[0] == 4.0
    assert single.sampling_params.seed == [8]


@pytest.mark.covers("D17")
def test_refused_sampling_names_the_source_row(lane):
    with pytest.raises(ValueError, match=r"row 1: top_k 40 is outside \[1, 32\]"):
        sampled(lane, [80, 700], SamplingParams([1.0, 1.0], [5, 40], 1.0))
    with pytest.raises(ValueError, match="row 1 asks for num_logprobs 2"):
        sampled(lane, [80, 700], SamplingParams([1.0, 1.0], 5, 1.0, enable_log_probs=True, num_logprobs=[0, 2]))


def test_penalties_and_seeds_need_their_device_state(lane, mesh):
    with pytest.raises(ValueError, match=r"rows \[0\]: penalties"):
        sampled(lane, [80], SamplingParams(1.0, 5, 1.0, presence_penalty=0.5))
    bare = EchoLane(EchoModel(mesh, sampler=EchoSampler(mesh, seeds=False)))
    with pytest.raises(TypeError, match="row 0: seed 5"):
        sampled(bare, [80], SamplingParams(1.0, 5, 1.0, seed=5))
    assert sampled(bare, [80])[0].sampling_path == "topk"


def test_history_is_kept_for_each_request(lane):
    call = lane.prompt([80, 700])
    wave = lane.runtime.prepare(**call, sampling_params=SamplingParams([1.0, 1.0], 5, 1.0))
    history = wave[0].prepared_sampling.prompt_tokens
    assert history[0, :80].tolist() == call["tokens"][0, :80].tolist()
    assert (history[0, 80:] == -1).all()
    assert wave[0].prepared_sampling.output_tokens is None


def test_remap_goes_with_the_first_request_only(lane):
    remap = list(range(32))
    first, second = sampled(lane, [80, 700], SamplingParams([1.0, 1.0], 5, 1.0), slot_remap=remap)
    assert first.prepared_sampling.slot_remap is remap
    assert second.prepared_sampling.slot_remap is None


@pytest.mark.covers("SIG-01", "SIG-16")
def test_sampling_is_part_of_the_program_but_no_tile_of_logits(lane):
    (plain,) = lane.runtime.prepare(**lane.prompt([80]))
    assert dict(plain.program_signatures[0].key_material())["sampling_path"] == "logits"
    assert plain.program_signatures[0].last_token_tile_start is None
    assert plain.program_signatures != sampled(lane, [80])[0].program_signatures


@pytest.mark.covers("SIG-02", "SIG-03")
def test_trace_variant_follows_the_cached_prefix(lane):
    (cached,) = lane.runtime.prepare(**lane.prompt([112]), start_pos=np.array([32]))
    assert cached.trace_signature.operation_variant == "chunked"
    assert cached.request.uses_chunked_prefill
    (plain,) = lane.runtime.prepare(**lane.prompt([80]))
    assert plain.trace_signature.operation_variant == "regular-single"
    assert not plain.request.uses_chunked_prefill


@pytest.mark.covers("SIG-04", "SIG-05")
def test_long_prompt_is_traced_by_its_chunk_length(model):
    short = EchoLane(model, can_enable_trace=lambda length, cached: length in (128, 1024))
    assert short.runtime.prepare(**short.prompt([4096]))[0].trace_signature is None
    lane = EchoLane(model)
    (prepared,) = lane.runtime.prepare(**lane.prompt([4096]))
    assert prepared.trace_signature.operation_variant == "chunked"
    assert prepared.trace_signature.padded_sequence_length == 2048
    assert len(prepared.request.chunks) == 2
    assert len(prepared.program_signatures) == 1
    assert (prepared.request.page_table >= 0).all()


@pytest.mark.covers("SIG-06", "SIG-07", "SIG-18")
def test_active_rows_and_slots_are_no_identity(lane):
    (three,) = lane.runtime.prepare(**lane.prompt([80] * 3), empty_slots=[7, 3, 11])
    (four,) = lane.runtime.prepare(**lane.prompt([80] * 4), empty_slots=[7, 3, 11, 5])
    assert three.program_signatures == four.program_signatures
    assert three.trace_signature == four.trace_signature
    assert (three.request.page_table[3] == -1).all()
    names = [name for name, _ in three.program_signatures[0].key_material()]
    names += [name for name, _ in three.trace_signature.key_material()]
    assert not [name for name in names if "active" in name or "slot" in name or "row" in name]


@pytest.mark.covers("SIG-15")
def test_tile_separates_programs_and_shares_the_trace(lane):
    (low,), (high,) = sampled(lane, [32]), sampled(lane, [96])
    assert low.program_signatures[0].last_token_tile_start == 0
    assert high.program_signatures[0].last_token_tile_start == 64
    assert low.program_signatures != high.program_signatures
    assert low.trace_signature == high.trace_signature


@pytest.mark.covers("SIG-19")
def test_cached_offsets_share_program_and_trace(lane):
    one, two = lane.prompt([112]), lane.prompt([144])
    starts = [np.array([32]), np.array([64])]
    assert lane.runtime.can_trace(tokens=one["tokens"], prompt_lens=one["prompt_lens"], start_pos=starts[0])
    assert lane.runtime.can_trace(tokens=two["tokens"], prompt_lens=two["prompt_lens"], start_pos=starts[1])
    (first,) = lane.runtime.prepare(**one, start_pos=starts[0])
    (second,) = lane.runtime.prepare(**two, start_pos=starts[1])
    assert first.program_signatures == second.program_signatures
    assert first.trace_signature == second.trace_signature
    table = second.request.chunks[-1].chunk_page_table
    assert table.shape[1] == 4
    assert table[0, -1] == -1
    assert (second.request.page_table >= 0).all()


@pytest.mark.covers("SIG-13", "SIG-14")
def test_fingerprints(lane):
    (chunked,) = lane.runtime.prepare(**lane.prompt([112]), start_pos=np.array([32]))
    label, signature, names = capture_schema_fingerprint(chunked)
    assert label == "prefill-hidden-v2"
    assert signature == chunked.trace_signature
    assert names == (
        "operation_variant",
        "padded_batch_size",
        "padded_sequence_length",
        "page_table_width",
        "chunk_page_table_width",
    )
    (topk,), (plain,) = sampled(lane, [80]), lane.runtime.prepare(**lane.prompt([80]))
    assert capture_schema_fingerprint(topk) == capture_schema_fingerprint(plain)
    assert "chunk_page_table_width" not in capture_schema_fingerprint(plain)[2]
    assert workspace_fingerprint(topk, sampling_output_rows=32) == ("prefill-postprocess-v1", "topk", 32, True)


def ask(lane, lengths, **options):
    return lane.runtime.can_trace(tokens=np.zeros((len(lengths), max(lengths)), np.int64), **options)


@pytest.mark.covers("PRE-01", "PRE-02", "PRE-03", "PRE-04")
@pytest.mark.parametrize(
    ("lengths", "starts", "expected"),
    [
        ([80, 80], None, True),
        ([80, 80], [0, 0], True),
        ([80, 80], [0, 32], True),
        ([80, 80], [0, 1], False),
        ([2049], None, False),
    ],
)
def test_trace_query(model, lengths, starts, expected):
    lane = EchoLane(model, can_enable_trace=lambda length, cached: length in (128, 1024))
    assert ask(lane, lengths, start_pos=None if starts is None else np.array(starts)) is expected


@pytest.mark.parametrize(
    "options",
    [
        {"tokens": None},
        {"tokens": np.zeros(5, np.int64)},
        {"tokens": np.zeros((0, 5), np.int64)},
        {"tokens": np.zeros((1, 5))},
        {"prompt_lens": [5]},
        {"prompt_lens": np.array([[5]])},
        {"prompt_lens": np.array([5, 5])},
        {"prompt_lens": np.array([0])},
        {"prompt_lens": np.array([81])},
        {"start_pos": np.array([-32])},
        {"start_pos": np.array([96])},
        {"start_pos": "zero"},
    ],
)
def test_trace_query_answers_false_for_malformed_input(lane, options):
    assert lane.runtime.can_trace(**{"tokens": np.zeros((1, 80), np.int64), **options}) is False


def test_trace_query_uses_the_planners_starts(model):
    asked = []
    lane = EchoLane(model, can_enable_trace=lambda length, cached: asked.append((length, cached)) or True)
    assert ask(lane, [160], start_pos=np.array([160]))
    assert ask(lane, [4096])
    assert asked == [(128, 0), (2048, 0)]
    coarse = EchoLane(model, prefill_start_alignment=128, can_enable_trace=lane.runtime.config.can_enable_trace)
    assert ask(coarse, [256], start_pos=np.array([224]))
    assert asked[-1] == (128, 0)


def test_result_kind_follows_the_tokens(lane):
    (prepared,) = lane.runtime.prepare(**lane.prompt([80]))
    array = np.zeros(3)
    assert prepared.result_like(array) is array
