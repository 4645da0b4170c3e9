# SPDX-License-Identifier: Apache-2.0
"""Ops of ``ttnn.transformer``: scaled dot-product attention over tensors and over paged caches."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ..dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, bfloat16, int32
from ..memory import MemoryConfig, TensorMemoryLayout
from ..tensor import Array, Tensor
from .attention import attend, attend_chunk, attend_decode
from .common import (
    PACKED_FLOATS,
    refuse,
    require_dtype,
    require_layout,
    require_memory_layout,
    require_rank,
    require_tensors,
    run_one,
    tile_spec,
)
from .kv_cache import require_page_table
from .program_configs import SDPAProgramConfig

__all__ = [
    "chunked_scaled_dot_product_attention",
    "paged_scaled_dot_product_attention_decode",
    "scaled_dot_product_attention",
]


def scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    memory_config: MemoryConfig | None = None,
    program_config: SDPAProgramConfig | None = None,
    compute_kernel_config: Hashable = None,
) -> Tensor:
    """Return attention of ``q [b, H, S, hd]`` over ``k`` and ``v [b, K, T, hd]``; H is a multiple of K.

    ``scale`` is ``hd ** -0.5`` by default; the result is in DRAM by default. Follows chapter 40, section F.3, step
    2g.

    Raises:
        RuntimeError: a shape, type, layout or placement is not accepted, or S and T differ in causal mode.
    """
    op = "scaled_dot_product_attention"
    operands = _operands(op, input_tensor_q, input_tensor_k, input_tensor_v)
    batch, heads, rows, size = input_tensor_q.shape
    _require_heads(op, heads, input_tensor_k, input_tensor_v, size)
    if input_tensor_k.shape[0] != batch:
        refuse(op, f"batch {batch} of input_tensor_q, {input_tensor_k.shape[0]} of input_tensor_k")
    if is_causal and input_tensor_k.shape[2] != rows:
        refuse(op, f"causal attention of {rows} queries over {input_tensor_k.shape[2]} keys")
    factor = _factor(scale, size)

    def kernel(out: Array, arrays: list[Array]) -> None:
        with np.errstate(all="ignore"):
            for query, key, value, result in zip(*arrays, out, strict=True):
                attend(query, key, value, result, scale=factor, start=0 if is_causal else None)

    spec = tile_spec(input_tensor_q.shape, input_tensor_q.dtype, memory_config)
    attributes = (is_causal, scale, program_config, compute_kernel_config)
    return run_one(op, operands, kernel, spec, attributes=attributes)


def chunked_scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    page_table_tensor: Tensor,
    chunk_start_idx: int | None = None,
    *,
    chunk_start_idx_tensor: Tensor | None = None,
    scale: float | None = None,
    memory_config: MemoryConfig | None = None,
    program_config: SDPAProgramConfig | None = None,
    compute_kernel_config: Hashable = None,
) -> Tensor:
    """Return causal attention of ``q [b, H, S, hd]`` over paged caches through tables int32 ``[b, W]``.

    Row i of ``q`` stands at position start + i. The start is a number, which belongs to the program, or an int32
    tensor ``[1]`` that is read when the op runs (and wins when both are given). It must be a multiple of the chunk
    sizes of ``program_config``. Follows chapter 40, section F.3, step 2g.

    Raises:
        RuntimeError: a shape, type or layout is not accepted, the table is too narrow, or the start is wrong; when
            the op runs, a needed table entry names no block, or the start in the tensor is wrong.
    """
    op = "chunked_scaled_dot_product_attention"
    operands = _operands(op, input_tensor_q, input_tensor_k, input_tensor_v)
    require_tensors(op, page_table_tensor=page_table_tensor)
    require_page_table(op, "page_table_tensor", page_table_tensor)
    batch, heads, rows, size = input_tensor_q.shape
    _require_heads(op, heads, input_tensor_k, input_tensor_v, size)
    width = page_table_tensor.shape[1] * input_tensor_k.shape[2]
    if page_table_tensor.shape[0] != batch:
        refuse(op, f"page_table_tensor has {page_table_tensor.shape[0]} rows, input_tensor_q {batch}")
    factor = _factor(scale, size)
    reads: tuple[Tensor, ...] = (*operands, page_table_tensor)
    if chunk_start_idx_tensor is not None:
        require_tensors(op, chunk_start_idx_tensor=chunk_start_idx_tensor)
        require_dtype(op, "chunk_start_idx_tensor", chunk_start_idx_tensor, {int32})
        if chunk_start_idx_tensor.shape != (1,):
            refuse(op, f"chunk_start_idx_tensor {list(chunk_start_idx_tensor.shape)}; [1] is needed")
        reads = (*reads, chunk_start_idx_tensor)
        chunk_start_idx = None
    elif chunk_start_idx is None:
        refuse(op, "chunk_start_idx or chunk_start_idx_tensor is needed")
    else:
        _require_start(op, chunk_start_idx, program_config)
    if rows + (chunk_start_idx or 0) > width:
        refuse(op, f"{rows} queries from position {chunk_start_idx or 0}; the page table reaches {width} positions")

    def kernel(out: Array, arrays: list[Array]) -> None:
        start = chunk_start_idx
        if start is None:
            start = int(arrays[4][0])
            _require_start(op, start, program_config)
        query, key, value, table = arrays[:4]
        with np.errstate(all="ignore"):
            attend_chunk(op, query, key, value, table, out, scale=factor, start=start)

    spec = tile_spec(input_tensor_q.shape, input_tensor_q.dtype, memory_config)
    attributes = (chunk_start_idx, scale, program_config, compute_kernel_config)
    return run_one(op, reads, kernel, spec, attributes=attributes)


def paged_scaled_dot_product_attention_decode(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    page_table_tensor: Tensor,
    *,
    cur_pos_tensor: Tensor | None = None,
    scale: float | None = None,
    sliding_window_size: None = None,
    memory_config: MemoryConfig | None = None,
    program_config: SDPAProgramConfig | None = None,
    compute_kernel_config: Hashable = None,
) -> Tensor:
    """Return attention of one query per row, ``q [1, B, H, hd]``, over positions 0 to ``cur_pos_tensor[row]``.

    Tables are int32 ``[B, W]``, positions int32 ``[B]``; a row at a negative position gives zeros. The result is
    interleaved, in DRAM by default. Follows chapter 40, section F.2, step 3h.

    Raises:
        RuntimeError: a shape, type, layout or placement is not accepted; when the op runs, a position is beyond
            its table or a needed entry names no block.
    """
    op = "paged_scaled_dot_product_attention_decode"
    require_tensors(op, cur_pos_tensor=cur_pos_tensor, page_table_tensor=page_table_tensor)
    assert cur_pos_tensor is not None
    require_tensors(op, input_tensor_q=input_tensor_q, input_tensor_k=input_tensor_k, input_tensor_v=input_tensor_v)
    for name, cache in (("input_tensor_k", input_tensor_k), ("input_tensor_v", input_tensor_v)):
        require_dtype(op, name, cache, PACKED_FLOATS)
        require_layout(op, name, cache, TILE_LAYOUT)
        require_rank(op, name, cache, 4)
    require_dtype(op, "input_tensor_q", input_tensor_q, {bfloat16})
    require_layout(op, "input_tensor_q", input_tensor_q, TILE_LAYOUT)
    require_rank(op, "input_tensor_q", input_tensor_q, 4)
    require_page_table(op, "page_table_tensor", page_table_tensor)
    require_dtype(op, "cur_pos_tensor", cur_pos_tensor, {int32})
    require_layout(op, "cur_pos_tensor", cur_pos_tensor, ROW_MAJOR_LAYOUT)
    one, rows, heads, size = input_tensor_q.shape
    if one != 1 or cur_pos_tensor.shape != (rows,) or page_table_tensor.shape[0] != rows:
        refuse(
            op,
            f"input_tensor_q {list(input_tensor_q.shape)}, cur_pos_tensor {list(cur_pos_tensor.shape)} and "
            f"page_table_tensor {list(page_table_tensor.shape)} must be [1, B, H, hd], [B] and [B, W]",
        )
    _require_heads(op, heads, input_tensor_k, input_tensor_v, size)
    if sliding_window_size is not None:
        refuse(op, f"sliding_window_size={sliding_window_size} is not supported")
    if memory_config is not None and memory_config.is_sharded():
        refuse(op, "a sharded result is not supported with several query heads per key head")
    factor = _factor(scale, size)

    def kernel(out: Array, arrays: list[Array]) -> None:
        query, key, value, table, positions = arrays
        with np.errstate(all="ignore"):
            attend_decode(op, query[0], key, value, table, positions, out[0], scale=factor)

    spec = tile_spec(input_tensor_q.shape, bfloat16, memory_config)
    reads = (input_tensor_q, input_tensor_k, input_tensor_v, page_table_tensor, cur_pos_tensor)
    return run_one(op, reads, kernel, spec, attributes=(scale, program_config, compute_kernel_config))


def _operands(op: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    named = {"input_tensor_q": query, "input_tensor_k": key, "input_tensor_v": value}
    require_tensors(op, **named)
    for name, tensor in named.items():
        require_layout(op, name, tensor, TILE_LAYOUT)
        require_dtype(op, name, tensor, PACKED_FLOATS)
        require_rank(op, name, tensor, 4)
        require_memory_layout(op, name, tensor, TensorMemoryLayout.INTERLEAVED)
    return query, key, value


def _require_heads(op: str, heads: int, key: Tensor, value: Tensor, size: int) -> None:
    if key.shape != value.shape:
        refuse(op, f"keys {list(key.shape)} and values {list(value.shape)} differ")
    if key.shape[3] != size:
        refuse(op, f"head size {size} of input_tensor_q, {key.shape[3]} of input_tensor_k")
    if heads % key.shape[1]:
        refuse(op, f"{heads} query heads are no multiple of {key.shape[1]} key heads")


def _require_start(op: str, start: int, config: SDPAProgramConfig | None) -> None:
    if start < 0:
        refuse(op, f"chunk start {start} is negative")
    if config is not None:
        for name, unit in (("q_chunk_size", config.q_chunk_size), ("k_chunk_size", config.k_chunk_size)):
            if unit and start % unit:
                refuse(op, f"chunk start {start} is no multiple of {name} {unit}")


def _factor(scale: float | None, size: int) -> float:
    return float(size**-0.5) if scale is None else scale
