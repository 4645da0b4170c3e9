# SPDX-License-Identifier: Apache-2.0
"""Ops that pick the largest elements: topk and argmax."""

from __future__ import annotations

import numpy as np

from ..dispatch import dispatch
from ..dtypes import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    bfloat8_b,
    bfloat16,
    float32,
    int32,
    uint16,
    uint32,
)
from ..memory import MemoryConfig, TensorMemoryLayout
from ..tensor import Array, Tensor, TensorSpec
from .common import (
    dimension,
    refuse,
    require_dtype,
    require_layout,
    require_memory_layout,
    require_tensors,
    round_up,
    run_one,
    share,
    tile_spec,
    volume,
)

WIDEST_UINT16 = 65536
"""Padded width up to which topk gives uint16 indices."""

_BLOCK = 64


def topk(
    input_tensor: Tensor,
    k: int = 32,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    memory_config: MemoryConfig | None = None,
    stable: bool = False,
) -> list[Tensor]:
    """Return the ``k`` largest values of the last dimension, falling, and their indices, both in tile layout.

    Equal values come in the order of their indices, whatever ``stable`` says; hardware needs it for that. Indices
    are uint16, or uint32 when the padded width is above 65536 or the input float32. Follows chapter 40, section F.2,
    step 6.

    Raises:
        RuntimeError: ``k`` is outside ``[1, width]``, another dimension, ``largest=False``, or a layout or type is
            not accepted.
    """
    op = "topk"
    require_tensors(op, input_tensor=input_tensor)
    require_layout(op, "input_tensor", input_tensor, TILE_LAYOUT)
    require_dtype(op, "input_tensor", input_tensor, {bfloat16, bfloat8_b, float32})
    rank = len(input_tensor.shape)
    if dimension(op, dim, rank) != rank - 1 or not largest:
        refuse(op, f"dim={dim}, largest={largest}: only the largest of the last dimension are supported")
    width = input_tensor.shape[-1]
    if not 1 <= k <= width:
        refuse(op, f"k={k} is outside [1, {width}], the size of the last dimension")
    wide = round_up(width) > WIDEST_UINT16 or input_tensor.dtype is float32
    shape = (*input_tensor.shape[:-1], k)
    memory = memory_config or input_tensor.memory_config()
    values = tile_spec(shape, input_tensor.dtype, memory)
    indices = tile_spec(shape, uint32 if wide else uint16, memory)

    def kernel(made: list[Array], read: list[Array], _written: list[Array]) -> None:
        rows = read[0].reshape(-1, width)
        for row, best, where in zip(rows, made[0].reshape(-1, k), made[1].reshape(-1, k), strict=True):
            order = largest_first(row, k)
            best[:] = row[order]
            where[:] = order

    return dispatch(op, reads=(input_tensor,), kernel=kernel, outputs=(values, indices), attributes=(k, sorted, stable))


def largest_first(row: Array, k: int) -> Array:
    """Return the indices of the ``k`` largest elements of one row, falling, lower index first among equals."""
    # The k-th largest of block maxima is a lower bound of the k-th largest element, and cheap to find.
    blocks = row.size // _BLOCK
    bounds = row[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1) if blocks >= k else row
    candidates = np.flatnonzero(row >= np.partition(bounds, bounds.size - k)[bounds.size - k])
    if candidates.size < k:  # NaN sorts above everything and compares with nothing
        candidates = np.arange(row.size)
    order = np.argsort(-row[candidates], kind="stable")
    chosen: Array = candidates[order[:k]]
    return chosen


def argmax(
    input_tensor: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    memory_config: MemoryConfig | None = None,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """Return the index of the largest element along ``dim`` (of all elements without it): uint32, row major.

    The lowest index wins among equals. ``output_tensor`` is a uint32 row-major tensor of the same volume. Follows
    chapter 40, section F.2, step 6.

    Raises:
        RuntimeError: tile layout without ``dim``, a sharded tensor, or a layout, type or volume is not accepted.
    """
    op = "argmax"
    require_tensors(op, input_tensor=input_tensor)
    require_memory_layout(op, "input_tensor", input_tensor, TensorMemoryLayout.INTERLEAVED)
    rank = len(input_tensor.shape)
    if input_tensor.layout is TILE_LAYOUT:
        require_dtype(op, "input_tensor", input_tensor, {bfloat16, float32})
        if dim is None:
            refuse(op, "input_tensor in TILE layout needs dim")
    else:
        require_dtype(op, "input_tensor", input_tensor, {bfloat16, float32, int32, uint32, uint16})
    axis = None if dim is None else dimension(op, dim, rank)
    shape = _reduced(tuple(input_tensor.shape), axis, keepdim)
    spec = TensorSpec(shape, uint32, ROW_MAJOR_LAYOUT, memory_config or input_tensor.memory_config())

    def kernel(out: Array, arrays: list[Array]) -> None:
        np.copyto(out.reshape(-1), np.argmax(arrays[0], axis=axis).reshape(-1), casting="unsafe")

    attributes = (axis, keepdim)
    if output_tensor is None:
        return run_one(op, (input_tensor,), kernel, spec, attributes=attributes)
    require_tensors(op, output_tensor=output_tensor)
    require_dtype(op, "output_tensor", output_tensor, {uint32})
    require_layout(op, "output_tensor", output_tensor, ROW_MAJOR_LAYOUT)
    if volume(output_tensor.shape) != volume(shape):
        refuse(op, f"output_tensor {list(output_tensor.shape)} for a result of shape {list(shape)}")
    dispatch(
        op,
        reads=(input_tensor,),
        kernel=lambda _made, read, written: kernel(written[0], read),
        writes=(output_tensor,),
        attributes=attributes,
    )
    return share(output_tensor)


def _reduced(shape: tuple[int, ...], axis: int | None, keepdim: bool) -> tuple[int, ...]:
    if axis is None:
        return (1,) * len(shape) if keepdim else ()
    return (*shape[:axis], *((1,) if keepdim else ()), *shape[axis + 1 :])
