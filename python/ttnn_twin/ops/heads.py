# SPDX-License-Identifier: Apache-2.0
"""Ops that split a fused projection into attention heads and put heads together again."""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from ..cores import CoreCoord, num_cores_to_corerangeset
from ..dispatch import dispatch
from ..dtypes import TILE_LAYOUT, TILE_SIZE, bfloat8_b, bfloat16, float32
from ..memory import BufferType, MemoryConfig, ShardOrientation, ShardSpec, TensorMemoryLayout
from ..tensor import Array, Tensor
from .common import refuse, require_dtype, require_layout, require_rank, require_tensors, round_up, run_one, tile_spec

_GRID = CoreCoord(8, 8)
_HEAD_TYPES = frozenset({bfloat16, float32, bfloat8_b})


def nlp_create_qkv_heads(
    input: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    transpose_k_heads: bool = True,
    memory_config: MemoryConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split ``[B, 1, S, (H + 2 K) * hd]`` into queries ``[B, H, S, hd]`` and keys and values ``[B, K, S, hd]``.

    Keys come as ``[B, K, hd, S]`` with ``transpose_k_heads``. Follows chapter 40, section F.3, step 2c.

    Raises:
        RuntimeError: the width does not divide into heads, or a layout, type or shape is not accepted.
    """
    op = "nlp_create_qkv_heads"
    require_tensors(op, input=input)
    require_layout(op, "input", input, TILE_LAYOUT)
    require_dtype(op, "input", input, _HEAD_TYPES)
    require_rank(op, "input", input, 4)
    batch, one, rows, _ = input.shape
    if one != 1:
        refuse(op, f"input {list(input.shape)}: dimension 1 must be 1")
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    size = _head_size(op, input, num_heads, kv_heads)
    memory = memory_config or input.memory_config()
    key_shape = (batch, kv_heads, size, rows) if transpose_k_heads else (batch, kv_heads, rows, size)
    shapes = ((batch, num_heads, rows, size), key_shape, (batch, kv_heads, rows, size))

    def kernel(made: list[Array], read: list[Array], _written: list[Array]) -> None:
        parts = read[0].reshape(batch, rows, -1, size)
        query, key, value = made
        np.copyto(query, parts[:, :, :num_heads].transpose(0, 2, 1, 3))
        order = (0, 2, 3, 1) if transpose_k_heads else (0, 2, 1, 3)
        np.copyto(key, parts[:, :, num_heads : num_heads + kv_heads].transpose(order))
        np.copyto(value, parts[:, :, num_heads + kv_heads :].transpose(0, 2, 1, 3))

    made = dispatch(
        op,
        reads=(input,),
        kernel=kernel,
        outputs=[tile_spec(shape, input.dtype, memory) for shape in shapes],
        attributes=(num_heads, kv_heads, transpose_k_heads),
    )
    return made[0], made[1], made[2]


def nlp_create_qkv_heads_decode(
    input_tensor: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    overlap_qk_coregrid: bool = True,
    memory_config: MemoryConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split ``[1, 1, B, (H + 2 K) * hd]`` with B <= 32 rows into ``[1, B, H, hd]`` and twice ``[1, B, K, hd]``.

    The results are cut by row over B cores in L1, whatever ``memory_config`` says, as in ttnn. Follows chapter 40,
    section F.2, step 3e.

    Raises:
        RuntimeError: more than 32 rows, a width that does not divide into heads, separate core grids, or a layout,
            type or shape is not accepted.
    """
    op = "nlp_create_qkv_heads_decode"
    require_tensors(op, input_tensor=input_tensor)
    require_layout(op, "input_tensor", input_tensor, TILE_LAYOUT)
    require_dtype(op, "input_tensor", input_tensor, {bfloat16, float32})
    require_rank(op, "input_tensor", input_tensor, 4)
    rows = input_tensor.shape[2]
    if input_tensor.shape[:2] != (1, 1) or not 1 <= rows <= TILE_SIZE:
        refuse(op, f"input_tensor {list(input_tensor.shape)}; [1, 1, B, width] with B of 1 to 32 is needed")
    if not overlap_qk_coregrid:
        refuse(op, "overlap_qk_coregrid=False is not supported")
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    size = _head_size(op, input_tensor, num_heads, kv_heads)
    bounds = ((0, num_heads), (num_heads, num_heads + kv_heads), (num_heads + kv_heads, num_heads + 2 * kv_heads))
    outputs = [
        tile_spec((1, rows, last - first, size), input_tensor.dtype, row_shards(rows, last - first, size))
        for first, last in bounds
    ]

    def kernel(made: list[Array], read: list[Array], _written: list[Array]) -> None:
        parts = read[0].reshape(1, rows, -1, size)
        for out, (first, last) in zip(made, bounds, strict=True):
            np.copyto(out, parts[:, :, first:last])

    made = dispatch(
        op, reads=(input_tensor,), kernel=kernel, outputs=outputs, attributes=(num_heads, kv_heads, memory_config)
    )
    return made[0], made[1], made[2]


@cache
def row_shards(rows: int, heads: int, size: int) -> MemoryConfig:
    """Return the memory config that puts the heads of each row on a core of its own."""
    grid = num_cores_to_corerangeset(rows, _GRID, True)
    spec = ShardSpec(grid, (round_up(heads), size), ShardOrientation.ROW_MAJOR)
    return MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, spec)


