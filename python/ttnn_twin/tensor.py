# SPDX-License-Identifier: Apache-2.0
"""Tensors of the twin: a specification, and elements either on the host or in a buffer of a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .dtypes import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    TILE_SIZE,
    DataType,
    Layout,
    StorageType,
    float32,
    int32,
    storage_bytes,
    storage_dtype,
    uint8,
    uint16,
    uint32,
)
from .memory import DRAM_MEMORY_CONFIG, MemoryConfig

if TYPE_CHECKING:
    from .mesh import MeshDevice
    from .queue import CommandQueue

Array = np.ndarray[Any, np.dtype[Any]]

_ids = itertools.count(1)
_DEFAULT_TYPES = {"f4": float32, "i4": int32, "u4": uint32, "u2": uint16, "u1": uint8}
_RESULT_TYPES = {uint16: np.uint16, uint8: np.uint8}


class Shape(tuple[int, ...]):
    """Sizes of the dimensions, outermost first. A tuple, so that it compares and unpacks like one."""

    __slots__ = ()

    def __new__(cls, sizes: Iterable[int]) -> Shape:
        return super().__new__(cls, map(int, sizes))

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self)

    def __repr__(self) -> str:
        return f"Shape({list(self)})"


@dataclass(frozen=True)
class TensorSpec:
    """Everything about a tensor but its elements.

    ``padded_shape`` defaults to ``shape`` with the last two sizes rounded up to a tile in tile layout.
    """

    shape: tuple[int, ...]
    dtype: DataType
    layout: Layout = ROW_MAJOR_LAYOUT
    memory_config: MemoryConfig = DRAM_MEMORY_CONFIG
    padded_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        shape = Shape(self.shape)
        padded = shape if self.padded_shape is None else Shape(self.padded_shape)
        if self.padded_shape is None and self.layout is TILE_LAYOUT:
            tiled = [-(-size // TILE_SIZE) * TILE_SIZE for size in (shape[-2:] if shape else ())]
            padded = Shape((*shape[:-2], *tiled))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "padded_shape", padded)
        key = (shape, self.dtype, self.layout, self.memory_config, padded)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    @property
    def device_bytes(self) -> int:
        """Return the bytes the padded tensor takes on a device."""
        volume = 1
        for size in self.padded_shape or ():
            volume *= size
        return storage_bytes(self.dtype, volume)


class Buffer:
    """Device memory of one tensor. ``array`` is ``None`` once it was freed; queued work keeps the array alive."""

    __slots__ = ("__weakref__", "array", "id", "origin", "spec")

    def __init__(self, array: Array, spec: TensorSpec, origin: str) -> None:
        self.array: Array | None = array
        self.spec = spec
        self.origin = origin
        self.id = next(_ids)

    @classmethod
    def empty(cls, spec: TensorSpec, origin: str, *, marked: bool) -> Buffer:
        """Return a buffer with undefined contents; ``marked`` makes them NaN or a large number, to be noticed."""
        dtype = storage_dtype(spec.dtype)
        if not marked:
            return cls(np.empty(spec.shape, dtype), spec, origin)
        return cls(np.full(spec.shape, np.nan if dtype.kind == "f" else 0x7FFFFFFF, dtype), spec, origin)

    @property
    def name(self) -> str:
        """Return the name used in messages: what made the tensor, its number, type and shape."""
        return f"tensor #{self.id} ({self.origin}, {self.spec.dtype.name.lower()} {list(self.spec.shape)})"


class Tensor:
    """Tensor on the host (made from an array) or on a mesh (made by ops and transfers).

    ``Tensor(array, dtype)`` borrows a C-contiguous array of the storage type (float32, int32, uint32) and
    converts any other; a borrowed array that changes later changes the tensor.

    Args:
        array: NumPy array of numbers.
        dtype: element type; by default that of the array.

    Raises:
        TypeError: ``array`` is no NumPy array, or has no type the device knows and none is given.
    """

    __slots__ = ("__weakref__", "_array", "_buffer", "_mesh", "_queue", "_ready_at", "_replicas", "_spec")

    def __init__(self, array: Array, dtype: DataType | None = None) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor: a NumPy array is needed, got {type(array).__name__}")
        if dtype is None:
            dtype = _DEFAULT_TYPES.get(array.dtype.str[1:])
            if dtype is None:
                raise TypeError(f"Tensor: no device type for elements of {array.dtype}; name one")
        self._array: Array | None = np.ascontiguousarray(array, storage_dtype(dtype)).reshape(array.shape)
        self._spec = TensorSpec(array.shape, dtype)
        self._buffer: Buffer | None = None
        self._mesh: MeshDevice | None = None
        self._queue: CommandQueue | None = None
        self._ready_at = 0
        self._replicas = 1

    @classmethod
    def _on_device(cls, mesh: MeshDevice, buffer: Buffer) -> Tensor:
        self = cls.__new__(cls)
        self._array = None
        self._spec = buffer.spec
        self._buffer = buffer
        self._mesh = mesh
        self._queue = None
        self._ready_at = 0
        self._replicas = 1
        return self

    @classmethod
    def _on_host(cls, array: Array, spec: TensorSpec, *, replicas: int = 1) -> Tensor:
        self = cls.__new__(cls)
        self._array = array
        self._spec = spec
        self._buffer = None
        self._mesh = None
        self._queue = None
        self._ready_at = 0
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
        """Return the mesh of a device tensor, else ``None``."""
        return self._mesh

    def storage_type(self) -> StorageType:
        """Return ``StorageType.HOST`` or ``StorageType.DEVICE``."""
        return StorageType.HOST if self._buffer is None else StorageType.DEVICE

    def is_allocated(self) -> bool:
        """Return whether the elements exist: true for a host tensor, false for a freed device tensor."""
        return self._buffer is None or self._buffer.array is not None

    def volume(self) -> int:
        """Return the number of logical elements."""
        count = 1
        for size in self._spec.shape:
            count *= size
        return count

    def cpu(self, blocking: bool = True, cq_id: int = 0) -> Tensor:
        """Copy a device tensor to the host; see :func:`ttnn_twin.transfer.from_device`."""
        from .transfer import read_to_host

        return read_to_host("cpu", self, blocking=blocking, cq_id=cq_id)

    def to_numpy(self) -> Array:
        """Return the elements of a host tensor as a NumPy array of its logical shape.

        Raises:
            RuntimeError: the tensor is on a device, or is an asynchronous read that nobody waited for yet.
        """
        array = self._host_array("to_numpy")
        result = _RESULT_TYPES.get(self._spec.dtype)
        return array if result is None else array.astype(result)

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
