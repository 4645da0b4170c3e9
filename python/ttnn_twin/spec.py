# SPDX-License-Identifier: Apache-2.0
"""Shapes and tensor specifications: everything about a tensor but its elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, TILE_SIZE, DataType, Layout, storage_bytes
from .memory import DRAM_MEMORY_CONFIG, MemoryConfig


class Shape(tuple[int, ...]):
    """Sizes of the dimensions, outermost first. A tuple that also equals a list of the same sizes.

    A ttnn shape takes no slices: portable code writes ``tuple(shape)[1:]``.
    """

    __slots__ = ()

    def __new__(cls, shape: Iterable[int]) -> Shape:
        return super().__new__(cls, map(int, shape))

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self)

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return f"Shape({list(self)})"


# Ops make specifications of the same few values all the time: what is derived from one is looked up.
_known: dict[tuple[Any, ...], tuple[Shape, Shape, int]] = {}
_numbers: dict[tuple[Any, ...], int] = {}
_next_number = itertools.count()


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """Shape, element type, layout and place of a tensor. A value.

    ``padded_shape`` defaults to ``shape``, in tile layout with the last two sizes rounded up to a tile (a shape of
    one dimension becomes one row of tiles). ``key`` is a number that is equal for equal specifications, so that
    program-cache keys compare quickly.
    """

    shape: tuple[int, ...]
    dtype: DataType
    layout: Layout = ROW_MAJOR_LAYOUT
    memory_config: MemoryConfig = DRAM_MEMORY_CONFIG
    padded_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        padding = None if self.padded_shape is None else tuple(self.padded_shape)
        fields = (tuple(self.shape), self.dtype, self.layout, self.memory_config, padding)
        known = _known.get(fields)
        if known is None:
            known = _known[fields] = _normalised(*fields)
        setter = object.__setattr__
        setter(self, "shape", known[0])
        setter(self, "padded_shape", known[1])
        setter(self, "_key", known[2])

    @property
    def key(self) -> int:
        """Return the number of this value."""
        return self._key  # type: ignore[attr-defined, no-any-return]

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, TensorSpec) else NotImplemented

    def __hash__(self) -> int:
        return self.key

    @property
    def volume(self) -> int:
        """Return the number of padded elements."""
        return math.prod(self.padded_shape or ())

    @property
    def device_bytes(self) -> int:
        """Return the bytes the padded tensor takes on a device."""
        return storage_bytes(self.dtype, self.volume)


def _normalised(
    sizes: tuple[int, ...],
    dtype: DataType,
    layout: Layout,
    memory_config: MemoryConfig,
    padding: tuple[int, ...] | None,
) -> tuple[Shape, Shape, int]:
    shape = Shape(sizes)
    if padding is None and layout is TILE_LAYOUT:
        padded = _tiled(shape)
    else:
        padded = shape if padding is None else Shape(padding)
    value = (tuple(shape), dtype, layout, memory_config, tuple(padded))
    number = _numbers.get(value)
    # `setdefault`: two threads may meet here.
    return shape, padded, _numbers.setdefault(value, next(_next_number)) if number is None else number


def _tiled(shape: Shape) -> Shape:
    rows, columns = (1, 1, *shape)[-2:]
    return Shape((*shape[:-2], -(-rows // TILE_SIZE) * TILE_SIZE, -(-columns // TILE_SIZE) * TILE_SIZE))
