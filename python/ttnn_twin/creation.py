# SPDX-License-Identifier: Apache-2.0
"""Tensors filled with one value, or made from a host array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .dtypes import (
    BLOCK_FLOAT_TYPES,
    ROUNDED_TYPES,
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    DataType,
    Layout,
    bfloat16,
    round_to_bfloat16,
    storage_dtype,
)
from .memory import DRAM_MEMORY_CONFIG, MemoryConfig
from .mesh import MeshDevice
from .tensor import Array, Tensor, TensorSpec
from .transfer import blank, to_device


def full(
    shape: Sequence[int],
    fill_value: float,
    *,
    dtype: DataType = bfloat16,
    layout: Layout = ROW_MAJOR_LAYOUT,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Return a tensor of ``shape`` filled with ``fill_value``, on ``device`` or on the host.

    Raises:
        RuntimeError: ``device`` is capturing a trace (the value is uploaded).
    """
    return _filled("full", shape, fill_value, dtype, layout, device, memory_config)


def _filled(
    op: str,
    shape: Sequence[int],
    value: float,
    dtype: DataType,
    layout: Layout,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    layout = TILE_LAYOUT if dtype in BLOCK_FLOAT_TYPES else layout
    spec = TensorSpec(tuple(shape), dtype, layout, memory_config or DRAM_MEMORY_CONFIG)
    if device is None:
        return Tensor._on_host(_values(spec, value) if value else blank(spec.shape, storage_dtype(dtype)), spec)
    with device.lock:
        device.enter(op)
        device.refuse_capture(op)
        array = _values(spec, value) if device.memory.backing else None
        if array is not None and device.rounds and dtype in ROUNDED_TYPES and value:
            round_to_bfloat16(array)
        device.counters.bytes_to_device += spec.device_bytes
        return device.allocate(spec, op, array)


def _values(spec: TensorSpec, value: float) -> Array:
    """Return the elements. Zeros are untouched pages: a key/value cache takes memory only where it is written."""
    dtype = storage_dtype(spec.dtype)
    return np.full(spec.shape, value, dtype) if value else np.zeros(spec.shape, dtype)


def zeros(
    shape: Sequence[int],
    *,
    dtype: DataType = bfloat16,
    layout: Layout = ROW_MAJOR_LAYOUT,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Return a tensor filled with 0; see :func:`full`."""
    return _filled("zeros", shape, 0, dtype, layout, device, memory_config)


def ones(
    shape: Sequence[int],
    *,
    dtype: DataType = bfloat16,
    layout: Layout = ROW_MAJOR_LAYOUT,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Return a tensor filled with 1; see :func:`full`."""
    return _filled("ones", shape, 1, dtype, layout, device, memory_config)


class ReplicateTensorToMesh:
    """Mapper that puts the whole tensor on every device of a mesh: what the twin always does."""

    def __init__(self, mesh_device: MeshDevice) -> None:
        self.mesh_device = mesh_device


def as_tensor(
    tensor: Array | Tensor,
    dtype: DataType | None = None,
    *,
    layout: Layout = ROW_MAJOR_LAYOUT,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
    cache_file_name: str | Path | None = None,
    mesh_mapper: ReplicateTensorToMesh | None = None,
) -> Tensor:
    """Return a host array (or host tensor) as a tensor of the given type and layout, on ``device`` if given.

    ``cache_file_name`` is accepted and not used: the twin does not convert weights, so there is nothing to cache.
    ``mesh_mapper`` may only replicate.

    Raises:
        TypeError: ``tensor`` is neither a NumPy array nor a host tensor.
        RuntimeError: ``device`` is given without ``memory_config``, or is capturing a trace.
    """
    if device is not None and memory_config is None:
        raise RuntimeError("as_tensor: memory_config must be given together with device")
    array = tensor._host_array("as_tensor") if isinstance(tensor, Tensor) else tensor
    dtype = dtype or (tensor.dtype if isinstance(tensor, Tensor) else None)
    host = Tensor(array, dtype, layout=layout, mem_config=memory_config)
    return host if device is None else to_device(host, device)
