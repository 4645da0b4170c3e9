# SPDX-License-Identifier: Apache-2.0
"""Tensors of the twin: a specification, and elements either on the host or in a buffer of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .buffer import Array, Buffer
from .dtypes import (
    BLOCK_FLOAT_TYPES,
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    DataType,
    Layout,
    StorageType,
    default_type,
    result_dtype,
    storage_dtype,
    takes_elements,
)
from .memory import DRAM_MEMORY_CONFIG, MemoryConfig
from .spec import Shape, TensorSpec

if TYPE_CHECKING:
    from .mesh import MeshDevice
    from .queue import CommandQueue

__all__ = ["Array", "Buffer", "Shape", "Tensor", "TensorSpec"]


class Tensor:
    """Tensor on the host or on a mesh.

    ``Tensor(array, data_type)`` makes a host tensor. It **borrows** an array that is C-contiguous and of the storage
    type (float32, int32, uint32) and converts any other: a borrowed array must not change before copies out of the
    tensor are complete. (ttnn copies here, but borrows in ``from_torch``; the twin takes the stricter reading.) With
    ``device`` the tensor is uploaded at once.

    Args:
        tensor: writable NumPy array of float32, int32, uint32, uint16, uint8 or bool; integers of other widths only
            for an integer ``data_type``.
        data_type: element type; by default that of the array.
        device: mesh to upload to.
        layout: by default rows, or tiles for the block-float types, which exist in tiles only.
        mem_config: where on the device.

    Raises:
        TypeError: ``tensor`` is no NumPy array, is read-only, or has elements that ``data_type`` cannot take.
    """

    __slots__ = ("__weakref__", "_array", "_buffer", "_mesh", "_queue", "_ready_at", "_replicas", "_spec")

    def __init__(
        self,
        tensor: Array,
        data_type: DataType | None = None,
        device: MeshDevice | None = None,
        layout: Layout | None = None,
        mem_config: MemoryConfig | None = None,
    ) -> None:
        if not isinstance(tensor, np.ndarray):
            raise TypeError(f"Tensor: a NumPy array is needed, got {type(tensor).__name__}")
        if not tensor.flags.writeable:
            raise TypeError("Tensor: the array is read-only, which ttnn does not take; copy it")
        dtype = default_type(tensor.dtype) if data_type is None else data_type
        if dtype is None or not takes_elements(dtype, tensor.dtype):
            raise TypeError(f"Tensor: elements of {tensor.dtype} cannot become {dtype or 'a device type'}")
        if layout is None:
            layout = TILE_LAYOUT if dtype in BLOCK_FLOAT_TYPES else ROW_MAJOR_LAYOUT
        array: Array = np.ascontiguousarray(tensor, storage_dtype(dtype)).reshape(tensor.shape)
        self._reset(TensorSpec(tensor.shape, dtype, layout, mem_config or DRAM_MEMORY_CONFIG), array)
        if device is not None:
            from .transfer import upload_new

            buffer = upload_new("Tensor", device, self)
            self._reset(buffer.spec, None, device, buffer)

    def _reset(
        self, spec: TensorSpec, array: Array | None, mesh: MeshDevice | None = None, buffer: Buffer | None = None
    ) -> None:
        self._spec = spec
        self._array: Array | None = array
        self._mesh = mesh
        self._buffer = buffer
        self._queue: CommandQueue | None = None
        self._ready_at = 0
        self._replicas = 1

    @classmethod
    def _on_device(cls, mesh: MeshDevice, buffer: Buffer) -> Tensor:
        self = cls.__new__(cls)
        self._reset(buffer.spec, None, mesh, buffer)
        return self

    @classmethod
    def _on_host(cls, array: Array, spec: TensorSpec, *, replicas: int = 1) -> Tensor:
        self = cls.__new__(cls)
        self._reset(spec, array)
        self._replicas = replicas
        return self

    @property
    def shape(self) -> Shape:
        """Return the logical shape."""
        return self._spec.shape  # type: ignore[return-value]

    @property
    def padded_shape(self) -> Shape:
        """Return the shape in memory, padded to tiles in tile layout."""
        return self._spec.padded_shape  # type: ignore[return-value]

    @property
    def dtype(self) -> DataType:
        """Return the element type."""
        return self._spec.dtype

    @property
    def layout(self) -> Layout:
        """Return the layout."""
        return self._spec.layout

    @property
    def spec(self) -> TensorSpec:
        """Return shape, type, layout and memory config in one value."""
        return self._spec

    @property
    def buffer_id(self) -> int | None:
        """Return the number of the device buffer, or ``None`` for a host tensor. Never reused."""
        return None if self._buffer is None else self._buffer.id

    @property
    def name(self) -> str:
        """Return the name used in messages."""
        if self._buffer is not None:
            return self._buffer.name
        return f"host tensor ({self.dtype.name.lower()} {list(self.shape)})"

    def memory_config(self) -> MemoryConfig:
        """Return where the tensor lives."""
        return self._spec.memory_config

    def is_sharded(self) -> bool:
        """Return whether the memory config is sharded."""
        return self._spec.memory_config.is_sharded()

    def device(self) -> MeshDevice | None:
        """Return the mesh of an allocated device tensor, else ``None``."""
        return self._mesh if self.is_allocated() else None

    def storage_type(self) -> StorageType:
        """Return ``StorageType.HOST`` or ``StorageType.DEVICE``."""
        return StorageType.HOST if self._buffer is None else StorageType.DEVICE

    def is_allocated(self) -> bool:
        """Return whether the elements exist: true for a host tensor, false for a freed device tensor."""
        return self._buffer is None or self._buffer.array is not None

    def volume(self) -> int:
        """Return the number of padded elements."""
        return self._spec.volume

    def cpu(self, blocking: bool = True, cq_id: int | None = None) -> Tensor:
        """Copy a device tensor to the host; see :func:`ttnn_twin.from_device`."""
        from .transfer import read_to_host

        return read_to_host("cpu", self, blocking=blocking, cq_id=cq_id)

    def deallocate(self, force: bool = False) -> None:
        """Free a device tensor; see :func:`ttnn_twin.deallocate`."""
        from .transfer import deallocate

        deallocate(self, force)

    def to_numpy(self) -> Array:
        """Return the elements of a host tensor as a NumPy array of its logical shape.

        The array is float32, int32, uint32, uint16 or uint8. Unlike ttnn, which has no NumPy type for them, the
        twin returns bfloat16 and block-float tensors as float32; portable code converts with ``to_dtype`` first.

        Raises:
            RuntimeError: the tensor is on a device, or is an asynchronous read that nobody waited for yet.
        """
        array = self._host_array("to_numpy")
        dtype = result_dtype(self._spec.dtype)
        return array if array.dtype == dtype else array.astype(dtype)

    def _host_array(self, op: str) -> Array:
        array = self._array
        if array is None:
            raise RuntimeError(f"{op}: {self.name} is on a device; read it with cpu() first")
        queue = self._queue
        if queue is not None:
            if queue.completed < self._ready_at:
                raise RuntimeError(
                    f"{op}: {self.name} is the destination of an asynchronous read that is not complete; "
                    f"synchronise an event recorded after the read, or the device, first"
                )
            self._queue = None
        return array

    def __repr__(self) -> str:
        return f"Tensor({self.name}, {self.layout.name}, {self.storage_type().name})"
