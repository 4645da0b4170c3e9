# SPDX-License-Identifier: Apache-2.0
"""Per-request state that follows rows and slots into their lane: token histories and slot remaps.

Follows chapter 30, section 7.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_runtime.host_arrays import host_array, result_like
from llm_runtime.lane_group.routing import LaneRows, take_rows
from llm_runtime.prefill.sampling_helpers import history_row_count

_NO_TOKEN = -1


def place_history(history: Any, routed: LaneRows, *, lane_count: int, lane_capacity: int, name: str) -> Any:
    """The lane's rows of a token history, at their slots in a container of `lane_capacity` rows.

    One row serves every row; as many rows as the group has slots are read by slot, also when the call has as many
    rows; otherwise a history has one row per row of the call. Slots that the call does not name hold -1 (False in a
    bool array). `ValueError` for another number of rows, `TypeError` for other kinds.
    """
    count = history_row_count(history, name=name)
    if count == 1:
        sources = [0] * len(routed.rows)
    elif count == lane_count * lane_capacity:
        sources = [routed.lane * lane_capacity + slot for slot in routed.slots]
    elif count == routed.row_count:
        sources = routed.rows
    else:
        raise ValueError(
            f"{name} has {count} rows; expected 1, the {routed.row_count} rows of the call, "
            f"or the {lane_count * lane_capacity} slots of the group"
        )
    if isinstance(history, (list, tuple)):
        column: list[Any] = [_filler(history) for _ in range(lane_capacity)]
        for slot, source in zip(routed.slots, sources, strict=True):
            column[slot] = history[source]
        return tuple(column) if isinstance(history, tuple) else column
    array = host_array(history, name=name)
    filler = False if array.dtype == np.bool_ else _NO_TOKEN
    placed = np.full((lane_capacity, *array.shape[1:]), filler, array.dtype)
    placed[routed.slots] = array[sources]
    return result_like(history)(placed)


def slice_history(history: Any, rows: slice, *, row_count: int, name: str) -> Any:
    """The slots `rows` of a decode history; one row passes and serves every slot.

    `ValueError` for fewer rows than the group has slots.
    """
    count = history_row_count(history, name=name)
    if count == 1:
        return history
    if count < row_count:
        raise ValueError(f"{name} has {count} rows; expected 1, or the {row_count} slots of the group")
    return take_rows(history, rows)


def split_slot_remap(slot_remap: Any, *, lane_count: int, lane_capacity: int) -> Sequence[Any]:
    """One remap per lane, in lane-local slots and the caller's container; the caller's object stays as it is.

    As many entries as a lane has slots are lane-local and serve every lane. As many as the group has slots are cut
    by lane, and state cannot move between lanes: `ValueError` naming slot and source, also for another length.
    `TypeError` for anything but integers in a list, a tuple or an array.
    """
    if slot_remap is None:
        return (None,) * lane_count
    sources = _remap_array(slot_remap)
    total = lane_count * lane_capacity
    if len(sources) == lane_capacity:
        _require_range(sources, np.zeros(lane_capacity, np.int64), lane_capacity)
        return (slot_remap,) * lane_count
    if len(sources) != total:
        raise ValueError(
            f"slot_remap has {len(sources)} entries; expected the {lane_capacity} slots of a lane "
            f"or the {total} slots of the group"
        )
    first_of_lane = np.arange(total) // lane_capacity * lane_capacity
    _require_range(sources, first_of_lane, lane_capacity)
    local = (sources - first_of_lane).reshape(lane_count, lane_capacity)
    if isinstance(slot_remap, tuple):
        return [tuple(row) for row in local.tolist()]
    if isinstance(slot_remap, list):
        return list(local.tolist())
    return [result_like(slot_remap)(row.astype(sources.dtype)) for row in local]


def _require_range(sources: np.ndarray[Any, Any], first: np.ndarray[Any, Any], lane_capacity: int) -> None:
    outside = np.flatnonzero((sources < first) | (sources >= first + lane_capacity))
    if outside.size:
        slot = int(outside[0])
        low = int(first[slot])
        raise ValueError(
            f"slot_remap[{slot}] = {sources[slot]} is outside the slots [{low}, {low + lane_capacity}) of its lane; "
            "a request changes its lane by a prefill there"
        )


def _remap_array(slot_remap: Any) -> np.ndarray[Any, Any]:
    is_sequence = isinstance(slot_remap, (list, tuple))
    sources = np.asarray(slot_remap) if is_sequence else host_array(slot_remap, name="slot_remap")
    if sources.ndim != 1:
        raise ValueError(f"slot_remap must have one entry per slot, got shape {list(sources.shape)}")
    if sources.dtype.kind not in "iu" or (is_sequence and bool in set(map(type, slot_remap))):
        raise TypeError(f"slot_remap must hold integers, got {sources.tolist()}")
    return sources.astype(np.int64) if sources.dtype.kind == "u" else sources


def _filler(history: Sequence[Any]) -> Any:
    """What a slot without a request holds: -1 in the width of the longest row, or one -1 for scalar entries."""
    if not hasattr(history[0], "__len__"):
        return _NO_TOKEN
    row = [_NO_TOKEN] * max(len(row) for row in history)
    return tuple(row) if isinstance(history[0], tuple) else row
