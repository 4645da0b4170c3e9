# SPDX-License-Identifier: Apache-2.0
"""Ops that put tensors together or make them larger: concat and pad."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import numpy as np

from ..dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT
from ..memory import DRAM_MEMORY_CONFIG, MemoryConfig
from ..tensor import Array, Tensor, TensorSpec
from .common import dimension, refuse, require_tensors, run_one, share


def concat(tensors: Sequence[Tensor], dim: int = 0, *, memory_config: MemoryConfig | None = None) -> Tensor:
    """Return the tensors one after the other along ``dim``, in DRAM unless ``memory_config`` says otherwise.

    One tensor alone is returned over the same memory. The result is row major only if all tensors are.

    Raises:
        RuntimeError: no tensor, or types or other dimensions differ.
    """
    op = "concat"
    if not tensors:
        refuse(op, "the list of tensors is empty")
    require_tensors(op, **{f"tensors[{index}]": tensor for index, tensor in enumerate(tensors)})
    first = tensors[0]
    axis = dimension(op, dim, len(first.shape))
    if len(tensors) == 1:
        return share(first)
    rest = [(*tensor.shape[:axis], *tensor.shape[axis + 1 :]) for tensor in tensors]
    for index, tensor in enumerate(tensors):
        if len(tensor.shape) != len(first.shape) or rest[index] != rest[0]:
            refuse(op, f"tensors[{index}] {list(tensor.shape)} and {list(first.shape)} differ outside dimension {axis}")
        if tensor.dtype is not first.dtype:
            refuse(op, f"tensors[{index}] has dtype {tensor.dtype.name}, tensors[0] {first.dtype.name}")
    total = sum(tensor.shape[axis] for tensor in tensors)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    rows = all(tensor.layout is ROW_MAJOR_LAYOUT for tensor in tensors)
    spec = TensorSpec(
        shape, first.dtype, ROW_MAJOR_LAYOUT if rows else TILE_LAYOUT, memory_config or DRAM_MEMORY_CONFIG
    )

    def kernel(out: Array, arrays: list[Array]) -> None:
        np.concatenate(arrays, axis=axis, out=out)

    return run_one(op, tensors, kernel, spec, attributes=(axis,))


def pad(
    input_tensor: Tensor,
    padding: Sequence[Sequence[int]],
    value: float,
    *,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Return the tensor with ``value`` added around it.

    ``padding`` has one pair (before, after) per dimension; a shorter list pads the last dimensions. In tile layout
    nothing can be added before. Nothing to add shares the memory.

    Raises:
        RuntimeError: more pairs than dimensions, a negative number, or padding before in tile layout.
    """
    op = "pad"
    require_tensors(op, input_tensor=input_tensor)
    rank = len(input_tensor.shape)
    if len(padding) > rank:
        refuse(op, f"{len(padding)} pairs for a tensor of rank {rank}")
    pairs = [(0, 0)] * (rank - len(padding)) + [(int(before), int(after)) for before, after in padding]
    if any(before < 0 or after < 0 for before, after in pairs):
        refuse(op, f"negative padding in {list(padding)}")
    if input_tensor.layout is TILE_LAYOUT and any(before for before, _ in pairs):
        refuse(op, f"padding before the elements, {list(padding)}, needs row-major layout")
    sizes = zip(input_tensor.shape, pairs, strict=True)
    shape = tuple(before + size + after for size, (before, after) in sizes)
    memory = memory_config or input_tensor.memory_config()
    spec = TensorSpec(shape, input_tensor.dtype, input_tensor.layout, memory)
    if spec == input_tensor.spec:
        return share(input_tensor)
    window = tuple(
        builtins.slice(before, before + size) for size, (before, _) in zip(input_tensor.shape, pairs, strict=True)
    )

    def kernel(out: Array, arrays: list[Array]) -> None:
        out.fill(value)
        out[window] = arrays[0]

    return run_one(op, (input_tensor,), kernel, spec, attributes=(*pairs, value))
