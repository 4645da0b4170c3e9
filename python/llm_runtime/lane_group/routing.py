# SPDX-License-Identifier: Apache-2.0
"""Which lane serves which row: slots of the group, slots inside a lane, and the rows of a call.

The only place that converts between the three numberings. Follows chapter 30, section 7.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime import _core
from llm_runtime.host_arrays import host_array

HostArray = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneRows:
    """The rows of one call that one lane serves, in call order.

    `rows` are source rows, `slots` the same rows' slots inside the lane, `row_count` the rows of the whole call.
    """

    lane: int
    rows: list[int]
    slots: list[int]
    row_count: int

    @property
    def is_whole_call(self) -> bool:
        """Whether the lane serves every row (rows keep their order, so the call needs no selection then)."""
        return len(self.rows) == self.row_count

    def take(self, value: Any) -> Any:
        """The lane's rows of an array, list or tuple; the value itself when the lane serves the whole call."""
        return value if self.is_whole_call else take_rows(value, self.rows)


def route_rows(empty_slots: Any, *, row_count: int, lane_count: int, lane_capacity: int) -> tuple[LaneRows, ...]:
    """Assign each row to lane `slot // lane_capacity`; lanes come in order, lanes without rows are left out.

    `empty_slots` names one slot of the group per row (0, 1, … when `None`). `TypeError` for entries that are no
    integers; `ValueError` for a wrong count, and, naming row and slot, for a slot outside the group or taken twice.
    """
    routed = _core.route_rows(_slot_array(empty_slots, row_count), lane_count=lane_count, lane_capacity=lane_capacity)
    return tuple([LaneRows(lane=lane, rows=rows, slots=slots, row_count=row_count) for lane, rows, slots in routed])


def batch_array(value: Any, *, name: str) -> HostArray:
    """View a host array with a batch dimension; `TypeError` naming the argument for anything else."""
    array = host_array(value, name=name)
    if array.ndim == 0:
        raise TypeError(f"{name} must have a batch dimension, got a scalar array")
    return array


def require_rows(array: HostArray, rows: int, *, name: str, of: str) -> None:
    """`ValueError` unless `array` has `rows` rows, which are those of `of`."""
    if len(array) != rows:
        raise ValueError(f"{name} has {len(array)} rows, {of} has {rows}")


def row_values(value: Any, row_count: int, *, name: str) -> Any:
    """One value per row: a host array `[row_count]`, a list or a tuple; a 0-d array serves a call of one row.

    `None` passes. `TypeError` for other kinds, `ValueError` for another number of entries.
    """
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        value = host_array(value, name=name)
        if value.ndim == 0:
            value = value.reshape(1)
    if len(value) != row_count:
        raise ValueError(f"{name} has {len(value)} entries for {row_count} rows")
    return value


def per_lane(value: Any, lane_count: int, *, name: str) -> Sequence[Any]:
    """A sequence with one entry per lane; `None` means `None` for every lane.

    `TypeError` for anything but a list or tuple, `ValueError` for another count.
    """
    if value is None:
        return (None,) * lane_count
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be a list or tuple with one entry per lane, got {type(value).__name__}")
    if len(value) != lane_count:
        raise ValueError(f"{name} has {len(value)} entries, the group has {lane_count} lanes")
    return value


def take_rows(value: Any, rows: list[int] | slice) -> Any:
    """Rows of a list, a tuple or an array, in the same container; a slice of an array is a view."""
    if isinstance(rows, slice) or not isinstance(value, (list, tuple)):
        return value[rows]
    picked = [value[row] for row in rows]
    return tuple(picked) if isinstance(value, tuple) else picked


def _slot_array(empty_slots: Any, row_count: int) -> npt.NDArray[np.int64]:
    if empty_slots is None:
        return np.arange(row_count, dtype=np.int64)
    if not isinstance(empty_slots, (list, tuple, range)):
        slots = host_array(empty_slots, name="empty_slots")
    else:
        slots = np.asarray(empty_slots) if len(empty_slots) else np.zeros(0, np.int64)
        if bool in set(map(type, empty_slots)):
            raise TypeError(f"empty_slots must hold integers, got {list(empty_slots)}")
    if slots.shape != (row_count,):
        raise ValueError(f"empty_slots has {len(empty_slots)} entries for {row_count} rows")
    if slots.dtype.kind not in "iu":
        raise TypeError(f"empty_slots must hold integers, got {slots.dtype} values {slots.tolist()}")
    return slots.astype(np.int64)
