# SPDX-License-Identifier: Apache-2.0
"""Which prefill geometries serving can ask for: buckets, chunk sizes and physical waves.

Everything is derived with the planner's own length functions, so that warmup and serving cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llm_runtime._core import max_prefill_chunk_size, padded_prefill_length, prefill_bucket_ladder
from llm_runtime.config import PageTableLayout

__all__ = [
    "MAX_WAVE_TOKENS",
    "ServingLimits",
    "capacity_tokens",
    "invocation_length",
    "missing_buckets",
    "reachable_buckets",
    "resolve_prefill_warmup_seq_lens",
    "uncovered_chunk_lengths",
]

#: A wave of this many padded tokens or more is never formed.
MAX_WAVE_TOKENS = 128 * 1024


@dataclass(frozen=True)
class ServingLimits:
    """What bounds the requests of one lane beside its page-table layout; rows and tokens.

    ``max_wave_rows`` is 1 when waves are off. ``max_sampled_wave_rows`` is 1 when the model cannot extract a
    whole wave's rows for sampling.
    """

    max_prefill_chunk_size: int
    prefill_start_alignment: int
    max_wave_rows: int = 1
    max_sampled_wave_rows: int = 1
    static_q128_topk_supported: bool = False
    max_device_top_k: int = 0

    @classmethod
    def of(cls, prefill: Any) -> ServingLimits:
        """Read the limits of a resolved prefill config."""
        batching = prefill.supports_batched_prefill and not prefill.disable_batched_prefill
        rows = min(prefill.max_prefill_batch_size, prefill.max_batch_size) if batching else 1
        return cls(
            max_prefill_chunk_size=prefill.max_prefill_chunk_size,
            prefill_start_alignment=prefill.prefill_start_alignment,
            max_wave_rows=rows,
            max_sampled_wave_rows=rows if prefill.batched_prefill_batched_extract else 1,
            static_q128_topk_supported=prefill.static_q128_topk_supported,
            max_device_top_k=prefill.max_device_top_k,
        )

    def allows_wave(self, rows: int, length: int, *, sampled: bool) -> bool:
        """Whether the planner can form a wave of ``rows`` physical rows in the bucket of ``length`` tokens."""
        if rows == 1:
            return True
        padded = padded_prefill_length(length)
        limit = self.max_sampled_wave_rows if sampled else self.max_wave_rows
        return rows <= limit and padded <= self.max_prefill_chunk_size and rows * padded < MAX_WAVE_TOKENS


def capacity_tokens(layout: PageTableLayout) -> int:
    """Tokens that one row's page table can address."""
    return layout.raw_capacity_width * layout.block_size


def reachable_buckets(longest: int) -> tuple[int, ...]:
    """Padded lengths of all prompts of 1 to ``longest`` tokens, ascending."""
    buckets = [padded_prefill_length(1)]
    while buckets[-1] < longest:
        buckets.append(padded_prefill_length(buckets[-1] + 1))
    return tuple(buckets)


def invocation_length(length: int, limits_chunk_size: int) -> int:
    """Tokens of one device invocation of a prompt of ``length``: its bucket, or the chunk that divides it."""
    padded = padded_prefill_length(length)
    return padded if padded <= limits_chunk_size else max_prefill_chunk_size(padded, limits_chunk_size)


def missing_buckets(lengths: Iterable[int], *, max_chunk_size: int, longest: int) -> tuple[int, ...]:
    """Buckets of un-chunked prompts up to ``longest`` tokens that no length pads into."""
    covered = {padded_prefill_length(length) for length in lengths}
    return tuple(bucket for bucket in reachable_buckets(longest) if bucket <= max_chunk_size and bucket not in covered)


def uncovered_chunk_lengths(lengths: Iterable[int], *, limits: ServingLimits, longest: int) -> tuple[int, ...]:
    """Smallest prompt lengths whose chunk size occurs for no given length.

    A cached prompt runs the chunked variant of its whole bucket, so a bucket that a cached prompt can need
    covers a chunk of the same size.
    """
    chunk_size = limits.max_prefill_chunk_size
    longest_cached = longest - limits.prefill_start_alignment
    covered = {
        invocation_length(length, chunk_size)
        for length in lengths
        if padded_prefill_length(length) > chunk_size or is_cached_bucket(length, longest_cached)
    }
    found: list[int] = []
    for bucket in reachable_buckets(longest):
        size = invocation_length(bucket, chunk_size)
        if bucket > chunk_size and size not in covered:
            covered.add(size)
            found.append(bucket)
    return tuple(found)


def is_cached_bucket(length: int, longest_cached: int) -> bool:
    """Whether a prompt behind a cached prefix, ``longest_cached`` tokens at most, can need this length's bucket."""
    return longest_cached > 0 and length <= padded_prefill_length(longest_cached)


def resolve_prefill_warmup_seq_lens(runtime_config: Any, trace: Any) -> tuple[int, ...]:
    """Prefill lengths to warm for a model's runtime config.

    A non-empty ``prefill_warmup_seq_lens`` wins. Without tracing it is ``trace_prefill_supported_seq_lens`` or
    ``(128,)``; with tracing also every bucket of ``(max_prefill_chunk_size, max_seq_len)``, because nothing
    compiles after activation. Follows chapter 30, section 5.3 and decision D8.
    """
    declared = tuple(getattr(runtime_config, "prefill_warmup_seq_lens", None) or ())
    if declared:
        return declared
    supported = tuple(getattr(runtime_config, "trace_prefill_supported_seq_lens", None) or ())
    if trace.mode == "none":
        return supported or (128,)
    chunk_size, longest = runtime_config.max_prefill_chunk_size, runtime_config.max_seq_len
    ladder = set(prefill_bucket_ladder(chunk_size, longest))
    ladder.update(bucket for bucket in reachable_buckets(longest) if bucket <= chunk_size)
    return tuple(sorted(ladder.union(supported)))
