# SPDX-License-Identifier: Apache-2.0
"""Trace capture and replay: ops are recorded with their buffers once and run again without the model's Python."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .tensor import Buffer, Tensor

if TYPE_CHECKING:
    from .mesh import MeshDevice
    from .queue import Step

TRACE_BYTES = 1024
OP_BYTES = 1024
BUFFER_BYTES = 64
"""A trace takes TRACE_BYTES, and per op OP_BYTES plus BUFFER_BYTES for each buffer it reads or writes."""

_ids = itertools.count(0)


class Trace:
    """Recorded ops of one capture. ``state``: capturing, captured or failed (kept only to be released)."""

    __slots__ = ("_inner", "_watched", "bytes", "id", "lost", "state", "steps")

    def __init__(self) -> None:
        self.id = next(_ids)
        self.state = "capturing"
        self.steps: list[Step] = []
        self.bytes = TRACE_BYTES
        self.lost: list[str] = []
        self._watched: dict[int, weakref.ref[Buffer]] = {}
        self._inner: set[int] = set()

    def add(self, step: Step, used: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Record one op that uses buffers ``used`` and makes ``results``."""
        self.steps.append(step)
        self.bytes += OP_BYTES + BUFFER_BYTES * (len(used) + len(results))
        for tensor in results:
            self._inner.add(tensor.buffer_id or 0)
        for tensor in used:
            buffer = tensor._buffer
            if buffer is not None and buffer.id not in self._inner and buffer.id not in self._watched:
                self._watched[buffer.id] = weakref.ref(buffer, _note_lost(self.lost, buffer.name))

    def uses(self, buffer: Buffer) -> bool:
        """Return whether the trace reads or writes a buffer that existed before the capture."""
        return buffer.id in self._watched

    def run(self) -> None:
        """Run the recorded ops in order."""
        for step in self.steps:
            step()


def _note_lost(lost: list[str], name: str) -> Callable[[weakref.ref[Buffer]], None]:
    return lambda _ref: lost.append(name)


def begin_trace_capture(mesh_device: MeshDevice, *, cq_id: int = 0) -> int:
    """Start recording the ops of ``mesh_device`` and return the id of the trace. Nothing executes meanwhile.

    Raises:
        RuntimeError: a capture is open already.
    """
    with mesh_device.lock:
        mesh_device.enter("begin_trace_capture", cq_id)
        mesh_device.refuse_capture("begin_trace_capture")
        trace = Trace()
        mesh_device.traces[trace.id] = trace
        mesh_device.capture = trace
        return trace.id


def end_trace_capture(mesh_device: MeshDevice, trace_id: int, *, cq_id: int = 0) -> None:
    """Stop recording and place the trace into the trace region. Outputs hold garbage until the first replay.

    Raises:
        RuntimeError: no capture or another one is open; or the region is too small: recording has stopped then,
            and the id can only be released.
    """
    with mesh_device.lock:
        mesh_device.enter("end_trace_capture", cq_id)
        trace = mesh_device.capture
        if trace is None or trace.id != trace_id:
            state = "no capture is open" if trace is None else f"the open capture is trace {trace.id}"
            raise RuntimeError(f"end_trace_capture: trace {trace_id}: {state}")
        mesh_device.capture = None
        used, size = mesh_device.trace_region_used(), mesh_device.trace_region_size
        if used + trace.bytes > size:
            trace.state = "failed"
            trace.steps.clear()
            raise RuntimeError(
                f"end_trace_capture: trace {trace_id} asks for {trace.bytes} bytes of the trace region; {used} of "
                f"{size} are used; open the mesh with trace_region_size={used + trace.bytes} or more"
            )
        trace.state = "captured"
        mesh_device.counters.captures += 1


def execute_trace(mesh_device: MeshDevice, trace_id: int, *, cq_id: int = 0, blocking: bool = True) -> None:
    """Run the recorded ops again, into the buffers of the capture.

    Raises:
        RuntimeError: the id is unknown, released, or not a finished capture; a capture is open; a buffer the trace
            needs was freed; or tensors allocated while a trace was live are still allocated (see ``MeshDevice``).
    """
    with mesh_device.lock:
        mesh_device.enter("execute_trace", cq_id)
        mesh_device.refuse_capture("execute_trace")
        trace = _find(mesh_device, "execute_trace", trace_id)
        if trace.state != "captured":
            raise RuntimeError(
                f"execute_trace: trace {trace_id} did not fit the trace region; it can only be released"
            )
        if trace.lost:
            raise RuntimeError(f"execute_trace: trace {trace_id} uses freed memory: {', '.join(trace.lost)}")
        mesh_device.refuse_suspects(trace_id)
        mesh_device.counters.replays += 1
        position = mesh_device.queue.submit(trace.run)
        if blocking:
            mesh_device.queue.wait(position)


def release_trace(mesh_device: MeshDevice, trace_id: int) -> None:
    """Forget a trace and give its bytes back. Replays that are already enqueued still run.

    Raises:
        RuntimeError: the id is unknown or was released, or is still being captured.
    """
    with mesh_device.lock:
        mesh_device.enter("release_trace")
        trace = _find(mesh_device, "release_trace", trace_id)
        if trace is mesh_device.capture:
            raise RuntimeError(
                f"release_trace: trace {trace_id} is still being captured; end the capture first"
            )
        del mesh_device.traces[trace_id]
        mesh_device.forget_suspects()


def acknowledge_corruptible(tensor: Tensor) -> None:
    """Say that ``tensor`` may outlive a replay although it was allocated while a trace was live.

    On hardware a replay may overwrite such a tensor, because the memory may be scratch memory of the trace: say
    this only for tensors that are written again before they are read.
    """
    if tensor._mesh is not None and tensor._buffer is not None:
        with tensor._mesh.lock:
            tensor._mesh.acknowledge(tensor._buffer)


def _find(mesh_device: MeshDevice, op: str, trace_id: int) -> Trace:
    trace = mesh_device.traces.get(trace_id)
    if trace is None:
        raise RuntimeError(f"{op}: trace {trace_id} is unknown to {mesh_device} or was released")
    return trace
