# SPDX-License-Identifier: Apache-2.0
"""Device memory of one tensor."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from .dtypes import storage_dtype
from .spec import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]

_ids = itertools.count(1)


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
        """Return the name used in messages: number, what made the tensor, type and shape."""
        return f"tensor #{self.id} ({self.origin}, {self.spec.dtype.name.lower()} {list(self.spec.shape)})"
