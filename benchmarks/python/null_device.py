# SPDX-License-Identifier: Apache-2.0
"""A device namespace whose functions do nothing: what a program over it costs is its own host time.

Every upload is the one tensor `HOST`; operations return fixed tensors that hold what a sampler or an output head of
`VOCAB` columns would have left, so that reads and normalisation work on realistic values.
"""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

VOCAB = 256
ROWS = 32

uint32, int32, float32, bfloat16, bfloat8_b, bfloat4_b = (
    "uint32",
    "int32",
    "float32",
    "bfloat16",
    "bfloat8_b",
    "bfloat4_b",
)
TILE_LAYOUT, ROW_MAJOR_LAYOUT = "tile", "row major"
DRAM_MEMORY_CONFIG = "dram"


class StorageType(Enum):
    """Where a tensor is."""

    HOST = 0
    DEVICE = 1


class Tensor:
    """A tensor without a device. `Tensor(array, dtype)` keeps neither and is always `HOST`."""

    __slots__ = ("_array", "_place", "_read", "dtype", "shape")
    layout = ROW_MAJOR_LAYOUT
    spec = SimpleNamespace(memory_config=DRAM_MEMORY_CONFIG)

    def __new__(cls, _array: Any = None, _dtype: Any = None) -> Tensor:
        return HOST

    def cpu(self, blocking: bool = True) -> Tensor:
        return self._read

    def to_numpy(self) -> Any:
        return self._array

    def storage_type(self) -> StorageType:
        return self._place

    def is_allocated(self) -> bool:
        return True


def _tensor(array: Any, dtype: str, place: StorageType) -> Tensor:
    tensor = object.__new__(Tensor)
    tensor._array, tensor.dtype, tensor.shape, tensor._place = array, dtype, array.shape, place
    host = tensor
    if place is StorageType.DEVICE:
        host = _tensor(array, dtype, StorageType.HOST)
    tensor._read = host
    return tensor


HOST = _tensor(np.zeros(1, np.uint32), uint32, StorageType.HOST)
TOKENS = _tensor(np.arange(ROWS, dtype=np.uint32).reshape(1, 1, 1, ROWS), uint32, StorageType.DEVICE)
LOGITS = _tensor(np.zeros((1, 1, ROWS, VOCAB), np.float32), float32, StorageType.DEVICE)


class MeshDevice:
    """A mesh of one device."""

    shape = (1, 1)

    def num_program_cache_entries(self) -> int:
        return 1


def open_mesh_device() -> MeshDevice:
    return MeshDevice()


def close_mesh_device(mesh: MeshDevice) -> None:
    pass


def to_device(tensor: Tensor, device: Any = None) -> Tensor:
    return TOKENS


def copy_host_to_device_tensor(host: Tensor, device: Tensor) -> None:
    pass


def copy(input_a: Tensor, input_b: Tensor) -> None:
    pass


def deallocate(tensor: Tensor) -> None:
    pass


def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    return [tensor]


def record_event(mesh: Any, queue: int) -> int:
    return 0


def event_synchronize(event: int) -> None:
    pass


def synchronize_device(mesh: Any) -> None:
    pass


def begin_trace_capture(mesh: Any, cq_id: int = 0) -> int:
    return 0


def end_trace_capture(mesh: Any, trace: int, cq_id: int = 0) -> None:
    pass


def execute_trace(mesh: Any, trace: int, cq_id: int = 0, blocking: bool = False) -> None:
    pass


def release_trace(mesh: Any, trace: int) -> None:
    pass


def typecast(tensor: Tensor, dtype: Any) -> Tensor:
    return TOKENS


def zeros(shape: Any, dtype: Any = None, layout: Any = None, device: Any = None, memory_config: Any = None) -> Tensor:
    return TOKENS


def reshape(tensor: Tensor, shape: Any) -> Tensor:
    return tensor


def add(a: Tensor, b: Tensor) -> Tensor:
    return LOGITS


def untilize(tensor: Tensor, use_multicore: bool = True) -> Tensor:
    return LOGITS


def slice(tensor: Tensor, start: Any, end: Any) -> Tensor:
    return tensor


def pad(tensor: Tensor, widths: Any, value: float = 0.0) -> Tensor:
    return tensor


def plus_one(tensor: Tensor, skip_negative_entries: bool = False) -> None:
    pass
