# SPDX-License-Identifier: Apache-2.0
"""Tensors filled with one value, or made from a host array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .dtypes import ROW_MAJOR_LAYOUT, DataType, Layout, bfloat16, storage_dtype
from .memory import DRAM_MEMORY_CONFIG, MemoryConfig
from .mesh import MeshDevice
from .tensor import Array, Tensor, TensorSpec
from .transfer import to_device


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
    spec = TensorSpec(tuple(shape), dtype, layout, memory_config or DRAM_MEMORY_CONFIG)
    host = Tensor._on_host(np.full(spec.shape, fill_value, storage_dtype(dtype)), spec)
    return host if device is None else to_device(host, device)


def zeros(
    shape: Sequence[int],
    *,
    dtype: DataType = bfloat16,
    layout: Layout = ROW_MAJOR_LAYOUT,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Return a tensor filled with 0; see :func:`full`."""
    return full(shape, 0, dtype=dtype, layout=layout, device=device, memory_config=memory_config)


def ones(
    shape: Sequence[int],
    *,
    dtype: DataType = bfloat16,
    layout: Layout = ROW_MAJOR_LAYOUT,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Return a tensor filled with 1; see :func:`full`."""
    return full(shape, 1, dtype=dtype, layout=layout, device=device, memory_config=memory_config)


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
    """
    array = tensor._host_array("as_tensor") if isinstance(tensor, Tensor) else tensor
    plain = Tensor(array, dtype or (tensor.dtype if isinstance(tensor, Tensor) else None))
    spec = TensorSpec(plain.shape, plain.dtype, layout, memory_config or DRAM_MEMORY_CONFIG)
    host = Tensor._on_host(plain._host_array("as_tensor"), spec)
    return host if device is None else to_device(host, device)
