# SPDX-License-Identifier: Apache-2.0
"""Shape and options of a mesh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Execution = Literal["immediate", "deferred", "never"]


class MeshShape(tuple[int, ...]):
    """Rows and columns of a mesh: ``MeshShape(1, 2)`` or ``MeshShape([1, 2])``. Compares like a tuple."""

    __slots__ = ()

    def __new__(cls, s0: int | Iterable[int], s1: int | None = None) -> MeshShape:
        rows, columns = (s0, s1) if isinstance(s0, int) else s0
        if columns is None:
            raise TypeError("MeshShape: rows and columns are needed")
        return super().__new__(cls, (int(rows), int(columns)))

    def mesh_size(self) -> int:
        """Return the number of devices."""
        return self[0] * self[1]

    def dims(self) -> int:
        """Return the number of dimensions."""
        return 2

    def __repr__(self) -> str:
        return f"MeshShape([{self[0]}, {self[1]}])"


@dataclass(frozen=True, kw_only=True)
class MeshOptions:
    """Options of :func:`open_mesh_device`, shared by a mesh and its submeshes."""

    trace_region_size: int = 0
    num_command_queues: int = 1
    execution: Execution = "immediate"
    precision: Literal["float32", "bfloat16"] = "float32"
    strict_allocations: bool = True

    def __post_init__(self) -> None:
        if self.execution not in get_args(Execution):
            raise ValueError(f"open_mesh_device: execution={self.execution!r}; one of {get_args(Execution)} is needed")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"open_mesh_device: precision={self.precision!r}; 'float32' or 'bfloat16' is needed")
        if self.trace_region_size < 0:
            raise ValueError(f"open_mesh_device: trace_region_size={self.trace_region_size} is negative")
        if self.num_command_queues < 1:
            raise ValueError(f"open_mesh_device: num_command_queues={self.num_command_queues}; 1 or more is needed")
