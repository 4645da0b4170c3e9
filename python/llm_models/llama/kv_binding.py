# SPDX-License-Identifier: Apache-2.0
"""Paged KV geometry and cache binding of all layers, validated before anything changes. Chapter 40, B.3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from llm_models.llama.model_config import AttentionConfig, PagedAttentionConfig, require_positive_int


def configure_paged_attention(attentions: Sequence[AttentionConfig], *, block_size: int, max_num_blocks: int) -> None:
    """Give every layer the geometry: tokens per block, blocks at most.

    `ValueError` for values that are no positive ints; `RuntimeError` naming the layer when its cache is not managed
    outside or is bound already. Nothing changes then.
    """
    require_positive_int("block_size", block_size)
    require_positive_int("max_num_blocks", max_num_blocks)
    for index, attention in enumerate(attentions):
        if not attention.use_vllm_paged_kv_cache:
            raise RuntimeError(f"layer {index} does not use an externally managed paged KV cache")
        if attention.kv_cache is not None:
            raise RuntimeError(f"layer {index} already has a bound KV cache; unbind it first")
    geometry = PagedAttentionConfig(block_size=block_size, max_num_blocks=max_num_blocks)
    for attention in attentions:
        attention.paged_attention_config = geometry


def set_kv_cache(attentions: Sequence[AttentionConfig], cache: Iterable[Any] | None) -> None:
    """Bind one (key, value) pair per layer (borrowed), or unbind all with `None`.

    `ValueError` for another number of layers or an entry that is no pair, `TypeError` for an entry that cannot be
    iterated. Nothing changes then.
    """
    if cache is None:
        for attention in attentions:
            attention.kv_cache = None
        return
    entries = list(cache)
    if len(entries) != len(attentions):
        raise ValueError(f"the KV cache has {len(entries)} layers, the model has {len(attentions)} layers")
    pairs = [_pair(index, entry) for index, entry in enumerate(entries)]
    for attention, pair in zip(attentions, pairs, strict=True):
        attention.kv_cache = pair


def _pair(index: int, entry: Any) -> tuple[Any, Any]:
    try:
        tensors = tuple(entry)
    except TypeError as error:
        raise TypeError(
            f"KV cache entry of layer {index} must be a (key, value) pair, got {type(entry).__name__}"
        ) from error
    if len(tensors) != 2:
        raise ValueError(f"KV cache entry of layer {index} has {len(tensors)} tensors, expected key and value")
    return tensors[0], tensors[1]
