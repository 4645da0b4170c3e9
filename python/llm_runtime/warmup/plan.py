# SPDX-License-Identifier: Apache-2.0
"""Construction of warmup plans: every program that serving can ask for, once.

Follows chapter 30, section 5.2 and decision D8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from llm_runtime.config import SUPPORTED_PREFILL_BATCH_SIZES, PageTableLayout, WarmupConfig
from llm_runtime.warmup.cases import WarmupCase, WarmupPlan
from llm_runtime.warmup.geometry import ServingLimits, capacity_tokens, is_cached_bucket

__all__ = ["PlanInputs", "build_plan", "wave_gaps"]


@dataclass(frozen=True)
class PlanInputs:
    """Everything a plan depends on; equal inputs give equal plans."""

    warmup: WarmupConfig
    layout: PageTableLayout
    lengths: tuple[int, ...]
    lane_batch_size: int
    allow_force_argmax: bool
    limits: ServingLimits
    penalties: bool
    log_probs: bool


def build_plan(inputs: PlanInputs, *, device_sampling: bool) -> WarmupPlan:
    """Cases of both operations, with sampled paths and their variants only when ``device_sampling``."""
    prefill = tuple(
        case
        for length in inputs.lengths
        for case in _prefill_cases(inputs, length, inputs.warmup.prefill_batch_sizes, device_sampling)
    )
    decode = tuple(
        WarmupCase("decode", inputs.lane_batch_size, None, path) for path in _decode_paths(inputs, device_sampling)
    )
    return WarmupPlan(tuple(_with_variants(inputs, prefill)), tuple(_with_variants(inputs, decode)))


def wave_gaps(inputs: PlanInputs, *, device_sampling: bool) -> tuple[WarmupCase, ...]:
    """Prefill cases that serving can ask for and that the configured batch sizes leave out."""
    full = replace(inputs, warmup=replace(inputs.warmup, prefill_batch_sizes=SUPPORTED_PREFILL_BATCH_SIZES))
    covered = set(build_plan(inputs, device_sampling=device_sampling).prefill)
    wanted = build_plan(full, device_sampling=device_sampling).prefill
    return tuple(case for case in wanted if case not in covered)


def _prefill_cases(
    inputs: PlanInputs, length: int, batch_sizes: tuple[int, ...], device_sampling: bool
) -> Iterator[WarmupCase]:
    limits = inputs.limits
    # A single row is always possible: companions end, prefixes are cached.
    for rows in (1, *(size for size in batch_sizes if 1 < size <= inputs.lane_batch_size)):
        for path in _prefill_paths(inputs, rows, device_sampling):
            if limits.allows_wave(rows, length, sampled=path != "logits"):
                yield WarmupCase("prefill", rows, length, path)
    cached = limits.prefill_start_alignment
    if is_cached_bucket(length, capacity_tokens(inputs.layout) - cached):
        for path in _prefill_paths(inputs, 1, device_sampling):
            yield WarmupCase("prefill", 1, length, path, cached_tokens=cached)


def _prefill_paths(inputs: PlanInputs, rows: int, device_sampling: bool) -> tuple[str, ...]:
    if not device_sampling:
        return ("logits",)
    if rows == 1 and inputs.allow_force_argmax:
        return ("logits", "topk", "argmax")
    return ("logits", "topk")


def _decode_paths(inputs: PlanInputs, device_sampling: bool) -> tuple[str, ...]:
    if not device_sampling:
        return ("logits",)
    if not inputs.allow_force_argmax:
        return ("logits", "topk")
    return ("logits", "argmax", "topk") if inputs.warmup.include_decode_top_k else ("logits", "argmax")


def _with_variants(inputs: PlanInputs, cases: tuple[WarmupCase, ...]) -> Iterator[WarmupCase]:
    penalties = (False, True) if inputs.penalties else (False,)
    log_probs = (False, True) if inputs.log_probs else (False,)
    for case in cases:
        if case.sampling_path == "logits":
            yield case
            continue
        for penalty, log_prob in product(penalties, log_probs):
            yield replace(case, penalties_enabled=penalty, logprobs_enabled=log_prob)
