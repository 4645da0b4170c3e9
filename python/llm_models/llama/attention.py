# SPDX-License-Identifier: Apache-2.0
"""Grouped-query attention over a paged KV cache. Op forms follow chapter 40, sections F.2 and F.3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_models.llama.model_config import TILE_ROWS, AttentionConfig
from llm_models.llama.rope import RopeSetup, height_shards


class Attention:
    """One layer's attention. Weights, rotary setup and cache are borrowed; inputs are never freed here."""

    def __init__(self, ns: Any, config: AttentionConfig, *, wqkv: Any, wo: Any, rope: RopeSetup) -> None:
        self.config = config
        self._ns = ns
        self._wqkv = wqkv
        self._wo = wo
        self._rope = rope
        self._scale = config.head_dim**-0.5
        rows = -(-config.n_heads // TILE_ROWS) * TILE_ROWS
        self._head_shards = height_shards(ns, (rows, config.head_dim), config.max_batch_size)

    @property
    def kv_cache(self) -> tuple[Any, Any] | None:
        """The bound key and value cache (borrowed), or `None`."""
        return self.config.kv_cache

    @kv_cache.setter
    def kv_cache(self, cache: tuple[Any, Any] | None) -> None:
        self.config.kv_cache = cache

    def decode_forward(self, x: Any, *, current_pos: Any, rot_mats: Sequence[Any], page_table: Any) -> Any:
        """One token per slot: [1, 1, batch, dim] -> the same. Slots at -1 write nothing."""
        ns, config = self._ns, self.config
        keys, values = self._bound_cache()
        batch, width = x.shape[2], config.n_heads * config.head_dim
        qkv = self._project(x, self._wqkv)
        q, k, v = ns.experimental.nlp_create_qkv_heads_decode(
            qkv,
            num_heads=config.n_heads,
            num_kv_heads=config.n_local_kv_heads,
            memory_config=ns.L1_HEIGHT_SHARDED_MEMORY_CONFIG,
        )
        ns.deallocate(qkv)
        q, k = self._before_rotation(q, k)
        q = self._rotate(q, rot_mats, self._rope.decode_transform, is_decode_mode=True)
        k = self._rotate(k, rot_mats, self._rope.decode_transform, is_decode_mode=True)
        for cache, new in ((keys, k), (values, v)):
            ns.experimental.paged_update_cache(cache, new, update_idxs_tensor=current_pos, page_table=page_table)
            ns.deallocate(new)
        mixed = ns.transformer.paged_scaled_dot_product_attention_decode(
            q, keys, values, page_table_tensor=page_table, cur_pos_tensor=current_pos, scale=self._scale
        )
        ns.deallocate(q)
        sharded = ns.to_memory_config(mixed, self._head_shards)
        ns.deallocate(mixed)
        joined = ns.experimental.nlp_concat_heads_decode(sharded, num_heads=config.n_heads)
        ns.deallocate(sharded)
        plain = ns.sharded_to_interleaved(joined, ns.DRAM_MEMORY_CONFIG)
        ns.deallocate(joined)
        return self._output(as_rows(ns, plain, batch, width))

    def prefill_forward(
        self,
        x: Any,
        *,
        rot_mats: Sequence[Any],
        user_ids: Sequence[int],
        batch_size: int,
        page_table: Any,
        chunk_page_table: Any = None,
        chunk_start: Any = None,
    ) -> Any:
        """Whole rows: folded [1, 1, batch * sequence, dim] -> the same, keys and values filled for `user_ids`.

        With `chunk_start` (an int or an int32 [1] tensor) the one row is a chunk: it attends to everything in the
        cache up to itself, through `page_table`, and fills through `chunk_page_table`.
        """
        ns, config = self._ns, self.config
        folded, width = x.shape[2], config.n_heads * config.head_dim
        qkv = self._project(x, self._wqkv)
        if batch_size > 1:
            qkv = ns.reshape(qkv, (batch_size, 1, folded // batch_size, qkv.shape[-1]))
        q, k, v = ns.experimental.nlp_create_qkv_heads(
            qkv,
            num_heads=config.n_heads,
            num_kv_heads=config.n_local_kv_heads,
            transpose_k_heads=False,
            memory_config=ns.DRAM_MEMORY_CONFIG,
        )
        ns.deallocate(qkv)
        q, k = self._before_rotation(q, k)
        q = self._rotate(q, rot_mats, self._rope.prefill_transform, is_decode_mode=False)
        k = self._rotate(k, rot_mats, self._rope.prefill_transform, is_decode_mode=False)
        k, v = self._to_cache_type(k), self._to_cache_type(v)
        self._fill(k, v, page_table if chunk_page_table is None else chunk_page_table, user_ids)
        if chunk_start is None:
            mixed = ns.transformer.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self._scale)
        else:
            mixed = self._attend_to_cache(q, page_table, chunk_start)
        for tensor in (q, k, v):
            ns.deallocate(tensor)
        joined = ns.experimental.nlp_concat_heads(mixed, memory_config=ns.DRAM_MEMORY_CONFIG)
        ns.deallocate(mixed)
        if batch_size > 1:
            joined = ns.reshape(joined, (1, 1, folded, width))
        return self._output(joined)

    def _bound_cache(self) -> tuple[Any, Any]:
        if self.config.kv_cache is None:
            raise RuntimeError("no KV cache is bound; allocate it through the KV cache manager first")
        return self.config.kv_cache

    def _project(self, x: Any, weight: Any) -> Any:
        ns = self._ns
        return ns.linear(x, weight, dtype=ns.bfloat16, memory_config=ns.DRAM_MEMORY_CONFIG)

    def _output(self, joined: Any) -> Any:
        result = self._project(joined, self._wo)
        self._ns.deallocate(joined)
        return result

    def _before_rotation(self, q: Any, k: Any) -> tuple[Any, Any]:
        """Queries and keys (consumed) as the rotation takes them; a family that does more to them overrides this.

        [batch, heads, sequence, head_dim] in prefill, [1, batch, heads, head_dim] on height shards in decode.
        """
        return q, k

    def _rotate(self, x: Any, rot_mats: Sequence[Any], transform: Any, *, is_decode_mode: bool) -> Any:
        cos, sin = rot_mats
        rotated = self._ns.experimental.rotary_embedding_llama(x, cos, sin, transform, is_decode_mode=is_decode_mode)
        self._ns.deallocate(x)
        return rotated

    def _to_cache_type(self, x: Any) -> Any:
        if x.dtype == self.config.kv_cache_dtype:
            return x
        cast = self._ns.typecast(x, self.config.kv_cache_dtype)
        self._ns.deallocate(x)
        return cast

    def _fill(self, k: Any, v: Any, page_table: Any, user_ids: Sequence[int]) -> None:
        ns = self._ns
        covered = page_table.shape[-1] * self.config.paged_attention_config.block_size
        batch, heads, length, width = k.shape
        kept = min(length, covered)
        for cache, new in zip(self._bound_cache(), (k, v), strict=True):
            for row in user_ids:
                if batch == 1 and kept == length:
                    ns.experimental.paged_fill_cache(cache, new, page_table, batch_idx=row)
                    continue
                # The op takes one row at a time, and no more tokens than the table has blocks for.
                part = ns.slice(new, (row, 0, 0, 0), (row + 1, heads, kept, width))
                ns.experimental.paged_fill_cache(cache, part, page_table, batch_idx=row)
                ns.deallocate(part)

    def _attend_to_cache(self, q: Any, page_table: Any, chunk_start: Any) -> Any:
        keys, values = self._bound_cache()
        attend = self._ns.transformer.chunked_scaled_dot_product_attention
        if isinstance(chunk_start, int):
            return attend(q, keys, values, page_table, chunk_start)
        return attend(
            input_tensor_q=q,
            input_tensor_k=keys,
            input_tensor_v=values,
            page_table_tensor=page_table,
            chunk_start_idx_tensor=chunk_start,
        )


def as_rows(ns: Any, x: Any, rows: int, width: int) -> Any:
    """View [1, 1, 32, width] as its first `rows` rows, the rest of the tile as padding."""
    if x.shape[2] == rows:
        return x
    return ns.reshape(x, (1, 1, rows, width), (1, 1, TILE_ROWS, width))
