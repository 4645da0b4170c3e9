# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding over interleaved pairs, with the pair swap given as a 32 x 32 matrix."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ..dtypes import TILE_LAYOUT, TILE_SIZE, bfloat16
from ..memory import MemoryConfig, TensorMemoryLayout
from ..tensor import Array, Tensor
from .common import (
    refuse,
    require_dtype,
    require_layout,
    require_memory_layout,
    require_rank,
    require_tensors,
    run_one,
    tile_spec,
)

LARGEST_HEAD = 256


def rotary_embedding_llama(
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    trans_mat: Tensor,
    *,
    is_decode_mode: bool = False,
    memory_config: MemoryConfig | None = None,
    compute_kernel_config: Hashable = None,
) -> Tensor:
    """Return ``x * cos + (x @ trans) * sin``, ``trans`` being applied to each 32 elements of a head.

    Prefill: ``x [B, H, S, hd]``, tables ``[1, 1 or H, S or more, hd]``, ``trans [1, 1, 32, 32]``. Decode, all
    height sharded: ``x [1, B, H, hd]``, tables ``[1, B, 1 or 32, hd]`` (row 0 counts), ``trans [1, 1, 32 B, 32]``
    or one matrix. All are bfloat16 in tile layout. Follows chapter 40, sections F.1 and F.2, step 3f.

    Raises:
        RuntimeError: a shape, type, layout or placement is not accepted.
    """
    op = "rotary_embedding_llama"
    operands = {
        "input_tensor": input_tensor,
        "cos_cache": cos_cache,
        "sin_cache": sin_cache,
        "trans_mat": trans_mat,
    }
    require_tensors(op, **operands)
    layout = TensorMemoryLayout.HEIGHT_SHARDED if is_decode_mode else TensorMemoryLayout.INTERLEAVED
    for name, tensor in operands.items():
        require_layout(op, name, tensor, TILE_LAYOUT)
        require_dtype(op, name, tensor, {bfloat16})
        require_rank(op, name, tensor, 4)
        require_memory_layout(op, name, tensor, layout)
    size = input_tensor.shape[-1]
    if size % TILE_SIZE or size > LARGEST_HEAD:
        refuse(op, f"head size {size}; a multiple of 32 up to {LARGEST_HEAD} is needed")
    if cos_cache.shape != sin_cache.shape:
        refuse(op, f"cos_cache {list(cos_cache.shape)} and sin_cache {list(sin_cache.shape)} differ")
    _require_tables(op, input_tensor, cos_cache, decode=is_decode_mode)
    matrices = _count_matrices(op, input_tensor, trans_mat, decode=is_decode_mode)
    rows = 1 if is_decode_mode else input_tensor.shape[2]

    def kernel(out: Array, arrays: list[Array]) -> None:
        x, cos, sin, trans = arrays
        swapped = np.matmul(x.reshape(matrices, -1, TILE_SIZE), trans.reshape(matrices, TILE_SIZE, TILE_SIZE))
        np.multiply(x, cos[:, :, :rows], out=out)
        out += swapped.reshape(x.shape) * sin[:, :, :rows]

    spec = tile_spec(input_tensor.shape, bfloat16, memory_config or input_tensor.memory_config())
    attributes = (is_decode_mode, compute_kernel_config)
    return run_one(op, tuple(operands.values()), kernel, spec, attributes=attributes)


def _require_tables(op: str, x: Tensor, table: Tensor, *, decode: bool) -> None:
    batch, second, rows, size = table.shape
    if batch != 1 or size != x.shape[3]:
        refuse(
            op, f"cos_cache {list(table.shape)}; [1, .., .., {x.shape[3]}] is needed, as input_tensor {list(x.shape)}"
        )
    if decode:
        if x.shape[0] != 1 or second != x.shape[1]:
            refuse(op, f"cos_cache holds {second} rows, input_tensor {list(x.shape)} has {x.shape[1]}")
    elif second not in (1, x.shape[1]) or rows < x.shape[2]:
        refuse(op, f"cos_cache {list(table.shape)} does not cover input_tensor {list(x.shape)}")


def _count_matrices(op: str, x: Tensor, trans: Tensor, *, decode: bool) -> int:
    count = trans.shape[2] // TILE_SIZE
    allowed = {1, x.shape[1]} if decode else {1}
    if trans.shape != (1, 1, count * TILE_SIZE, TILE_SIZE) or count not in allowed:
        wanted = f"32 or {x.shape[1] * TILE_SIZE}" if decode else "32"
        refuse(op, f"trans_mat {list(trans.shape)}; [1, 1, {wanted}, 32] is needed")
    return count
