# SPDX-License-Identifier: Apache-2.0
"""What the Llama family tells the runtime about prefill. Follows chapter 40, sections A.2 and B.8."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_runtime._core import prefill_bucket_ladder, validate_prefill_chunk_size

from llm_models.llama.model_config import require_positive_int

DEFAULT_PREFILL_CHUNK_SIZE = 2048


@dataclass(frozen=True, kw_only=True)
class LlamaRuntimeConfig:
    """Prefill policy of one model. Lengths are in tokens.

    Every bucket up to the chunk cap can be traced, so that warmup covers the whole ladder. `ValueError` for a chunk
    cap that prefill cannot plan with.
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

    @property
    def trace_prefill_supported_seq_lens(self) -> tuple[int, ...]:
        """The prefill buckets that are warmed and traced, ascending."""
        ladder: tuple[int, ...] = prefill_bucket_ladder(self.max_prefill_chunk_size, self.max_seq_len)
        return ladder

    def can_enable_trace(self, prefill_seq_len: int, num_cached_tokens: int = 0) -> bool:
        """Whether a prefill invocation of this padded length can be traced; the cached offset does not matter."""
        return prefill_seq_len in self.trace_prefill_supported_seq_lens
