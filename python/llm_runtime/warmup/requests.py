# SPDX-License-Identifier: Apache-2.0
"""Synthetic requests that stand for warmup cases; they go through the real planner and lane routing.

Follows chapter 30, section 5.5. Lengths are clamped to the current layout, so that a lane whose physical cache came
out smaller than its ceiling is never asked for a prompt wider than its page table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from llm_runtime.prefill.sampling_helpers import SamplingParams
from llm_runtime.warmup.cases import WarmupCase
from llm_runtime.warmup.config import WarmupCoordinatorConfig
from llm_runtime.warmup.geometry import capacity_tokens

__all__ = ["decode_request", "prefill_requests"]

_Q128 = 128
_TILE_ENDS = (32, 64, 96, 128)
_TOP_K = 32
_TOP_P = 0.08
_PRESENCE_PENALTY = 0.5


def prefill_requests(config: WarmupCoordinatorConfig, case: WarmupCase) -> Iterator[dict[str, Any]]:
    """The prefill calls of one case: one, or one per 32-token tile in which a sampled 128-token prompt can end."""
    capacity = capacity_tokens(config.page_table_layout)
    for length in sorted({min(end, capacity - case.cached_tokens) for end in _ends(config, case)}):
        yield _prefill_request(config, case, uncached=length)


def decode_request(config: WarmupCoordinatorConfig, case: WarmupCase, *, num_blocks: int) -> dict[str, Any]:
    """The decode call of one case: a whole lane at position 0, page table ``[lane, num_blocks]`` of zeros."""
    rows = config.lane_batch_size
    return {
        "tokens": np.zeros(rows, np.int64),
        "start_pos": np.zeros(rows, np.int64),
        "page_table": np.zeros((rows, num_blocks), np.int32),
        "sampling_params": _sampling_params(config, case),
    }


def _ends(config: WarmupCoordinatorConfig, case: WarmupCase) -> tuple[int, ...]:
    length = case.sequence_length or 0
    if case.batch_size != 1 or length != _Q128 or case.cached_tokens:
        return (length,)
    tile_ends = config.prime_q128_tile_ends or config.limits.static_q128_topk_supported
    if case.sampling_path == "argmax" or (case.sampling_path == "topk" and tile_ends):
        return _TILE_ENDS
    return (length,)


def _prefill_request(config: WarmupCoordinatorConfig, case: WarmupCase, *, uncached: int) -> dict[str, Any]:
    rows, cached = case.batch_size, case.cached_tokens
    prompt = cached + uncached
    blocks = -(-prompt // config.page_table_layout.block_size)
    return {
        "tokens": np.zeros((rows, prompt), np.int64),
        # A row names each of its blocks once, as an allocation does; rows may share them, nobody reads these values.
        "page_table": np.tile(np.arange(blocks, dtype=np.int32), (rows, 1)),
        "prompt_lens": np.full(rows, prompt, np.int64),
        "start_pos": np.full(rows, cached, np.int64) if cached else None,
        "empty_slots": list(range(rows)),
        "sampling_params": _sampling_params(config, case),
    }


def _sampling_params(config: WarmupCoordinatorConfig, case: WarmupCase) -> SamplingParams | None:
    if case.sampling_path == "logits":
        return None
    rows = case.batch_size
    greedy = case.sampling_path == "argmax"
    return SamplingParams(
        temperature=[0.0 if greedy else 1.0] * rows,
        top_k=[1 if greedy else min(_TOP_K, config.limits.max_device_top_k)] * rows,
        top_p=[1.0 if greedy else _TOP_P] * rows,
        presence_penalty=[_PRESENCE_PENALTY if case.penalties_enabled else 0.0] * rows,
        enable_log_probs=[case.logprobs_enabled] * rows,
    )
