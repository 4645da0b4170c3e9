# SPDX-License-Identifier: Apache-2.0
"""Ops that rename or reorder dimensions: reshape, unsqueeze, transpose, permute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..dtypes import TILE_LAYOUT, TILE_SIZE
from ..memory import MemoryConfig
from ..tensor import Array, Tensor, TensorSpec
from .common import dimension, refuse, require_tensors, run_one, share, volume


def reshape(
    input_tensor: Tensor,
    shape: Sequence[int],
    padded_shape: Sequence[int] | None = None,
    *,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Return the elements under another shape; one size may be -1.

    With ``padded_shape`` (same volume as the padded input) the padded rows in memory are taken as they are and
    ``shape`` says how many of them count: ``[1, 1, 32, W]`` becomes ``[1, 1, B, W]`` with its first B rows. A
    reshape to the shape it has shares the memory; any other one copies. Follows chapter 40, section F.2, step 3d.

    Raises:
        RuntimeError: the volumes differ, or ``shape`` does not fit into ``padded_shape``.
    """
    require_tensors("reshape", input_tensor=input_tensor)
    sizes = _resolved(input_tensor, shape)
    spec = _target(input_tensor, sizes, padded_shape, memory_config or input_tensor.memory_config())
    if spec == input_tensor.spec:
        return share(input_tensor)
    if volume(sizes) == volume(input_tensor.shape):
        return run_one("reshape", (input_tensor,), _copy_flat, spec, attributes=("logical",))
    kernel = partial(_reinterpret, padded=input_tensor.padded_shape, target=spec.padded_shape or sizes)
    return run_one("reshape", (input_tensor,), kernel, spec, attributes=("padded",))


def unsqueeze_to_4D(tensor: Tensor) -> Tensor:
    """Return the tensor with leading dimensions of size 1 up to rank 4.

    Raises:
        RuntimeError: the rank is above 4.
    """
    require_tensors("unsqueeze_to_4D", tensor=tensor)
    rank = len(tensor.shape)
    if rank > 4:
        refuse("unsqueeze_to_4D", f"tensor {list(tensor.shape)} has rank {rank}; at most 4 is possible")
    return reshape(tensor, (*(1,) * (4 - rank), *tensor.shape))


def transpose(input_tensor: Tensor, dim1: int, dim2: int, *, memory_config: MemoryConfig | None = None) -> Tensor:
    """Return the tensor with two dimensions exchanged. Follows chapter 40, section F.2, step 2.

    Raises:
        RuntimeError: a dimension is out of range.
    """
    require_tensors("transpose", input_tensor=input_tensor)
    order = list(range(len(input_tensor.shape)))
    first = dimension("transpose", dim1, len(order))
    second = dimension("transpose", dim2, len(order))
    order[first], order[second] = order[second], order[first]
    return _reorder("transpose", input_tensor, order, memory_config)


def permute(input_tensor: Tensor, dims: Sequence[int], *, memory_config: MemoryConfig | None = None) -> Tensor:
    """Return the tensor with its dimensions in the order ``dims``.

    Raises:
        RuntimeError: ``dims`` is no permutation of the dimensions.
    """
    require_tensors("permute", input_tensor=input_tensor)
    rank = len(input_tensor.shape)
    if len(dims) != rank:
        refuse("permute", f"{len(dims)} dimensions {list(dims)} for a tensor of rank {rank}")
    order = [dimension("permute", dim, rank) for dim in dims]
    if sorted(order) != list(range(rank)):
        refuse("permute", f"{list(dims)} names a dimension twice")
    return _reorder("permute", input_tensor, order, memory_config)


def _resolved(tensor: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = [int(size) for size in shape]
    count = volume(tensor.shape)
    if sizes.count(-1) == 1:
        rest = -volume(sizes)
        if rest and count % rest == 0:
            sizes[sizes.index(-1)] = count // rest
    if any(size < 0 for size in sizes):
        refuse("reshape", f"shape {list(shape)} for a tensor of {count} elements")
    return tuple(sizes)


def _target(
    tensor: Tensor, sizes: tuple[int, ...], padded_shape: Sequence[int] | None, memory: MemoryConfig
) -> TensorSpec:
    count = volume(tensor.shape)
    if volume(sizes) == count:
        return TensorSpec(sizes, tensor.dtype, tensor.layout, memory)
    if padded_shape is None:
        refuse("reshape", f"{list(tensor.shape)} has {count} elements, {list(sizes)} has {volume(sizes)}")
    padded = tuple(int(size) for size in padded_shape)
    spec = TensorSpec(sizes, tensor.dtype, tensor.layout, memory, padded)
    problem = _padding_problem(tensor, spec)
    if problem:
        refuse("reshape", f"{list(sizes)} padded to {list(padded)}: {problem}")
    return spec


def _padding_problem(tensor: Tensor, spec: TensorSpec) -> str:
    padded = spec.padded_shape or spec.shape
    if len(padded) != len(spec.shape) or any(p < s for p, s in zip(padded, spec.shape, strict=True)):
        return "the padded shape is smaller"
    if volume(padded) != volume(tensor.padded_shape):
        return f"the padded input {list(tensor.padded_shape)} has another volume"
    if spec.layout is TILE_LAYOUT:
        if any(size % TILE_SIZE for size in padded[-2:]):
            return f"the last two padded sizes must be multiples of {TILE_SIZE}"
        if padded[-1] != tensor.padded_shape[-1]:
            return f"the padded width of the input is {tensor.padded_shape[-1]} and must stay in tile layout"
    return ""


def _copy_flat(out: Array, arrays: list[Array]) -> None:
    np.copyto(out.reshape(-1), arrays[0].reshape(-1))


def _reinterpret(out: Array, arrays: list[Array], *, padded: Sequence[int], target: Sequence[int]) -> None:
    source = arrays[0]
    if source.shape != tuple(padded):
        # what the hardware leaves in the padding is unknown; here it is zero
        full = np.zeros(padded, source.dtype)
        full[tuple(slice(size) for size in source.shape)] = source
        source = full
    np.copyto(out, source.reshape(target)[tuple(slice(size) for size in out.shape)])


def _reorder(op: str, tensor: Tensor, order: list[int], memory_config: MemoryConfig | None) -> Tensor:
    shape = tuple(tensor.shape[dim] for dim in order)
    spec = TensorSpec(shape, tensor.dtype, tensor.layout, memory_config or tensor.memory_config())
    moved = [dim for dim in order if tensor.shape[dim] != 1]
    if spec == tensor.spec and moved == sorted(moved):
        return share(tensor)

    def kernel(out: Array, arrays: list[Array]) -> None:
        np.copyto(out, arrays[0].transpose(order))

    return run_one(op, (tensor,), kernel, spec, attributes=tuple(order))
