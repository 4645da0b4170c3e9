# SPDX-License-Identifier: Apache-2.0
"""Frozen policies for tracing, warmup and the paged KV cache, and the page-table geometry of the C++ core.

Follows chapter 10, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from llm_runtime._core import PageTableLayout, fit_paged_kv_num_blocks
from llm_runtime._validation import is_positive_int, positive_int

__all__ = [
    "SUPPORTED_PREFILL_BATCH_SIZES",
    "PageTableLayout",
    "PagedKVCacheConfig",
    "TraceConfig",
    "TraceMode",
    "WarmupConfig",
    "fit_paged_kv_num_blocks",
]

TraceMode = Literal["none", "decode_only", "all"]

SUPPORTED_PREFILL_BATCH_SIZES: tuple[int, ...] = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class TraceConfig:
    """Which operations run through captured traces: none, decode only, or prefill and decode."""

    mode: TraceMode = "decode_only"

    def __post_init__(self) -> None:
        modes = get_args(TraceMode)
        if self.mode not in modes:
            raise ValueError(f"unsupported trace mode {self.mode!r}; expected one of {', '.join(modes)}")

    @property
    def prefill_enabled(self) -> bool:
        """True when prefill is a traced operation."""
        return self.mode == "all"

    @property
    def decode_enabled(self) -> bool:
        """True when decode is a traced operation."""
        return self.mode != "none"


@dataclass(frozen=True)
class WarmupConfig:
    """Which requests warmup compiles. `prefill_seq_lens=None` derives the lengths from the model.

    `prefill_batch_sizes` are physical padded waves of the 128-token bucket. Tuples are demanded (`TypeError`
    otherwise) so that the value stays immutable; empty, repeated or non-positive entries are a `ValueError`.
    """

    prefill_seq_lens: tuple[int, ...] | None = None
    prefill_batch_sizes: tuple[int, ...] = SUPPORTED_PREFILL_BATCH_SIZES
    include_decode_top_k: bool = False

    def __post_init__(self) -> None:
        if self.prefill_seq_lens is not None:
            _check_sizes(self.prefill_seq_lens, name="prefill_seq_lens")
        _check_sizes(self.prefill_batch_sizes, name="prefill_batch_sizes")


@dataclass(frozen=True)
class PagedKVCacheConfig:
    """Size and placement of the paged KV cache of one lane; `num_blocks=None` leaves the capacity open.

    `block_size` is in tokens. `dtype` is a dtype of the mesh's namespace and is checked against the model by
    `PagedKVCacheManager`. `memory_config=None` means the namespace's `DRAM_MEMORY_CONFIG`: the manager
    looks it up, because this module knows no device.
    """

    block_size: int
    max_num_blocks: int
    dtype: Any
    memory_config: Any = None
    num_blocks: int | None = None

    def __post_init__(self) -> None:
        positive_int(self.block_size, name="block_size")
        positive_int(self.max_num_blocks, name="max_num_blocks")
        if self.num_blocks is None:
            return
        if not is_positive_int(self.num_blocks):
            raise ValueError(f"num_blocks must be a positive integer when resolved, got {self.num_blocks!r}")
        if self.num_blocks > self.max_num_blocks:
            raise ValueError(f"num_blocks {self.num_blocks} exceeds max_num_blocks {self.max_num_blocks}")

    def is_resolved(self) -> bool:
        """True once the physical block count is known."""
        return self.num_blocks is not None


def _check_sizes(values: Any, *, name: str) -> None:
    if not isinstance(values, tuple):
        raise TypeError(f"{name} must be a tuple to stay immutable, got {type(values).__name__}")
    if not values:
        raise ValueError(f"{name} must not be empty")
    for index, value in enumerate(values):
        if not is_positive_int(value):
            raise ValueError(f"{name}[{index}] must be a positive integer, got {value!r}")
    if len(set(values)) != len(values):
        raise ValueError(f"{name} must be unique, got {values}")
