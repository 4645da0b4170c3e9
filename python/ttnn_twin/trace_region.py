# SPDX-License-Identifier: Apache-2.0
"""Traces of a mesh and the memory region they take."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .queue import Step
    from .tensor import Buffer, Tensor

TRACE_BYTES = 1024
OP_BYTES = 1024
BUFFER_BYTES = 64
"""A trace takes ``TRACE_BYTES``, and per op ``OP_BYTES`` and ``BUFFER_BYTES`` for each buffer it reads or writes."""

_numbers = itertools.count(0)


class MeshTraceId:
    """Identity of one capture."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = next(_numbers)

    def __repr__(self) -> str:
        return f"trace {self.number}"


class TraceRegionError(RuntimeError):
    """A capture that did not fit; recording has stopped.

    Attributes:
        trace_bytes: what the trace asks for.
        needed_bytes: the region size to open the mesh with. It covers the traces up to this one; who captures more of
            them may set the size for all, and the message says that.
    """

    def __init__(self, trace_id: MeshTraceId, *, trace_bytes: int, used_bytes: int, region_bytes: int) -> None:
        super().__init__(
            f"end_trace_capture: {trace_id} asks for {trace_bytes} bytes of the trace region; {used_bytes} of "
            f"{region_bytes} bytes are used"
        )
        self.trace_bytes = trace_bytes
        self.needed_bytes = used_bytes + trace_bytes

    def __str__(self) -> str:
        return f"{super().__str__()}; open the mesh with trace_region_size={self.needed_bytes} or more"


class Trace:
    """Recorded ops of one capture.

    Buffers that existed before the capture are watched: when one is freed, its name goes to ``lost`` and the trace
    cannot run again. Buffers made inside the capture belong to it; freeing them changes nothing.
    """

    __slots__ = ("_inner", "_watched", "bytes", "lost", "state", "steps")

    def __init__(self) -> None:
        self.state: Literal["capturing", "captured", "failed"] = "capturing"
        self.steps: list[Step] = []
        self.bytes = TRACE_BYTES
        self.lost: list[str] = []
        self._watched: dict[int, weakref.ref[Buffer]] = {}
        self._inner: set[int] = set()

    def add(self, step: Step, used: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Record one op that uses the buffers of ``used`` and makes ``results``."""
        self.steps.append(step)
        self.bytes += OP_BYTES + BUFFER_BYTES * (len(used) + len(results))
        for tensor in results:
            if tensor._buffer is not None:
                self._inner.add(tensor._buffer.id)
        for tensor in used:
            buffer = tensor._buffer
            if buffer is not None and buffer.id not in self._inner and buffer.id not in self._watched:
                self._watched[buffer.id] = weakref.ref(buffer, _adder(self.lost, buffer.name))

    def note_free(self, buffer: Buffer) -> None:
        """Note that a buffer was freed."""
        if self._watched.pop(buffer.id, None) is not None:
            self.lost.append(buffer.name)

    def run(self) -> None:
        """Run the recorded ops in order."""
        for step in self.steps:
            step()


def _adder(names: list[str], name: str) -> Callable[[object], None]:
    return lambda _: names.append(name)


class TraceRegion:
    """Traces of one mesh: at most one open capture, and captured traces up to ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.capture: Trace | None = None
        self.capture_id: MeshTraceId | None = None
        self._traces: dict[MeshTraceId, Trace] = {}

    @property
    def used(self) -> int:
        """Return the bytes taken by captured traces."""
        return sum(trace.bytes for trace in self._traces.values() if trace.state == "captured")

    def any_captured(self) -> bool:
        """Return whether a trace can be replayed."""
        return any(trace.state == "captured" for trace in self._traces.values())

    def begin(self) -> MeshTraceId:
        """Open a capture."""
        self.capture_id, self.capture = MeshTraceId(), Trace()
        self._traces[self.capture_id] = self.capture
        return self.capture_id

    def end(self, trace_id: MeshTraceId) -> None:
        """Close the capture ``trace_id``; it counts as failed when it does not fit."""
        trace = self.capture
        if trace is None or self.capture_id is not trace_id:
            state = "no capture is open" if trace is None else f"{self.capture_id} is being captured"
            raise RuntimeError(f"end_trace_capture: {trace_id}: {state}")
        self.capture = self.capture_id = None
        if self.used + trace.bytes > self.size:
            trace.state = "failed"
            trace.steps.clear()
            raise TraceRegionError(trace_id, trace_bytes=trace.bytes, used_bytes=self.used, region_bytes=self.size)
        trace.state = "captured"

    def find(self, op: str, trace_id: MeshTraceId) -> Trace:
        """Return a known trace."""
        trace = self._traces.get(trace_id)
        if trace is None:
            raise RuntimeError(f"{op}: {trace_id} is unknown to this mesh or was released")
        return trace

    def ready(self, trace_id: MeshTraceId) -> Trace:
        """Return a trace that can run."""
        trace = self.find("execute_trace", trace_id)
        if trace.state != "captured":
            raise RuntimeError(f"execute_trace: {trace_id} did not fit the trace region; it can only be released")
        if trace.lost:
            raise RuntimeError(f"execute_trace: {trace_id} uses memory that was freed: {', '.join(trace.lost)}")
        return trace

    def release(self, trace_id: MeshTraceId) -> None:
        """Forget a trace."""
        if self.find("release_trace", trace_id) is self.capture:
            raise RuntimeError(f"release_trace: {trace_id} is being captured; end the capture first")
        del self._traces[trace_id]

    def note_free(self, buffer: Buffer) -> None:
        """Tell every trace that a buffer was freed."""
        for trace in self._traces.values():
            trace.note_free(buffer)

    def drop(self) -> None:
        """Forget every trace and the open capture."""
        self.capture = self.capture_id = None
        self._traces.clear()
