# SPDX-License-Identifier: Apache-2.0
"""Ops that cut tensors apart: slice with bounds known on the host or held by the device, and split."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import partial

import numpy as np

from ..dispatch import dispatch
from ..dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, TILE_SIZE
from ..memory import MemoryConfig
from ..tensor import Array, Tensor, TensorSpec
from .common import (
    INTEGERS,
    dimension,
    refuse,
    require_dtype,
    require_layout,
    require_rank,
    require_tensors,
    run_one,
    share,
)


def slice(
    input_tensor: Tensor,
    slice_start: Sequence[int] | Tensor | None = None,
    slice_end: Sequence[int] | Tensor | None = None,
    slice_step: Sequence[int] | None = None,
    *,
    starts: Sequence[int] | Tensor | None = None,
    ends: Sequence[int] | Tensor | None = None,
    steps: Sequence[int] | None = None,
    slice_dim: int | None = None,
    num_devices: int | None = None,
    memory_config: MemoryConfig | None = None,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """Return part of a tensor, from ``starts`` (inclusive) to ``ends`` (exclusive) in every dimension.

    Bounds given as sequences belong to the program; negative ones count from the end, and a slice of everything
    shares the memory. Bounds given as int32 or uint32 tensors ``[rank]`` are read when the op runs: the result has
    ``shape[slice_dim] / num_devices`` elements in ``slice_dim`` and every other dimension in full. Follows
    chapter 40, section F.3, step 3.

    Raises:
        RuntimeError: bounds are out of range or empty. Bounds in tensors are checked when the op runs.
    """
    start = starts if slice_start is None else slice_start
    end = ends if slice_end is None else slice_end
    step = steps if slice_step is None else slice_step
    require_tensors("slice", input_tensor=input_tensor)
    memory = memory_config or input_tensor.memory_config()
    if isinstance(start, Tensor) or isinstance(end, Tensor):
        if step is not None or output_tensor is not None:
            refuse("slice", "bounds in tensors take no step and no output tensor")
        return _slice_on_device(input_tensor, start, end, slice_dim, num_devices, memory)
    if start is None or end is None:
        raise TypeError("slice: starts and ends are needed")
    return _slice_static(input_tensor, start, end, step, memory, output_tensor)


def _slice_static(
    tensor: Tensor,
    start: Sequence[int],
    end: Sequence[int],
    step: Sequence[int] | None,
    memory: MemoryConfig,
    output: Tensor | None,
) -> Tensor:
    rank = len(tensor.shape)
    strides = tuple(step or (1,) * rank)
    for name, values in (("starts", start), ("ends", end), ("steps", strides)):
        if len(values) != rank:
            refuse("slice", f"{name} {list(values)} for a tensor of rank {rank}")
    cuts = []
    for dim, size in enumerate(tensor.shape):
        low = start[dim] + size if start[dim] < 0 else start[dim]
        high = end[dim] + size if end[dim] < 0 else end[dim]
        if not 0 <= low < high <= size or strides[dim] < 1:
            refuse("slice", f"dimension {dim} of size {size}: {start[dim]} to {end[dim]} step {strides[dim]}")
        cuts.append((low, high, strides[dim]))
    shape = tuple(-(-(high - low) // stride) for low, high, stride in cuts)
    spec = TensorSpec(shape, tensor.dtype, tensor.layout, memory)
    if spec == tensor.spec and output is None:
        return share(tensor)
    window = tuple(builtins.slice(*cut) for cut in cuts)

    def kernel(out: Array, arrays: list[Array]) -> None:
        np.copyto(out, arrays[0][window])

    return run_one("slice", (tensor,), kernel, spec, output=output, attributes=tuple(cuts))


def _slice_on_device(
    tensor: Tensor,
    start: Sequence[int] | Tensor | None,
    end: Sequence[int] | Tensor | None,
    slice_dim: int | None,
    num_devices: int | None,
    memory: MemoryConfig,
) -> Tensor:
    op, rank = "slice", len(tensor.shape)
    require_tensors(op, starts=start, ends=end)
    assert isinstance(start, Tensor) and isinstance(end, Tensor)
    if slice_dim is None or num_devices is None:
        refuse(op, "bounds in tensors need slice_dim and num_devices")
    require_layout(op, "input_tensor", tensor, TILE_LAYOUT)
    for name, bounds in (("starts", start), ("ends", end)):
        require_dtype(op, name, bounds, INTEGERS)
        require_layout(op, name, bounds, ROW_MAJOR_LAYOUT)
        require_rank(op, name, bounds, 1)
        if bounds.shape[0] != rank:
            refuse(op, f"{name} has {bounds.shape[0]} entries for a tensor of rank {rank}")
    if slice_dim < 0:
        raise TypeError(f"slice: slice_dim={slice_dim} must not be negative")
    dim = dimension(op, slice_dim, rank)
    size = tensor.shape[dim]
    if num_devices < 1 or size % num_devices:
        refuse(op, f"dimension {dim} of size {size} does not divide by num_devices={num_devices}")
    part = size // num_devices
    unit = TILE_SIZE if dim >= rank - 2 else 1
    if part % unit:
        refuse(op, f"parts of {part} elements in dimension {dim} are no whole tiles of {TILE_SIZE}")
    shape = (*tensor.shape[:dim], part, *tensor.shape[dim + 1 :])
    spec = TensorSpec(shape, tensor.dtype, tensor.layout, memory)
    kernel = partial(_cut_at_bounds, dim=dim, part=part, unit=unit)
    return run_one(op, (tensor, start, end), kernel, spec, attributes=(dim, num_devices))


def _cut_at_bounds(out: Array, arrays: list[Array], *, dim: int, part: int, unit: int) -> None:
    source, start, end = arrays
    lows, highs = start.tolist(), end.tolist()
    for axis, size in enumerate(source.shape):
        low, high = lows[axis], highs[axis]
        whole = (low, high) == (0, size)
        part_of_it = axis == dim and low >= 0 and high - low == part and high <= size and low % unit == 0
        if not whole and not part_of_it:
            wanted = f"{part} elements from a multiple of {unit}" if axis == dim else "everything"
            refuse("slice", f"bounds in tensors: dimension {axis} of size {size}: {low} to {high}; {wanted} is needed")
    first = lows[dim]
    np.copyto(out, source[_along(dim, first, first + part)])


def _along(dim: int, first: int, last: int) -> tuple[builtins.slice, ...]:
    return (*(builtins.slice(None),) * dim, builtins.slice(first, last))


def split(
    input_tensor: Tensor,
    split_size: int | Sequence[int],
    dim: int = 0,
    *,
    memory_config: MemoryConfig | None = None,
) -> list[Tensor]:
    """Return consecutive parts along ``dim``: of one size (the last may be smaller), or of the listed sizes.

    Raises:
        RuntimeError: a size below 1, listed sizes that do not add up, or a dimension out of range.
    """
    require_tensors("split", input_tensor=input_tensor)
    axis = dimension("split", dim, len(input_tensor.shape))
    total = input_tensor.shape[axis]
    sizes = _part_sizes(total, split_size)
    if len(sizes) == 1:
        return [share(input_tensor)]
    bounds = np.cumsum((0, *sizes)).tolist()
    before, after = input_tensor.shape[:axis], input_tensor.shape[axis + 1 :]
    memory = memory_config or input_tensor.memory_config()
    specs = [TensorSpec((*before, size, *after), input_tensor.dtype, input_tensor.layout, memory) for size in sizes]

    def kernel(made: list[Array], read: list[Array], _written: list[Array]) -> None:
        for out, first, last in zip(made, bounds[:-1], bounds[1:], strict=True):
            np.copyto(out, read[0][_along(axis, first, last)])

    return dispatch("split", reads=(input_tensor,), kernel=kernel, outputs=specs, attributes=(axis, *sizes))


def _part_sizes(total: int, split_size: int | Sequence[int]) -> list[int]:
    if isinstance(split_size, int):
        if split_size < 1:
            refuse("split", f"split_size must be at least 1, got {split_size}")
        return [min(split_size, total - first) for first in range(0, total, split_size)]
    sizes = [int(size) for size in split_size]
    if sum(sizes) != total or any(size < 1 for size in sizes):
        refuse("split", f"sizes {sizes} must be positive and add up to {total}")
    return sizes
