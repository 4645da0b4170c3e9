# SPDX-License-Identifier: Apache-2.0
"""From hidden states to the logits of last tokens. Follows chapter 40, section B.5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.llama.feed_forward import LmHead, RmsNorm
from llm_models.llama.model_config import TILE_ROWS


class LastTokenHead:
    """Cuts out the rows that matter before the final norm and the output head. `hidden` is never freed."""

    def __init__(self, ns: Any, mesh_device: Any, *, norm: RmsNorm, lm_head: LmHead) -> None:
        self._ns = ns
        self._mesh = mesh_device
        self._norm = norm
        self._lm_head = lm_head

    def logits(self, rows: Any) -> Any:
        """Logits [1, 1, rows, vocabulary] of hidden rows, which are not freed."""
        normed = self._norm.forward(rows)
        logits = self._lm_head.forward(normed)
        self._ns.deallocate(normed)
        return logits

    def of_tile(
        self,
        hidden: Any,
        last_token_idx: int,
        *,
        bounds: tuple[Any, Any] | None = None,
        row_index: Any = None,
    ) -> Any:
        """Logits of the 32-row tile [1, 1, 32, vocabulary] that holds row `last_token_idx` of [1, 1, S, dim].

        With `bounds` (device start and end, uint32 [4]) the tile comes from there. With `row_index` (device uint32
        [1, 1], the row inside the tile) only that row is left: [1, 1, 1, vocabulary]. `ValueError` for a row outside
        `hidden` or an index without bounds.
        """
        ns, length, width = self._ns, hidden.shape[2], hidden.shape[3]
        if row_index is not None and bounds is None:
            raise ValueError("last_token_index needs last_token_slice")
        if bounds is not None:
            tile = ns.slice(hidden, *bounds, slice_dim=2, num_devices=length // TILE_ROWS)
        else:
            if not 0 <= last_token_idx < length:
                raise ValueError(f"last token {last_token_idx} is outside the {length} rows of the hidden states")
            first = last_token_idx // TILE_ROWS * TILE_ROWS
            last = min(first + TILE_ROWS, length)
            # A slice of everything may share memory with its source, which must live on.
            whole = last - first == length
            tile = hidden if whole else ns.slice(hidden, (0, 0, first, 0), (1, 1, last, width))
        rows = tile if row_index is None else self._gather(tile, row_index)
        logits = self.logits(rows)
        for made in {id(tensor): tensor for tensor in (tile, rows) if tensor is not hidden}.values():
            ns.deallocate(made)
        return logits

    def of_wave(
        self,
        hidden: Any,
        last_token_indices: Sequence[int],
        *,
        sequence_length: int,
        bounds: tuple[Any, Any] | None = None,
        row_index: Any = None,
    ) -> Any:
        """Logits [1, 1, 32, vocabulary]; row r is token `last_token_indices[r]` of row r of folded [1, 1, B * S, dim].

        Rows are gathered, so their numbers are exact and one program serves every position. `row_index` (device
        uint32 [1, 32]) says on the device which folded rows to gather, and nothing is uploaded. With `bounds` (device
        start and end, uint32 [4]) rows come from that tile of folded rows, and `row_index` counts inside it. Both are
        borrowed. `ValueError` before any device work when a token is outside its row, the index has another shape, or
        bounds are given for tokens of several tiles: they cut out one.
        """
        for row, last in enumerate(last_token_indices):
            if not 0 <= last < sequence_length:
                raise ValueError(f"row {row}: last token {last} is outside its {sequence_length} positions")
        if row_index is not None and tuple(row_index.shape) != (1, TILE_ROWS):
            raise ValueError(f"last_token_index of a wave must be [1, {TILE_ROWS}], got {list(row_index.shape)}")
        folded = np.arange(len(last_token_indices)) * sequence_length + np.asarray(last_token_indices)
        tiles = sorted({int(row) // TILE_ROWS for row in folded})
        if bounds is not None and len(tiles) > 1:
            raise ValueError(
                f"last_token_slice is one tile of {TILE_ROWS} rows, the last tokens of the wave are in tiles {tiles}"
            )
        ns, source = self._ns, hidden
        if bounds is not None:
            source = ns.slice(hidden, *bounds, slice_dim=2, num_devices=hidden.shape[2] // TILE_ROWS)
            folded = folded % TILE_ROWS
        index = self._upload_index(folded) if row_index is None else row_index
        rows = self._gather(source, index)
        logits = self.logits(rows)
        for made, borrowed in ((source, hidden), (index, row_index), (rows, None)):
            if made is not borrowed:
                ns.deallocate(made)
        return logits

    def _upload_index(self, rows: npt.NDArray[np.int64]) -> Any:
        ns = self._ns
        picked = np.zeros((1, TILE_ROWS), np.uint32)
        picked[0, : len(rows)] = rows
        return ns.to_device(ns.Tensor(picked, ns.uint32), device=self._mesh)

    def _gather(self, hidden: Any, index: Any) -> Any:
        ns = self._ns
        table = ns.to_layout(hidden, ns.ROW_MAJOR_LAYOUT)
        rows = ns.embedding(index, table, layout=ns.TILE_LAYOUT, memory_config=ns.DRAM_MEMORY_CONFIG)
        ns.deallocate(table)
        return ns.unsqueeze_to_4D(rows)
