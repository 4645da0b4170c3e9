# SPDX-License-Identifier: Apache-2.0
"""Ops that change layout or placement and leave the values as they are."""

from __future__ import annotations

import numpy as np

from ..dtypes import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    TILE_SIZE,
    DataType,
    Layout,
    bfloat4_b,
    bfloat8_b,
    bfloat16,
)
from ..memory import DRAM_MEMORY_CONFIG, MemoryConfig, TensorMemoryLayout
from ..tensor import Array, Tensor, TensorSpec
from .common import FLOATS, refuse, require_layout, require_tensors, run_one, share, volume


def _copy(out: Array, arrays: list[Array]) -> None:
    np.copyto(out, arrays[0])


def to_layout(
    tensor: Tensor,
    layout: Layout,
    dtype: DataType | None = None,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Return the tensor in tile or row-major layout; a tensor that has it already shares its memory.

    ``dtype`` may change with the tile layout only. A block format becomes bfloat16 in row-major layout. A host
    tensor gives a host tensor over the same elements.

    Raises:
        RuntimeError: ``dtype`` differs and ``layout`` is row major.
    """
    if isinstance(tensor, Tensor) and tensor._mesh is None:
        return _host_layout(tensor, layout)
    require_tensors("to_layout", tensor=tensor)
    if tensor.layout is layout:
        return share(tensor)
    memory = memory_config or tensor.memory_config()
    if layout is TILE_LAYOUT:
        return run_one("to_layout", (tensor,), _copy, _float_spec("to_layout", tensor, layout, dtype, memory))
    result = _row_major_dtype(tensor)
    if dtype not in (None, result):
        refuse("to_layout", f"dtype {dtype.name if dtype else None} with ROW_MAJOR layout; {result.name} is needed")
    return run_one("to_layout", (tensor,), _copy, TensorSpec(tensor.shape, result, layout, memory))


def _host_layout(tensor: Tensor, layout: Layout) -> Tensor:
    if tensor.layout is layout:
        return tensor
    spec = TensorSpec(tensor.shape, _row_major_dtype(tensor), layout, tensor.memory_config())
    return Tensor._on_host(tensor._host_array("to_layout"), spec)


def tilize(
    input_tensor: Tensor,
    *,
    memory_config: MemoryConfig | None = None,
    dtype: DataType | None = None,
    use_multicore: bool = True,
) -> Tensor:
    """Return a row-major tensor in tile layout. Its last two sizes must be multiples of 32.

    Raises:
        RuntimeError: the tensor is in tile layout, or a size is no multiple of 32.
    """
    require_tensors("tilize", input_tensor=input_tensor)
    require_layout("tilize", "input_tensor", input_tensor, ROW_MAJOR_LAYOUT)
    if any(size % TILE_SIZE for size in input_tensor.shape[-2:]):
        refuse("tilize", f"input_tensor {list(input_tensor.shape)}: the last two sizes must be multiples of 32")
    memory = memory_config or input_tensor.memory_config()
    spec = _float_spec("tilize", input_tensor, TILE_LAYOUT, dtype, memory)
    return run_one("tilize", (input_tensor,), _copy, spec, attributes=(use_multicore,))


def untilize(input_tensor: Tensor, *, memory_config: MemoryConfig | None = None, use_multicore: bool = True) -> Tensor:
    """Return a tile-layout tensor in row-major layout; block formats become bfloat16.

    Raises:
        RuntimeError: the tensor is in row-major layout.
    """
    require_tensors("untilize", input_tensor=input_tensor)
    require_layout("untilize", "input_tensor", input_tensor, TILE_LAYOUT)
    memory = memory_config or input_tensor.memory_config()
    spec = TensorSpec(input_tensor.shape, _row_major_dtype(input_tensor), ROW_MAJOR_LAYOUT, memory)
    return run_one("untilize", (input_tensor,), _copy, spec, attributes=(use_multicore,))


def _row_major_dtype(tensor: Tensor) -> DataType:
    return bfloat16 if tensor.dtype in (bfloat8_b, bfloat4_b) else tensor.dtype


def _float_spec(op: str, tensor: Tensor, layout: Layout, dtype: DataType | None, memory: MemoryConfig) -> TensorSpec:
    result = dtype or tensor.dtype
    if result is not tensor.dtype and not {result, tensor.dtype} <= FLOATS:
        refuse(op, f"{tensor.dtype.name} to {result.name}; use typecast")
    return TensorSpec(tensor.shape, result, layout, memory)


def to_memory_config(
    tensor: Tensor,
    memory_config: MemoryConfig,
    dtype: DataType | None = None,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """Return the tensor placed by ``memory_config``, as ``dtype`` if given.

    A tensor that is placed so already is returned over the same memory, and ``dtype`` is then ignored, as ttnn
    does. Follows chapter 40, section F.2.

    Raises:
        RuntimeError: the shards do not fit the tensor or the cores.
    """
    require_tensors("to_memory_config", tensor=tensor)
    if memory_config == tensor.memory_config() and output_tensor is None:
        return share(tensor)
    return _place("to_memory_config", tensor, memory_config, dtype, output_tensor)


def interleaved_to_sharded(
    input_tensor: Tensor, sharded_memory_config: MemoryConfig, output_dtype: DataType | None = None
) -> Tensor:
    """Return an interleaved tensor cut into shards. Follows chapter 40, section F.2, step 2.

    Raises:
        RuntimeError: the input is sharded, the target is not, or the shards do not fit.
    """
    op = "interleaved_to_sharded"
    require_tensors(op, input_tensor=input_tensor)
    if input_tensor.is_sharded():
        refuse(op, f"input_tensor is {input_tensor.memory_config().memory_layout.name}; INTERLEAVED is needed")
    if not sharded_memory_config.is_sharded():
        refuse(op, "sharded_memory_config must be sharded")
    return _place(op, input_tensor, sharded_memory_config, output_dtype, None)


def sharded_to_interleaved(
    input_tensor: Tensor, memory_config: MemoryConfig | None = None, output_dtype: DataType | None = None
) -> Tensor:
    """Return a sharded tensor spread over all banks, in DRAM by default; an interleaved one shares its memory.

    Raises:
        RuntimeError: ``memory_config`` is sharded.
    """
    op = "sharded_to_interleaved"
    require_tensors(op, input_tensor=input_tensor)
    target = memory_config or DRAM_MEMORY_CONFIG
    if target.is_sharded():
        refuse(op, "memory_config must be interleaved")
    if not input_tensor.is_sharded():
        return share(input_tensor)
    return _place(op, input_tensor, target, output_dtype, None)


def _place(op: str, tensor: Tensor, memory: MemoryConfig, dtype: DataType | None, output: Tensor | None) -> Tensor:
    problem = shard_problem(tensor.padded_shape, memory)
    if problem:
        refuse(op, f"{list(tensor.padded_shape)} as {memory.memory_layout.name}: {problem}")
    spec = _float_spec(op, tensor, tensor.layout, dtype, memory)
    full = TensorSpec(spec.shape, spec.dtype, spec.layout, memory, tensor.padded_shape)
    return run_one(op, (tensor,), _copy, full, output=output)


def shard_problem(padded: tuple[int, ...], memory: MemoryConfig) -> str:
    """Return why shards of ``memory`` do not hold a tensor of this padded shape, or an empty string."""
    if not memory.is_sharded():
        return ""
    if memory.shard_spec is None:
        return "a shard shape and cores are needed"
    height, width = volume(padded[:-1]), padded[-1]
    rows, columns = memory.shard_spec.shape
    cores = memory.shard_spec.num_cores()
    if memory.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED and columns != width:
        return f"shards are {columns} wide, the tensor {width}"
    if memory.memory_layout is TensorMemoryLayout.WIDTH_SHARDED and rows != height:
        return f"shards have {rows} rows, the tensor {height}"
    shards = -(-height // rows) * -(-width // columns)
    return f"{shards} shards of {rows} x {columns} on {cores} cores" if shards > cores else ""
