# SPDX-License-Identifier: Apache-2.0
"""A decode model whose next token depends on every earlier one, and the same model recomputed from scratch in NumPy.

One attention head without weights: a row's key and value are its token's embedding plus its position's row, which the
step writes to the paged cache and then attends over. A stale token, position, rotary index, page-table entry or cache
block therefore shows in the tokens that follow.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from support.tiny_decode_model import ROWS, VOCAB, TinyDecodeModel

Array = npt.NDArray[Any]

POSITIONS = 256
_SCALE = 1.0 / 8


@functools.cache
def token_rows() -> Array:
    """Embeddings ``[vocabulary, width]``."""
    rows: Array = np.random.default_rng(7).standard_normal((VOCAB, VOCAB)).astype(np.float32)
    return rows


@functools.cache
def position_rows() -> Array:
    """What a position adds, ``[positions, width]``."""
    rows: Array = np.random.default_rng(8).standard_normal((POSITIONS, VOCAB)).astype(np.float32)
    return rows


def logits_of(history: Sequence[int]) -> Array:
    """Logits ``[vocabulary]`` behind the tokens of a request, recomputed from the first one."""
    rows = (token_rows()[list(history)] + position_rows()[: len(history)]).astype(np.float64)
    scores = rows @ rows[-1] * _SCALE
    weights = np.exp(scores - scores.max())
    logits: Array = rows[-1] + weights @ rows / weights.sum()
    return logits


class AttendingModel(TinyDecodeModel):
    """See the module. The lane's cache serves as keys and values."""

    def __init__(self, mesh: Any, **options: Any) -> None:
        super().__init__(mesh, positions=POSITIONS, **options)
        ns = self._ns
        self._block_size = self.cache.shape[2]
        self._embedding = ns.to_device(ns.Tensor(token_rows()[None, None], ns.bfloat16), device=mesh)
        self.rope_setup._rows = ns.to_device(ns.Tensor(position_rows()[None, None], ns.bfloat16), device=mesh)
        self.prefill([0], [])  # compiles its programs, which must exist before traces do

    def decode_forward(self, x: Any, current_pos: Any, rot_mats: Any, page_table: Any = None) -> Any:
        ns, lane = self._ns, self._lane_capacity
        self.body_calls += 1
        x = ns.add(x, rot_mats)
        heads = ns.transpose(ns.slice(x, (0, 0, 0, 0), (1, 1, lane, VOCAB)), 1, 2)
        ns.experimental.paged_update_cache(
            self.cache,
            ns.interleaved_to_sharded(heads, self._shards),
            update_idxs_tensor=current_pos,
            page_table=page_table,
        )
        attended = ns.transformer.paged_scaled_dot_product_attention_decode(
            heads, self.cache, self.cache, page_table, cur_pos_tensor=current_pos, scale=_SCALE
        )
        rows = ns.pad(ns.transpose(attended, 1, 2), [(0, 0), (0, 0), (0, ROWS - lane), (0, 0)], value=0.0)
        return ns.add(x, rows)

    def prefill(self, history: Sequence[int], blocks: Sequence[int]) -> None:
        """Write the keys of all tokens but the last, which the first decode step consumes; `blocks` hold them."""
        ns, mesh = self._ns, self.config.mesh_device
        count = len(history) - 1
        rows = np.zeros((1, 1, POSITIONS, VOCAB), np.float32)
        rows[0, 0, :count] = token_rows()[list(history[:-1])] + position_rows()[:count]
        table = np.full((1, POSITIONS // self._block_size), -1, np.int32)
        used = -(-count // self._block_size)
        table[0, :used] = blocks[:used]
        keys = ns.to_device(ns.Tensor(rows, ns.bfloat16, layout=ns.TILE_LAYOUT), device=mesh)
        entries = ns.to_device(ns.Tensor(table, ns.int32), device=mesh)
        ns.experimental.paged_fill_cache(self.cache, keys, entries, batch_idx=0)
        ns.deallocate(keys)
        ns.deallocate(entries)