@cache
def _head_shards(heads: int, size: int) -> MemoryConfig:
    shards = ShardSpec(num_cores_to_corerangeset(heads, _GRID, True), (TILE_SIZE, size), ShardOrientation.ROW_MAJOR)
    return MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, BufferType.L1, shards)


def _head_size(op: str, tensor: Tensor, heads: int, kv_heads: int) -> int:
    width = tensor.shape[-1]
    count = heads + 2 * kv_heads
    if heads < 1 or kv_heads < 1 or width % count:
        refuse(op, f"width {width} does not divide into {heads} + 2 * {kv_heads} heads")
    return width // count


def nlp_concat_heads(input_tensor: Tensor, *, memory_config: MemoryConfig | None = None) -> Tensor:
    """Put heads together: ``[B, H, S, hd]`` becomes ``[B, 1, S, H * hd]``. Follows chapter 40, section F.3.

    Raises:
        RuntimeError: a layout, type or rank is not accepted.
    """
    op = "nlp_concat_heads"
    require_tensors(op, input_tensor=input_tensor)
    require_layout(op, "input_tensor", input_tensor, TILE_LAYOUT)
    require_dtype(op, "input_tensor", input_tensor, _HEAD_TYPES)
    require_rank(op, "input_tensor", input_tensor, 4)
    batch, heads, rows, size = input_tensor.shape
    spec = tile_spec((batch, 1, rows, heads * size), input_tensor.dtype, memory_config or input_tensor.memory_config())
    return run_one(op, (input_tensor,), _concat_heads, spec)


def _concat_heads(out: Array, arrays: list[Array]) -> None:
    batch, heads, rows, size = arrays[0].shape
    np.copyto(out.reshape(batch, rows, heads, size), arrays[0].transpose(0, 2, 1, 3))


def nlp_concat_heads_decode(
    input_tensor: Tensor, *, num_heads: int, memory_config: MemoryConfig | None = None
) -> Tensor:
    """Put the heads of B rows together: sharded ``[1, B, H, hd]`` becomes ``[1, 1, 32, num_heads * hd]``.

    The result is cut by head over ``num_heads`` cores in L1, whatever ``memory_config`` says, as in ttnn; rows
    beyond B are zero. Follows chapter 40, section
    F.2, step 3i.

    Raises:
        RuntimeError: the input is not sharded, or its shape does not hold ``num_heads`` heads of up to 32 rows.
    """
    op = "nlp_concat_heads_decode"
    require_tensors(op, input_tensor=input_tensor)
    require_layout(op, "input_tensor", input_tensor, TILE_LAYOUT)
    require_dtype(op, "input_tensor", input_tensor, {bfloat16, float32})
    require_rank(op, "input_tensor", input_tensor, 4)
    if not input_tensor.is_sharded():
        refuse(op, "input_tensor is INTERLEAVED; a sharded tensor is needed")
    one, rows, heads, size = input_tensor.shape
    if one != 1 or rows > TILE_SIZE or size % TILE_SIZE:
        refuse(op, f"input_tensor {list(input_tensor.shape)}; [1, B, H, hd] with B <= 32 and hd in tiles is needed")
    if not 1 <= num_heads <= heads:
        refuse(op, f"num_heads={num_heads} for an input of {heads} heads")
    spec = tile_spec((1, 1, TILE_SIZE, num_heads * size), input_tensor.dtype, _head_shards(num_heads, size))
    kernel = partial(_concat_rows, rows=rows, heads=num_heads)
    return run_one(op, (input_tensor,), kernel, spec, attributes=(num_heads, memory_config))


def _concat_rows(out: Array, arrays: list[Array], *, rows: int, heads: int) -> None:
    out[:, :, rows:] = 0
    out[0, 0, :rows] = arrays[0][0, :, :heads].reshape(rows, -1)
