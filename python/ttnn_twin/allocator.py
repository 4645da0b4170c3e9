# SPDX-License-Identifier: Apache-2.0
"""Device memory of a mesh: what is allocated, and which allocations a replay could overwrite."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .arena import CaptureArena
from .dtypes import DataType
from .tensor import Array, Buffer, TensorSpec


class LiveTensor(NamedTuple):
    """A device allocation that was not freed: message name, buffer number, shape, type and device bytes."""

    name: str
    buffer_id: int
    shape: tuple[int, ...]
    dtype: DataType
    bytes: int


class Allocator:
    """Buffers of one mesh, held weakly: a buffer whose last tensor is gone is free. Guarded by the mesh's lock.

    While ``traces_live``, new buffers are *suspects*: on hardware they may lie in memory that a trace uses for its
    intermediate tensors, so that a replay overwrites them. Without ``backing`` buffers take no memory: nothing may
    run on them.
    """

    def __init__(self, *, strict: bool, backing: bool = True) -> None:
        self.strict = strict
        self.backing = backing
        self.traces_live = False
        self.arena = CaptureArena()
        self._trusting = 0
        self._live: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
        self._suspects: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()

    def allocate(self, spec: TensorSpec, origin: str, *, captured: bool = False, array: Array | None = None) -> Buffer:
        """Return a new buffer around ``array``, or with undefined contents; ``captured`` ones come from the arena."""
        if not self.backing:
            buffer = Buffer.unbacked(spec, origin)
        elif array is not None:
            buffer = Buffer(array, spec, origin)
        elif captured:
            buffer = Buffer.in_arena(spec, origin, self.arena)
        else:
            buffer = Buffer.empty(spec, origin)
        self._live[buffer.id] = buffer
        if self.traces_live and not self._trusting:
            self._suspects[buffer.id] = buffer
        return buffer

    def free(self, buffer: Buffer, *, capturing: bool = False) -> None:
        """Free a buffer. Work that was enqueued before keeps its memory; a capture uses its own again."""
        buffer.array = None
        if capturing and buffer.block is not None:
            self.arena.give(buffer.block)
        buffer.block = None
        self._live.pop(buffer.id, None)
        self._suspects.pop(buffer.id, None)

    def live(self) -> list[Buffer]:
        """Return the allocated buffers, oldest first."""
        return [buffer for ref in self._live.valuerefs() if (buffer := ref()) is not None]

    def suspects(self) -> list[Buffer]:
        """Return the allocated buffers a replay could overwrite; none unless ``strict``."""
        if not self.strict or not self._suspects:
            return []
        return [buffer for ref in self._suspects.valuerefs() if (buffer := ref()) is not None]

    def acknowledge(self, buffer: Buffer) -> None:
        """Stop suspecting a buffer."""
        self._suspects.pop(buffer.id, None)

    @contextmanager
    def trust(self) -> Iterator[None]:
        """Do not suspect buffers that are allocated inside the block."""
        self._trusting += 1
        try:
            yield
        finally:
            self._trusting -= 1

    def set_traces_live(self, live: bool) -> None:
        """Note whether a trace can be replayed; without one nothing is in danger."""
        self.traces_live = live
        if not live:
            self._suspects.clear()
            self.arena.clear()

    def free_all(self) -> None:
        """Free every buffer."""
        for buffer in self.live():
            self.free(buffer)
