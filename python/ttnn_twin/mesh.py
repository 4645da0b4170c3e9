# SPDX-License-Identifier: Apache-2.0
"""Meshes of the twin: devices, program cache and the state behind memory, queue, traces and faults."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable
from typing import Literal

from .allocator import Allocator, LiveTensor
from .cores import CoreCoord, CoreGrid
from .counters import Counters
from .faults import Faults
from .ledger import Ledger, fill_with_nan
from .mesh_options import Execution, MeshOptions, MeshShape
from .queue import CommandQueue
from .tensor import Array, Buffer, Tensor, TensorSpec
from .trace_region import MeshTraceId, TraceRegion

_ids = itertools.count(0)
_GRID = (8, 8)


class MeshDevice:
    """Open mesh; made by :func:`open_mesh_device` and ``create_submeshes``. Any thread may call, one at a time.

    Every device holds the same elements: a tensor on a mesh is replicated, and stored once.

    Attributes:
        shape: rows and columns.
        counters: what happened, in numbers.
        faults: failures to inject.
        ledger: key/value cache writes and block owners.
        lock: guards everything; held while work runs.
    """

    def __init__(self, shape: MeshShape, options: MeshOptions) -> None:
        self.shape = shape
        self.options = options
        self.lock = threading.RLock()
        runs = options.execution != "never"
        self.memory = Allocator(strict=options.strict_allocations, backing=runs)
        self.queue = CommandQueue(deferred=options.execution == "deferred", runs=runs)
        self.traces = TraceRegion(options.trace_region_size)
        self.counters = Counters(self.memory)
        self.faults = Faults()
        self.ledger = Ledger(fill_with_nan)
        self.rounds = options.precision == "bfloat16"
        self.closed = False
        self._id = next(_ids)
        self._submeshes: list[MeshDevice] = []
        self._programs: set[Hashable] = set()
        self._misses_allowed = True

    def __repr__(self) -> str:
        return f"MeshDevice({self._id}, {self.shape[0]}x{self.shape[1]})"

    def id(self) -> int:
        """Return the number of the mesh."""
        return self._id

    def get_num_devices(self) -> int:
        """Return the number of devices."""
        return self.shape.mesh_size()

    def get_device_ids(self) -> list[int]:
        """Return the numbers of the devices."""
        return list(range(self.get_num_devices()))

    def compute_with_storage_grid_size(self) -> CoreCoord:
        """Return the size of the compute grid of a device."""
        return CoreCoord(*_GRID)

    @property
    def core_grid(self) -> CoreGrid:
        """Return the compute grid of a device."""
        return CoreGrid(x=_GRID[0], y=_GRID[1])

    def num_program_cache_entries(self) -> int:
        """Return the number of compiled programs."""
        return len(self._programs)

    def set_program_cache_misses_allowed(self, allowed: bool) -> None:
        """Make an op without a compiled program an error, or allow it again."""
        self._misses_allowed = allowed

    @property
    def strict_allocations(self) -> bool:
        """Whether a replay refuses while an allocation made after a capture is still there.

        On hardware such a tensor may lie in memory that the trace uses for its intermediate tensors. Serving code
        frees what it allocates before the next replay (an asynchronous read needs its source only until it is
        enqueued); ``acknowledge_corruptible`` exempts a tensor. May be switched at any time.
        """
        return self.memory.strict

    @strict_allocations.setter
    def strict_allocations(self, strict: bool) -> None:
        self.memory.strict = strict

    @property
    def busy_seconds(self) -> float:
        """Return the wall time that device work has taken; what else a caller waits is time of the host."""
        return self.queue.busy_seconds

    @property
    def trace_region_used(self) -> int:
        """Return the bytes of the trace region taken by captured traces."""
        return self.traces.used

    def trace_bytes(self, trace_id: MeshTraceId) -> int:
        """Return the bytes one trace takes, so far if it is being captured."""
        return self.traces.find("trace_bytes", trace_id).bytes

    def live_tensors(self) -> list[LiveTensor]:
        """Return the device tensors that are allocated now, oldest first."""
        return [
            LiveTensor(item.name, item.id, item.spec.shape, item.spec.dtype, item.spec.device_bytes)
            for item in self.memory.live()
        ]

    def create_submeshes(self, submesh_shape: MeshShape) -> list[MeshDevice]:
        """Split the mesh into submeshes, each with memory, queue, traces, programs, counters and faults of its own.

        Raises:
            RuntimeError: the shape does not divide the mesh.
        """
        with self.lock:
            self.enter("create_submeshes")
            if self.shape[0] % submesh_shape[0] or self.shape[1] % submesh_shape[1]:
                raise RuntimeError(f"create_submeshes: {submesh_shape} does not divide {self.shape}")
            count = self.get_num_devices() // submesh_shape.mesh_size()
            made = [MeshDevice(submesh_shape, self.options) for _ in range(count)]
            self._submeshes.extend(made)
            return made

    def get_submeshes(self) -> list[MeshDevice]:
        """Return the open submeshes."""
        return [mesh for mesh in self._submeshes if not mesh.closed]

    def close(self) -> None:
        """Close the mesh and its submeshes: everything is freed and work that never ran is dropped.

        A second call does nothing. Faults of ``close_mesh_device`` apply.
        """
        with self.lock:
            if self.closed:
                return
            self.enter("close_mesh_device")
            for mesh in self._submeshes:
                mesh.close()
            self.closed = True
            self.traces.drop()
            self.memory.free_all()
            self.queue.drop()

    # What follows is for the functions of the package, which hold the lock.

    def enter(self, name: str, cq_id: int | None = None) -> None:
        """Admit a call: count it, and refuse it when the mesh is closed or a fault asks for it."""
        self.counters.calls[name] += 1
        if self.closed:
            raise RuntimeError(f"{name}: {self} is closed")
        if cq_id is not None and not 0 <= cq_id < self.options.num_command_queues:
            raise RuntimeError(f"{name}: command queue {cq_id}; {self} has {self.options.num_command_queues}")
        if self.faults.active:
            self.faults.check(name)

    def refuse_capture(self, name: str) -> None:
        """Refuse a call that cannot be part of a trace."""
        if self.traces.capture is not None:
            raise RuntimeError(f"{name}: not possible while {self.traces.capture_id} is being captured on {self}")

    def require_program(self, name: str, key: Hashable) -> None:
        """Compile the program of an op unless it is cached; refuse to where compiling is not possible."""
        if key in self._programs:
            return
        if self.traces.capture is not None:
            raise RuntimeError(
                f"{name}: no program is compiled for these shapes, types and attributes, and a capture "
                f"({self.traces.capture_id}) cannot compile: run the same op once before the capture"
            )
        if not self._misses_allowed:
            raise RuntimeError(f"{name}: no program is compiled for these shapes, types and attributes")
        self._programs.add(key)
        self.counters.compiles += 1

    def allocate(self, spec: TensorSpec, origin: str, array: Array | None = None) -> Tensor:
        """Return a new device tensor around ``array``, or with undefined contents (NaN inside a capture)."""
        self.counters.allocations += 1
        captured = self.traces.capture is not None
        return Tensor._on_device(self, self.memory.allocate(spec, origin, captured=captured, array=array))

    def free(self, buffer: Buffer) -> None:
        """Free a buffer; traces that use it cannot run again."""
        self.counters.deallocations += 1
        self.memory.free(buffer, capturing=self.traces.capture is not None)
        self.traces.note_free(buffer)


def open_mesh_device(
    mesh_shape: MeshShape | None = None,
    *,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    execution: Execution = "immediate",
    precision: Literal["float32", "bfloat16"] = "float32",
    strict_allocations: bool = True,
) -> MeshDevice:
    """Open a mesh of CPU devices.

    Args:
        mesh_shape: rows and columns; one device by default.
        trace_region_size: bytes for traces, see ``ttnn_twin.trace_region``.
        num_command_queues: queue ids that are accepted; the twin keeps one in-order timeline for all of them.
        execution: run work when it is enqueued, or only when somebody waits for it; or never, which checks, compiles,
            allocates and accounts for everything, with tensors that take no memory and have no contents.
        precision: keep float32, or round results of bfloat16-like types to bfloat16.
        strict_allocations: see ``MeshDevice.strict_allocations``.

    Raises:
        ValueError: an option is unknown or out of range.
    """
    shape = MeshShape(1, 1) if mesh_shape is None else MeshShape(mesh_shape)
    if min(shape) < 1:
        raise ValueError(f"open_mesh_device: {shape} has no device")
    options = MeshOptions(
        trace_region_size=trace_region_size,
        num_command_queues=num_command_queues,
        execution=execution,
        precision=precision,
        strict_allocations=strict_allocations,
    )
    return MeshDevice(shape, options)


def close_mesh_device(mesh_device: MeshDevice) -> None:
    """Close a mesh; see ``MeshDevice.close``."""
    mesh_device.close()
