# SPDX-License-Identifier: Apache-2.0
"""Checks behind the warmup configuration: lengths, layouts, and what prefill and decode must share.

Follows chapter 30, section 5.4.
"""

from __future__ import annotations

from typing import Any

from llm_runtime.config import PageTableLayout, TraceConfig
from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.warmup.geometry import ServingLimits, invocation_length, missing_buckets, uncovered_chunk_lengths

__all__ = ["check_layout", "check_lengths", "check_shared", "complete_lengths", "traced_lengths"]


def check_lengths(lengths: Any) -> None:
    if not isinstance(lengths, tuple) or not lengths:
        raise ValueError(f"prefill sequence lengths must be a non-empty tuple, got {lengths!r}")
    for index, length in enumerate(lengths):
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(f"prefill sequence lengths must be positive integers, got {length!r} at {index}")
    if len(set(lengths)) != len(lengths):
        raise ValueError(f"prefill sequence lengths must be unique, got {lengths}")


def check_layout(layout: PageTableLayout, ceiling: PageTableLayout) -> None:
    if layout.block_size != ceiling.block_size:
        raise ValueError(f"a layout cannot change block_size from {ceiling.block_size} to {layout.block_size}")
    if layout.raw_capacity_width > ceiling.raw_capacity_width:
        raise ValueError(
            f"raw_capacity_width {layout.raw_capacity_width} exceeds the capacity ceiling {ceiling.raw_capacity_width}"
        )
    for name in ("prefill_width", "decode_width"):
        width, limit = getattr(layout, name), getattr(ceiling, name)
        if width > limit:
            raise ValueError(f"{name} {width} exceeds the canonical geometry ceiling {limit}")


def check_shared(prefill: PrefillRuntimeConfig, decode: DecodeRuntimeConfig) -> None:
    if prefill.model is not decode.model:
        raise ValueError("prefill and decode must share one model")
    if prefill.page_table_layout is not decode.page_table_layout:
        raise ValueError("prefill and decode must share one page-table layout")
    if prefill.max_batch_size != decode.lane_capacity:
        raise ValueError(
            f"prefill and decode must share one lane capacity, got {prefill.max_batch_size} and {decode.lane_capacity}"
        )
    if prefill.device_sampling_enabled != decode.device_sampling_enabled:
        raise ValueError("prefill and decode must share device-sampling policy")
    if prefill.allow_force_argmax != decode.allow_force_argmax:
        raise ValueError("prefill and decode must share force-argmax capability")
    if prefill.page_table_layout_ceiling != decode.page_table_layout_ceiling:
        raise ValueError("prefill and decode must share one page-table layout ceiling")


def complete_lengths(lengths: tuple[int, ...], limits: ServingLimits, longest: int) -> tuple[int, ...]:
    """Refuse lengths that leave a servable bucket out; add lengths for chunk sizes that none of them brings."""
    missing = missing_buckets(lengths, max_chunk_size=limits.max_prefill_chunk_size, longest=longest)
    if missing:
        raise ValueError(
            f"prefill buckets {list(missing)} can be served but are not among the warmup lengths {list(lengths)}; "
            "nothing can be compiled once traces are active"
        )
    return (*lengths, *uncovered_chunk_lengths(lengths, limits=limits, longest=longest))


def traced_lengths(trace: TraceConfig, prefill: PrefillRuntimeConfig, lengths: tuple[int, ...]) -> tuple[int, ...]:
    if not trace.prefill_enabled:
        return ()
    return tuple(
        length
        for length in lengths
        if prefill.can_enable_trace(invocation_length(length, prefill.max_prefill_chunk_size), 0)
    )
