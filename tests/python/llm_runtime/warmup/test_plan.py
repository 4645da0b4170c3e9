# SPDX-License-Identifier: Apache-2.0
"""Warmup plans as tables: buckets, waves, cached starts, sampling paths and variants."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from llm_runtime.config import TraceConfig, WarmupConfig
from llm_runtime.warmup import ServingLimits, resolve_prefill_warmup_seq_lens
from llm_runtime.warmup.geometry import (
    invocation_length,
    missing_buckets,
    reachable_buckets,
    uncovered_chunk_lengths,
)
from llm_runtime.warmup.plan import PlanInputs, build_plan, wave_gaps
from support.warm_lane import layout_of

LIMITS = ServingLimits(
    max_prefill_chunk_size=2048, prefill_start_alignment=32, max_wave_rows=32, max_sampled_wave_rows=32
)


def inputs(**changes):
    values = {
        "warmup": WarmupConfig(),
        "layout": layout_of(128, chunk=2048),
        "lengths": (128,),
        "lane_batch_size": 4,
        "allow_force_argmax": True,
        "limits": LIMITS,
        "penalties": False,
        "log_probs": False,
    }
    return PlanInputs(**{**values, **changes})


def prefill_of(plan):
    return [(case.batch_size, case.sequence_length, case.sampling_path, case.cached_tokens) for case in plan.prefill]


@pytest.mark.parametrize(
    ("lane", "sampling", "argmax", "expected"),
    [
        (1, False, False, [(1, "logits")]),
        (4, False, False, [(1, "logits"), (2, "logits"), (4, "logits")]),
        (1, True, True, [(1, "logits"), (1, "topk"), (1, "argmax")]),
        (2, True, True, [(1, "logits"), (1, "topk"), (1, "argmax"), (2, "logits"), (2, "topk")]),
        (2, True, False, [(1, "logits"), (1, "topk"), (2, "logits"), (2, "topk")]),
    ],
)
def test_prefill_paths_by_wave(lane, sampling, argmax, expected):
    plan = build_plan(inputs(lane_batch_size=lane, allow_force_argmax=argmax), device_sampling=sampling)
    fresh = [(case.batch_size, case.sampling_path) for case in plan.prefill if not case.cached_tokens]
    assert fresh == expected


@pytest.mark.covers("WRM-13", "WRM-29")
@pytest.mark.parametrize(
    ("sampling", "argmax", "top_k", "paths"),
    [
        (False, False, True, ["logits"]),
        (True, True, False, ["logits", "argmax"]),
        (True, True, True, ["logits", "argmax", "topk"]),
        (True, False, False, ["logits", "topk"]),
    ],
)
def test_decode_paths(sampling, argmax, top_k, paths):
    plan = build_plan(
        inputs(warmup=WarmupConfig(include_decode_top_k=top_k), allow_force_argmax=argmax), device_sampling=sampling
    )
    assert [case.sampling_path for case in plan.decode] == paths
    assert {(case.batch_size, case.sequence_length) for case in plan.decode} == {(4, None)}


@pytest.mark.covers("WRM-26", "W02", "T25")
def test_waves_stop_at_the_lane_and_at_what_the_planner_forms():
    plan = build_plan(
        inputs(
            lengths=(128, 1024),
            lane_batch_size=8,
            layout=layout_of(128),
            limits=replace(LIMITS, max_prefill_chunk_size=128),
        ),
        device_sampling=False,
    )
    fresh = [(case.sequence_length, case.batch_size) for case in plan.prefill if not case.cached_tokens]
    assert fresh == [(128, 1), (128, 2), (128, 4), (128, 8), (1024, 1)]


@pytest.mark.parametrize(
    ("limits", "lane", "waves"),
    [
        (LIMITS, 32, {128: 32, 1024: 32, 2048: 32}),
        (replace(LIMITS, max_prefill_chunk_size=8192), 32, {128: 32, 1024: 32, 2048: 32, 4096: 16, 8192: 8}),
        (replace(LIMITS, max_wave_rows=8), 32, {128: 8, 1024: 8, 2048: 8}),
        (replace(LIMITS, max_wave_rows=1), 32, {128: 1, 1024: 1, 2048: 1}),
        (LIMITS, 3, {128: 2, 1024: 2, 2048: 2}),
    ],
)
def test_every_bucket_that_serving_can_batch_has_its_waves(limits, lane, waves):
    plan = build_plan(inputs(limits=limits, lengths=tuple(waves), lane_batch_size=lane), device_sampling=False)
    largest = {
        length: max(case.batch_size for case in plan.prefill if case.sequence_length == length) for length in waves
    }
    assert largest == waves


def test_sampled_waves_need_batched_extraction():
    plan = build_plan(inputs(limits=replace(LIMITS, max_sampled_wave_rows=1)), device_sampling=True)
    assert {(case.batch_size, case.sampling_path) for case in plan.prefill if case.batch_size > 1} == {
        (2, "logits"),
        (4, "logits"),
    }


@pytest.mark.covers("T20")
def test_gaps_name_the_waves_that_the_configuration_leaves_out():
    limited = inputs(warmup=WarmupConfig(prefill_batch_sizes=(1,)), lengths=(128, 1024))
    gaps = wave_gaps(limited, device_sampling=False)
    assert [(case.sequence_length, case.batch_size) for case in gaps] == [(128, 2), (128, 4), (1024, 2), (1024, 4)]
    assert wave_gaps(inputs(), device_sampling=True) == ()


@pytest.mark.parametrize(
    ("raw", "lengths", "cached"),
    [
        (1, (128,), []),
        (2, (128, 1024), [128]),
        (5, (128, 1024), [128]),
        (6, (128, 1024), [128, 1024]),
        (47, (128, 1024, 2048), [128, 1024, 2048]),
        (33, (128, 1024, 2048), [128, 1024]),
        (34, (128, 1024, 2048), [128, 1024, 2048]),
    ],
)
def test_cached_coverage_follows_the_longest_uncached_rest(raw, lengths, cached):
    plan = build_plan(inputs(layout=layout_of(raw, chunk=2048), lengths=lengths), device_sampling=False)
    assert [case.sequence_length for case in plan.prefill if case.cached_tokens] == cached
    assert {case.cached_tokens for case in plan.prefill} <= {0, 32}


@pytest.mark.covers("W03")
@pytest.mark.parametrize("raw", [128, 64], ids=["two chunks", "one chunk"])
def test_the_chunk_bucket_is_warmed_from_zero_and_behind_a_prefix(raw):
    # Any block-aligned prefix may be cached, so the second case needs the later start as well.
    plan = build_plan(
        inputs(layout=layout_of(raw, chunk=2048), lengths=(128, 1024, 2048), lane_batch_size=1), device_sampling=False
    )
    assert [case for case in prefill_of(plan) if case[1] == 2048] == [(1, 2048, "logits", 0), (1, 2048, "logits", 32)]


def test_a_coarser_start_alignment_sets_the_cached_start():
    plan = build_plan(inputs(limits=replace(LIMITS, prefill_start_alignment=64)), device_sampling=True)
    cached = [case for case in prefill_of(plan) if case[3]]
    assert cached == [(1, 128, "logits", 64), (1, 128, "topk", 64), (1, 128, "argmax", 64)]


@pytest.mark.parametrize(
    ("penalties", "log_probs", "variants"),
    [
        (False, False, [(False, False)]),
        (True, False, [(False, False), (True, False)]),
        (False, True, [(False, False), (False, True)]),
        (True, True, [(False, False), (False, True), (True, False), (True, True)]),
    ],
)
def test_variants_multiply_sampled_cases_only(penalties, log_probs, variants):
    plan = build_plan(inputs(penalties=penalties, log_probs=log_probs), device_sampling=True)
    for cases in (plan.prefill, plan.decode):
        for path in {case.sampling_path for case in cases}:
            first = next(case for case in cases if case.sampling_path == path)
            same = [
                (case.penalties_enabled, case.logprobs_enabled)
                for case in cases
                if replace(case, penalties_enabled=False, logprobs_enabled=False)
                == replace(first, penalties_enabled=False, logprobs_enabled=False)
            ]
            assert same == ([(False, False)] if path == "logits" else variants)


@pytest.mark.parametrize(
    ("longest", "buckets"),
    [(1, (128,)), (128, (128,)), (129, (128, 1024)), (1500, (128, 1024, 2048)), (4096, (128, 1024, 2048, 4096))],
)
def test_buckets_that_some_prompt_pads_into(longest, buckets):
    assert reachable_buckets(longest) == buckets


@pytest.mark.parametrize(
    ("lengths", "cap", "longest", "missing"),
    [
        ((128,), 128, 4096, ()),
        ((1024,), 128, 4096, (128,)),
        ((128, 1024), 2048, 1024, ()),
        ((128, 1024), 2048, 1025, (2048,)),
        ((100, 1000), 2048, 1024, ()),
    ],
)
def test_missing_buckets(lengths, cap, longest, missing):
    assert missing_buckets(lengths, max_chunk_size=cap, longest=longest) == missing


@pytest.mark.parametrize(
    ("lengths", "cap", "longest", "extra"),
    [
        ((128, 1024, 2048), 2048, 4096, ()),
        ((128,), 128, 4096, ()),
        ((128,), 256, 4096, (1024,)),
        ((128,), 512, 600, (1024,)),
        ((128, 1024), 256, 4096, ()),
        ((128, 1024, 2048, 4096), 6144, 16384, ()),
    ],
)
def test_chunk_sizes_that_no_bucket_brings_get_a_length_of_their_own(lengths, cap, longest, extra):
    limits = replace(LIMITS, max_prefill_chunk_size=cap)
    assert uncovered_chunk_lengths(lengths, limits=limits, longest=longest) == extra
    covered = {invocation_length(length, cap) for length in (*lengths, *extra)}
    assert {invocation_length(bucket, cap) for bucket in reachable_buckets(longest)} <= covered


@pytest.mark.parametrize(
    ("fields", "mode", "expected"),
    [
        ({"prefill_warmup_seq_lens": (512,)}, "all", (512,)),
        ({"trace_prefill_supported_seq_lens": (128, 1024)}, "none", (128, 1024)),
        ({}, "none", (128,)),
        ({}, "decode_only", (128, 1024, 2048)),
        ({"trace_prefill_supported_seq_lens": (256, 128)}, "all", (128, 256, 1024, 2048)),
        ({"max_seq_len": 1500}, "all", (128, 1024, 2048)),
        ({"max_prefill_chunk_size": 256}, "all", (128,)),
    ],
)
def test_lengths_from_a_runtime_config(fields, mode, expected):
    config = SimpleNamespace(**{"max_prefill_chunk_size": 2048, "max_seq_len": 4096, **fields})
    assert resolve_prefill_warmup_seq_lens(config, TraceConfig(mode)) == expected
