# SPDX-License-Identifier: Apache-2.0
"""Device memory of one tensor."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from .arena import Block, CaptureArena
from .dtypes import storage_dtype
from .spec import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]

_ids = itertools.count(1)


class Buffer:
    """Device memory of one tensor. ``array`` is ``None`` once it was freed; queued work keeps the array alive.

    ``block`` is the memory below the array when it came from a capture arena.
    """

    __slots__ = ("__weakref__", "array", "block", "id", "origin", "spec")

    def __init__(self, array: Array, spec: TensorSpec, origin: str, block: Block | None = None) -> None:
        self.array: Array | None = array
        self.block = block
        self.spec = spec
        self.origin = origin
        self.id = next(_ids)

    @classmethod
    def empty(cls, spec: TensorSpec, origin: str) -> Buffer:
        """Return a buffer with undefined contents."""
        return cls(np.empty(spec.shape, storage_dtype(spec.dtype)), spec, origin)

    @classmethod
    def unbacked(cls, spec: TensorSpec, origin: str) -> Buffer:
        """Return a buffer that takes no memory and can only be read: every element is the same one."""
        return cls(np.broadcast_to(storage_dtype(spec.dtype).type(0), spec.shape), spec, origin)

    @classmethod
    def in_arena(cls, spec: TensorSpec, origin: str, arena: CaptureArena) -> Buffer:
        """Return a buffer of a capture. NaN or a large number makes a read before the first replay noticeable."""
        dtype = storage_dtype(spec.dtype)
        size = math.prod(spec.shape) * dtype.itemsize
        block = arena.take(size)
        array = block[:size].view(dtype).reshape(spec.shape)
        array.fill(np.nan if dtype.kind == "f" else 0x7FFFFFFF)
        return cls(array, spec, origin, block)

    @property
    def name(self) -> str:
        """Return the name used in messages: number, what made the tensor, type and shape."""
        return f"tensor #{self.id} ({self.origin}, {self.spec.dtype.name.lower()} {list(self.spec.shape)})"
