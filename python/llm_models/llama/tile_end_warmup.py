# SPDX-License-Identifier: Apache-2.0
"""A prefill-warmup hook for the tiles in which short sampled prompts end. Follows chapter 40, section A.7.

A sampled prompt of up to 128 tokens has a program for each 32-token tile that its last token can be in. This hook
compiles the first three, which end before the bucket does; the default warmup compiles the fourth, and where it
compiles others too the program registry already has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from llm_models.llama.model_config import TILE_ROWS
from llm_runtime.prefill.sampling_helpers import SamplingParams

if TYPE_CHECKING:
    from llm_models.executor import ModelExecutor

__all__ = ["TileEndWarmup"]

BUCKET = 128
TILE_ENDS = (32, 64, 96)
_TOP_K = 32
_TOP_P = 0.08


@dataclass(frozen=True, kw_only=True)
class TileEndWarmup:
    """Call it as the `prefill_warmup` of a `ModelExecutor`: it compiles tile ends once per executor and target.

    `eager_order` says on which side of the default warmup that happens when nothing is traced. Traced tile ends always
    come first: the default warmup may capture, and then nothing compiles any more. One object serves many executors,
    which it does not keep alive.
    """

    eager_order: Literal["before", "after"] = "before"
    _done: WeakKeyDictionary[ModelExecutor, set[bool]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.eager_order not in ("before", "after"):
            raise ValueError(f"eager_order must be 'before' or 'after', got {self.eager_order!r}")

    def __call__(
        self,
        executor: ModelExecutor,
        default_warmup: Callable[[], None],
        *,
        kv_cache: Any,
        can_sample_on_device: bool,
        enable_trace: bool,
    ) -> None:
        """Run `default_warmup` and, on its side of it, the tile ends for the target that `enable_trace` selects.

        A failed compile is tried again by the next call.
        """
        if self.eager_order == "after" and not enable_trace:
            default_warmup()
            self._prime(executor, kv_cache, sampled=can_sample_on_device, traced=enable_trace)
        else:
            self._prime(executor, kv_cache, sampled=can_sample_on_device, traced=enable_trace)
            default_warmup()

    def _prime(self, executor: ModelExecutor, kv_cache: Any, *, sampled: bool, traced: bool) -> None:
        done = self._done.setdefault(executor, set())
        target = executor.traced_prefill_execution if traced else executor.eager_execution
        if traced in done or not sampled or target is None or not _needs_tile_ends(executor):
            return
        layout = executor.page_table_layout
        for length in TILE_ENDS:
            width = -(-length // layout.block_size)
            if width > layout.raw_capacity_width:
                break  # no prompt of this lane is that long
            executor.compile_prefill(
                tokens=np.zeros((1, length), np.int64),
                # A row names each of its blocks once, as an allocation does; nobody reads the values.
                page_table=np.arange(width, dtype=np.int32)[None],
                prompt_lens=np.array([length], np.int64),
                empty_slots=[0],
                kv_cache=kv_cache,
                sampling_params=SamplingParams(temperature=[1.0], top_k=[_TOP_K], top_p=[_TOP_P]),
                execution=target,
            )
        done.add(traced)


def _needs_tile_ends(executor: ModelExecutor) -> bool:
    """Whether short sampled prompts have programs of their own that the coordinator does not prime by policy."""
    warmup = executor.warmup.config
    if not warmup.device_sampling_enabled or warmup.prime_q128_tile_ends:
        return False
    return BUCKET in warmup.prefill_sequence_lengths and executor.model.sampling.config.max_batch_size >= TILE_ROWS
