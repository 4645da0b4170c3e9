# SPDX-License-Identifier: Apache-2.0
"""Meshes of the twin: lifetime, memory, program cache and the state behind queue, traces and faults."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from .counters import Counters
from .dtypes import DataType
from .faults import Faults
from .ledger import Ledger, fill_with_nan
from .queue import CommandQueue, Step
from .tensor import Buffer, Tensor, TensorSpec
from .trace import Trace

_ids = itertools.count(0)


class MeshShape(tuple[int, ...]):
    """Rows and columns of a mesh; compares like a tuple."""

    __slots__ = ()

    def __new__(cls, rows: int, columns: int) -> MeshShape:
        return super().__new__(cls, (int(rows), int(columns)))

    def mesh_size(self) -> int:
        """Return the number of devices."""
        return self[0] * self[1]

    def __repr__(self) -> str:
        return f"MeshShape([{self[0]}, {self[1]}])"


class LiveTensor(NamedTuple):
    """A device allocation that was not freed: message name, buffer number, specification and device bytes."""

    name: str
    buffer_id: int
    shape: tuple[int, ...]
    dtype: DataType
    bytes: int


class Device:
    """One device of a mesh. The twin keeps every tensor replicated, so a device only counts programs."""

    __slots__ = ("_id", "_mesh")

    def __init__(self, mesh: MeshDevice, number: int) -> None:
        self._mesh = mesh
        self._id = number

    def id(self) -> int:
        """Return the number of the device in its mesh."""
        return self._id

    def num_program_cache_entries(self) -> int:
        """Return the number of compiled programs."""
        return self._mesh.num_program_cache_entries()


class MeshDevice:
    """Open mesh. Made by :func:`open_mesh_device` and ``create_submeshes``; every state is guarded by ``lock``.

    Attributes:
        counters: what happened, in numbers.
        faults: injected failures.
        ledger: key/value cache writes.
        strict_allocations: while true, a replay refuses when a device tensor that was allocated after a trace was
            captured is still allocated: on hardware its memory may be scratch memory of the trace. Serving code
            frees such tensors before the next replay; ``acknowledge_corruptible`` exempts one tensor.
    """

    def __init__(
        self,
        shape: MeshShape,
        *,
        trace_region_size: int,
        num_command_queues: int,
        execution: Literal["immediate", "deferred"],
        precision: Literal["float32", "bfloat16"],
        strict_allocations: bool,
        parent: MeshDevice | None = None,
    ) -> None:
        self.shape = shape
        self.trace_region_size = trace_region_size
        self.num_command_queues = num_command_queues
        self.execution = execution
        self.precision = precision
        self.strict_allocations = strict_allocations
        self.lock = threading.RLock()
        self.queue = CommandQueue(deferred=execution == "deferred")
        self.counters = Counters()
        self.faults = Faults()
        self.ledger = Ledger(fill_with_nan)
        self.rounds = precision == "bfloat16"
        self.capture: Trace | None = None
        self.traces: dict[int, Trace] = {}
        self.closed = False
        self._id = next(_ids)
        self._parent = parent
        self._submeshes: list[MeshDevice] = []
        self._programs: set[Hashable] = set()
        self._live: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
        self._suspects: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()

    def __repr__(self) -> str:
        return f"MeshDevice(#{self._id}, {self.shape[0]}x{self.shape[1]})"

    def id(self) -> int:
        """Return the number of the mesh."""
        return self._id

    def get_num_devices(self) -> int:
        """Return the number of devices."""
        return self.shape.mesh_size()

    def get_device_ids(self) -> list[int]:
        """Return the numbers of the devices."""
        return list(range(self.get_num_devices()))

    def get_devices(self) -> list[Device]:
        """Return the devices."""
        return [Device(self, number) for number in self.get_device_ids()]

    def num_program_cache_entries(self) -> int:
        """Return the number of compiled programs."""
        return len(self._programs)

    def create_submeshes(self, submesh_shape: MeshShape) -> list[MeshDevice]:
        """Split the mesh into submeshes with queues, traces, counters and faults of their own.

        Raises:
            RuntimeError: the shape does not divide the mesh.
        """
        with self.lock:
            self.enter("create_submeshes")
            if self.shape[0] % submesh_shape[0] or self.shape[1] % submesh_shape[1]:
                raise RuntimeError(f"create_submeshes: {submesh_shape} does not divide {self.shape}")
            count = self.get_num_devices() // submesh_shape.mesh_size()
            made = [self._submesh(submesh_shape) for _ in range(count)]
            self._submeshes.extend(made)
            return list(made)

    def _submesh(self, shape: MeshShape) -> MeshDevice:
        return MeshDevice(
            shape,
            trace_region_size=self.trace_region_size,
            num_command_queues=self.num_command_queues,
            execution=self.execution,
            precision=self.precision,
            strict_allocations=self.strict_allocations,
            parent=self,
        )

    def get_submeshes(self) -> list[MeshDevice]:
        """Return the open submeshes."""
        return [mesh for mesh in self._submeshes if not mesh.closed]

    def live_tensors(self) -> list[LiveTensor]:
        """Return the device allocations that were not freed, oldest first."""
        buffers = [ref() for ref in self._live.valuerefs()]
        return [
            LiveTensor(item.name, item.id, item.spec.shape, item.spec.dtype, item.spec.device_bytes)
            for item in buffers
            if item is not None and item.array is not None
        ]

    def trace_region_used(self) -> int:
        """Return the bytes of the trace region taken by captured traces."""
        return sum(trace.bytes for trace in self.traces.values() if trace.state == "captured")

    def trace_bytes(self, trace_id: int) -> int:
        """Return the bytes of the trace region that one trace takes (``KeyError`` when unknown)."""
        return self.traces[trace_id].bytes

    # What follows is called by the functions of the package, with the lock held.

    def enter(self, name: str, cq_id: int = 0) -> None:
        """Admit a call: count it, and refuse it when the mesh is closed or a fault asks for it."""
        self.counters.calls[name] += 1
        if self.closed:
            raise RuntimeError(f"{name}: {self} is closed")
        if not 0 <= cq_id < self.num_command_queues:
            raise RuntimeError(f"{name}: command queue {cq_id}; the mesh has {self.num_command_queues}")
        if self.faults.active:
            self.faults.check(name)

    def refuse_capture(self, name: str) -> None:
        """Refuse a call that cannot be part of a trace."""
        if self.capture is not None:
            raise RuntimeError(
                f"{name}: not possible while trace {self.capture.id} is being captured on {self}"
            )

    def require_program(self, name: str, key: Hashable) -> None:
        """Compile the program of an op unless it is cached; refuse to compile inside a capture."""
        if key in self._programs:
            return
        if self.capture is not None:
            raise RuntimeError(
                f"{name}: no compiled program for these shapes, types and attributes; trace {self.capture.id} is "
                f"being captured, and a capture cannot compile: run the op once before"
            )
        self._programs.add(key)
        self.counters.compiles += 1

    def allocate(self, spec: TensorSpec, origin: str) -> Tensor:
        """Return a new device tensor with undefined contents."""
        buffer = Buffer.empty(spec, origin, marked=self.capture is not None)
        self.counters.allocations += 1
        self._live[buffer.id] = buffer
        if self.strict_allocations and self.trace_region_used():
            self._suspects[buffer.id] = buffer
        return Tensor._on_device(self, buffer)

    def free(self, buffer: Buffer) -> None:
        """Free a buffer; traces that use it cannot run again."""
        buffer.array = None
        self.counters.deallocations += 1
        self._live.pop(buffer.id, None)
        self._suspects.pop(buffer.id, None)
        for trace in self.traces.values():
            if trace.uses(buffer):
                trace.lost.append(buffer.name)

    def run(
        self, step: Step, reads: Sequence[Tensor], writes: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        """Record a step into the open capture, or enqueue it."""
        if self.capture is None:
            self.queue.submit(step)
        else:
            self.capture.add(step, (*reads, *writes), results)

    def refuse_suspects(self, trace_id: int) -> None:
        """Refuse a replay over tensors that were allocated while a trace was live."""
        if not self._suspects or not self.strict_allocations:
            return
        names = [item.name for ref in self._suspects.valuerefs() if (item := ref()) is not None]
        if names:
            raise RuntimeError(
                f"execute_trace: trace {trace_id} may overwrite tensors that were allocated while a trace was live "
                f"and are still allocated: {', '.join(names)}; free them, allocate them before the first capture, "
                f"or acknowledge_corruptible() them"
            )

    def acknowledge(self, buffer: Buffer) -> None:
        """Exempt a buffer from the check of ``strict_allocations``."""
        self._suspects.pop(buffer.id, None)

    def forget_suspects(self) -> None:
        """Without a live trace no allocation is in danger."""
        if not self.trace_region_used():
            self._suspects.clear()

    def close(self) -> None:
        """Free everything. Closing twice is allowed."""
        with self.lock:
            if self.closed:
                return
            self.counters.calls["close_mesh_device"] += 1
            for mesh in self._submeshes:
                mesh.close()
            for ref in self._live.valuerefs():
                buffer = ref()
                if buffer is not None:
                    buffer.array = None
            self._live.clear()
            self._suspects.clear()
            self.capture = None
            self.traces.clear()
            self.queue.drop()
            self.closed = True


def open_mesh_device(
    mesh_shape: MeshShape | None = None,
    *,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    execution: Literal["immediate", "deferred"] = "immediate",
    precision: Literal["float32", "bfloat16"] = "float32",
    strict_allocations: bool = True,
) -> MeshDevice:
    """Open a mesh of CPU devices.

    Args:
        mesh_shape: rows and columns; one device by default.
        trace_region_size: bytes for traces.
        num_command_queues: accepted queue ids; the twin keeps one in-order timeline for all of them.
        execution: run work when it is enqueued, or only when somebody waits for it.
        precision: keep float32, or round results of bfloat16-like types to bfloat16.
        strict_allocations: see ``MeshDevice``.

    Raises:
        ValueError: an unknown ``execution`` or ``precision``, or a size out of range.
    """
    if execution not in ("immediate", "deferred"):
        raise ValueError(f"open_mesh_device: execution={execution!r}; 'immediate' or 'deferred' is needed")
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"open_mesh_device: precision={precision!r}; 'float32' or 'bfloat16' is needed")
    shape = MeshShape(1, 1) if mesh_shape is None else mesh_shape
    if min(shape) < 1 or trace_region_size < 0 or num_command_queues < 1:
        raise ValueError(
            f"open_mesh_device: shape {shape}, trace_region_size={trace_region_size}, "
            f"num_command_queues={num_command_queues} out of range"
        )
    return MeshDevice(
        shape,
        trace_region_size=trace_region_size,
        num_command_queues=num_command_queues,
        execution=execution,
        precision=precision,
        strict_allocations=strict_allocations,
    )


def close_mesh_device(mesh_device: MeshDevice) -> None:
    """Close a mesh and its submeshes; tensors on them are freed."""
    mesh_device.close()
