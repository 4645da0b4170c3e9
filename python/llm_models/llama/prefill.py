# SPDX-License-Identifier: Apache-2.0
"""The prefill half of a Llama: embedding, layers over whole prompts, waves and chunks, and their last tokens.

Follows chapter 40, section B.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_models.llama.last_token import LastTokenHead
from llm_models.llama.parts import TransformerLayer
from llm_models.llama.rope import RopeSetup

__all__ = ["LlamaPrefill"]


class LlamaPrefill:
    """What `LlamaModel` does with prompts; the modules belong to the model."""

    layers: tuple[TransformerLayer, ...]
    embedding: Any
    rope_setup: RopeSetup
    _ns: Any
    _last_token: LastTokenHead
    _released: bool

    def embed_prefill(self, tokens: Any) -> Any:
        """Rows [1, 1, S, dim] for uint32 [1, 1, 1, S] (a folded wave: S = rows * sequence)."""
        return self._embed(tokens)

    def prepare_prefill_rot_mats(self, position_indices: Any) -> tuple[Any, Any]:
        """Cosines and sines [1, 1, S, head_dim] for uint32 positions [1, S]; owned by the caller."""
        return self.rope_setup.prefill_forward(position_indices)

    def prefill_forward(
        self,
        x_embed: Any,
        rot_mats: Sequence[Any],
        user_id: int | Sequence[int] = 0,
        page_table: Any = None,
        chunk_page_table: Any = None,
        chunk_start_idx: int | None = None,
        get_last_token: int = -1,
        batch_size: int = 1,
        chunk_start_idx_tensor: Any = None,
        last_token_slice: tuple[Any, Any] | None = None,
        last_token_index: Any = None,
    ) -> Any:
        """Run the layers over `x_embed` (consumed) and fill the KV cache; nothing else that is given is freed.

        `user_id` names the page-table rows to fill, one per row of the wave. A chunk start (int, or int32 [1] tensor,
        which wins) makes the single row a chunk that sees everything cached before it. Returns hidden states
        [1, 1, S, dim]; or logits of a tile or row when `last_token_slice` (device bounds, with `last_token_index` for
        the row) or `get_last_token` >= 0 asks for them, see `post_process_prefill_output`. `ValueError` for
        combinations that mean nothing, before any device work.
        """
        chunk_start = chunk_start_idx if chunk_start_idx_tensor is None else chunk_start_idx_tensor
        user_ids = [user_id] if isinstance(user_id, int) else list(user_id)
        if page_table is None:
            raise ValueError("prefill needs a page table")
        if batch_size > 1 and chunk_start is not None:
            raise ValueError(f"a wave of {batch_size} rows cannot be a chunk; chunks are prefilled one by one")
        if any(not 0 <= row < batch_size for row in user_ids):
            raise ValueError(f"user_id {user_ids} names rows outside the wave of {batch_size}")
        if x_embed.shape[2] % batch_size:
            raise ValueError(f"{x_embed.shape[2]} folded rows do not divide into a wave of {batch_size}")
        if last_token_index is not None and last_token_slice is None:
            raise ValueError("last_token_index needs last_token_slice")
        x = x_embed
        for layer in self.layers:
            normed = layer.attn_norm.forward(x)
            mixed = layer.attention.prefill_forward(
                normed,
                rot_mats=rot_mats,
                user_ids=user_ids,
                batch_size=batch_size,
                page_table=page_table,
                chunk_page_table=chunk_page_table,
                chunk_start=chunk_start,
            )
            self._ns.deallocate(normed)
            x = self._add(x, mixed)
            normed = layer.ff_norm.forward(x)
            grown = layer.mlp.forward(normed)
            self._ns.deallocate(normed)
            x = self._add(x, grown)
        if last_token_slice is None and get_last_token < 0:
            return x
        logits = self._last_token.of_tile(x, get_last_token, bounds=last_token_slice, row_index=last_token_index)
        self._ns.deallocate(x)
        return logits

    def post_process_prefill_output(
        self,
        hidden: Any,
        last_token_idx: int,
        last_token_slice: tuple[Any, Any] | None = None,
        last_token_index: Any = None,
    ) -> Any:
        """Logits [1, 1, 32, vocabulary] of the tile that holds row `last_token_idx` of `hidden` [1, 1, S, dim].

        `last_token_slice` gives the tile's bounds on the device (uint32 [4] each) instead; with `last_token_index`
        (uint32 [1, 1], the row inside the tile) the result is that one row.
        """
        return self._last_token.of_tile(hidden, last_token_idx, bounds=last_token_slice, row_index=last_token_index)

    def post_process_batched_prefill_output(
        self,
        hidden: Any,
        last_token_idx_list: Sequence[int],
        padded_batch: int,
        prefill_seq_len: int,
        last_token_slice: tuple[Any, Any] | None = None,
        last_token_index: Any = None,
    ) -> Any:
        """Logits [1, 1, 32, vocabulary] of a folded wave; row r is position `last_token_idx_list[r]` of row r.

        The list has `padded_batch` entries (0 for padding rows), else `ValueError`. `last_token_index` (uint32
        [1, 32], the folded rows) says the same on the device, and no list is uploaded; `last_token_slice` (device
        bounds of a tile of folded rows) makes it count inside that tile. See `LastTokenHead.of_wave`.
        """
        if len(last_token_idx_list) != padded_batch:
            raise ValueError(f"{len(last_token_idx_list)} last tokens for a wave of {padded_batch} rows")
        return self._last_token.of_wave(
            hidden,
            last_token_idx_list,
            sequence_length=prefill_seq_len,
            bounds=last_token_slice,
            row_index=last_token_index,
        )

    def _embed(self, tokens: Any) -> Any:
        if self._released:
            raise RuntimeError("the model's weights were released; load the model again")
        ns = self._ns
        rows = ns.embedding(tokens, self.embedding, layout=ns.TILE_LAYOUT, memory_config=ns.DRAM_MEMORY_CONFIG)
        return ns.unsqueeze_to_4D(rows)

    def _add(self, x: Any, change: Any) -> Any:
        ns = self._ns
        total = ns.add(x, change, memory_config=ns.DRAM_MEMORY_CONFIG)
        ns.deallocate(x)
        ns.deallocate(change)
        return total
