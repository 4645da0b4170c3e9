# SPDX-License-Identifier: Apache-2.0
"""What the Llama family tells the runtime about prefill. Follows chapter 40, sections A.2 and B.8."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_models.llama.model_config import require_positive_int
from llm_runtime._core import max_prefill_chunk_size, padded_prefill_length, validate_prefill_chunk_size

DEFAULT_PREFILL_CHUNK_SIZE = 2048
SMALLEST_CHUNK_SIZE = 128
#: From this chunk cap on, a prefill behind cached tokens is not traced.
UNCACHED_TRACE_CHUNK_SIZE = 4096


@dataclass(frozen=True, kw_only=True)
class LlamaRuntimeConfig:
    """Prefill policy of one model. Lengths are in tokens.

    A chunk cap above `max_seq_len` comes down to the largest power of two within it (128 at least). Every length that
    a prefill call can then have is traced, so that warmup covers all of them. `ValueError` for a chunk cap that
    prefill cannot plan with.
    """

    max_seq_len: int
    max_prefill_chunk_size: int = DEFAULT_PREFILL_CHUNK_SIZE
    supports_batched_prefill: bool = True
    disable_batched_prefill: bool = False
    max_prefill_batch_size: int = 32
    batched_prefill_batched_extract: bool = True
    model_cache_path: Path | None = None

    def __post_init__(self) -> None:
        require_positive_int("max_seq_len", self.max_seq_len)
        require_positive_int("max_prefill_batch_size", self.max_prefill_batch_size)
        validate_prefill_chunk_size(self.max_prefill_chunk_size)
        if self.max_prefill_chunk_size > self.max_seq_len:
            within = max(SMALLEST_CHUNK_SIZE, 1 << (self.max_seq_len.bit_length() - 1))
            object.__setattr__(self, "max_prefill_chunk_size", within)

    @property
    def trace_prefill_supported_seq_lens(self) -> tuple[int, ...]:
        """The lengths of prefill calls, ascending: buckets up to the chunk cap, and chunks of longer ones."""
        cap, lengths, prompt = self.max_prefill_chunk_size, set(), 1
        while prompt <= self.max_seq_len:
            bucket = padded_prefill_length(prompt)
            lengths.add(bucket if bucket <= cap else max_prefill_chunk_size(bucket, cap))
            prompt = bucket + 1
        return tuple(sorted(lengths))

    def can_enable_trace(self, prefill_seq_len: int, num_cached_tokens: int = 0) -> bool:
        """Whether a prefill call of this padded length, behind so many cached tokens, can be traced.

        Cached tokens matter for chunk caps of 4096 and more only, which refuse any.
        """
        if num_cached_tokens > 0 and self.max_prefill_chunk_size >= UNCACHED_TRACE_CHUNK_SIZE:
            return False
        return prefill_seq_len in self.trace_prefill_supported_seq_lens
