# SPDX-License-Identifier: Apache-2.0
"""Core coordinates, ranges and grids, as ttnn names them. The twin only counts and compares cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True, init=False)
class CoreCoord:
    """Coordinate of a core, or the size of a grid: ``CoreCoord(x, y)`` or ``CoreCoord((x, y))``."""

    x: int
    y: int

    def __init__(self, x: int | tuple[int, int], y: int | None = None, /) -> None:
        column, row = x if isinstance(x, tuple) else (x, y)
        if row is None:
            raise TypeError("CoreCoord: two numbers or one tuple of two are needed")
        object.__setattr__(self, "x", int(column))
        object.__setattr__(self, "y", int(row))


@dataclass(frozen=True)
class CoreRange:
    """Rectangle of cores, both corners included."""

    start: CoreCoord
    end: CoreCoord

    def __post_init__(self) -> None:
        if self.end.x < self.start.x or self.end.y < self.start.y:
            raise RuntimeError(f"CoreRange: end {self.end} is before start {self.start}")

    def grid_size(self) -> CoreCoord:
        """Return the columns (x) and rows (y) of the rectangle."""
        return CoreCoord(self.end.x - self.start.x + 1, self.end.y - self.start.y + 1)

    def num_cores(self) -> int:
        """Return the number of cores of the rectangle."""
        size = self.grid_size()
        return size.x * size.y


class CoreRangeSet:
    """Set of disjoint core rectangles; equal when the rectangles are equal."""

    __slots__ = ("_ranges",)

    def __init__(self, core_ranges: Iterable[CoreRange]) -> None:
        self._ranges = tuple(core_ranges)

    def ranges(self) -> list[CoreRange]:
        """Return the rectangles."""
        return list(self._ranges)

    def num_cores(self) -> int:
        """Return the number of cores of all rectangles."""
        return sum(item.num_cores() for item in self._ranges)

    def bounding_box(self) -> CoreRange:
        """Return the smallest rectangle that holds every core."""
        xs = [x for item in self._ranges for x in (item.start.x, item.end.x)]
        ys = [y for item in self._ranges for y in (item.start.y, item.end.y)]
        return CoreRange(CoreCoord(min(xs), min(ys)), CoreCoord(max(xs), max(ys)))

    def __eq__(self, other: object) -> bool:
        return self._ranges == other._ranges if isinstance(other, CoreRangeSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._ranges)

    def __repr__(self) -> str:
        return f"CoreRangeSet({list(self._ranges)})"


@dataclass(frozen=True, kw_only=True)
class CoreGrid:
    """Grid of ``y`` rows and ``x`` columns from the origin."""

    x: int
    y: int

    @property
    def num_cores(self) -> int:
        """Return the number of cores of the grid."""
        return self.x * self.y

    def to_corerangeset(self) -> CoreRangeSet:
        """Return the grid as one rectangle."""
        return CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(self.x - 1, self.y - 1))])


def num_cores_to_corerangeset(target_num_cores: int, grid_size: CoreCoord, row_wise: bool = False) -> CoreRangeSet:
    """Return the first ``target_num_cores`` cores of a grid, row by row or column by column.

    Raises:
        RuntimeError: the grid has fewer cores.
    """
    available = grid_size.x * grid_size.y
    if not 0 <= target_num_cores <= available:
        raise RuntimeError(
            f"num_cores_to_corerangeset: {target_num_cores} cores asked, the grid "
            f"{grid_size.x} x {grid_size.y} has {available}"
        )
    line = grid_size.x if row_wise else grid_size.y
    full, rest = divmod(target_num_cores, line)

    def rectangle(first: int, last: int, length: int) -> CoreRange:
        if row_wise:
            return CoreRange(CoreCoord(0, first), CoreCoord(length - 1, last))
        return CoreRange(CoreCoord(first, 0), CoreCoord(last, length - 1))

    ranges = [rectangle(0, full - 1, line)] if full else []
    if rest:
        ranges.append(rectangle(full, full, rest))
    return CoreRangeSet(ranges)
