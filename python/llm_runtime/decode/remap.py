# SPDX-License-Identifier: Apache-2.0
"""Slot remaps: ``slot_remap[i] = j`` says that the request now in slot ``i`` was in slot ``j``.

Follows chapter 20, section 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from llm_runtime.prefill.sampling_helpers import PreparedSamplingParams
from llm_runtime.prefill.sampling_params import NEUTRAL_ROW, plain_value

__all__ = [
    "moves_rows",
    "normalise_slot_remap",
    "remap_prepared_sampling",
    "remap_rows",
    "remap_sources",
    "without_remap",
]

Row = TypeVar("Row")


def normalise_slot_remap(slot_remap: Any, *, lane_capacity: int, sampling_batch_size: int) -> Any:
    """Return ``slot_remap`` extended with identity rows to ``sampling_batch_size``, in the caller's container.

    None passes. ValueError for a 0-d array, a length that is neither capacity, a source outside the slots,
    or a source that moves into two destinations; TypeError for other containers and non-integer entries.
    """
    if slot_remap is None:
        return None
    is_array = not isinstance(slot_remap, (list, tuple)) and hasattr(slot_remap, "tolist")
    if is_array and getattr(slot_remap, "ndim", 1) == 0:
        raise ValueError("slot_remap must have one entry per slot, got a scalar")
    if not is_array and not isinstance(slot_remap, (list, tuple)):
        raise TypeError(f"slot_remap must be an array, a list or a tuple, got {type(slot_remap).__name__}")
    sources = remap_sources(slot_remap)
    length = len(sources)
    if length not in (lane_capacity, sampling_batch_size):
        raise ValueError(
            f"slot_remap has {length} entries; expected the lane's {lane_capacity} slots "
            f"or the sampler's {sampling_batch_size}"
        )
    _check_sources(sources, limit=length)
    if length == sampling_batch_size:
        return slot_remap
    return _extend(slot_remap, range(length, sampling_batch_size))


def moves_rows(slot_remap: Any) -> bool:
    """Whether any slot is to hold another slot's row."""
    return any(source != slot for slot, source in enumerate(remap_sources(slot_remap)))


def remap_sources(slot_remap: Any) -> Sequence[int]:
    """Return the remap as plain integers, one source slot per destination slot."""
    sources: Sequence[int] = plain_value(slot_remap)
    for slot, source in enumerate(sources):
        if type(source) is not int:
            raise TypeError(f"slot_remap[{slot}] must be an integer, got {source!r}")
    return sources


def _check_sources(sources: Sequence[int], *, limit: int) -> None:
    destinations: dict[int, int] = {}
    for slot, source in enumerate(sources):
        if not 0 <= source < limit:
            raise ValueError(f"slot_remap[{slot}] = {source} is outside [0, {limit})")
        if source == slot:
            continue
        if source in destinations:
            raise ValueError(f"slot_remap moves slot {source} into two slots, {destinations[source]} and {slot}")
        destinations[source] = slot


def _extend(slot_remap: Any, identity: Sequence[int]) -> Any:
    if isinstance(slot_remap, tuple):
        return (*slot_remap, *identity)
    if isinstance(slot_remap, list):
        return [*slot_remap, *identity]
    if isinstance(slot_remap, np.ndarray):
        return np.concatenate([slot_remap, np.asarray(identity, dtype=slot_remap.dtype)])
    extended = slot_remap.new_zeros(len(slot_remap) + len(identity))
    extended[: len(slot_remap)] = slot_remap
    for slot in identity:
        extended[slot] = slot
    return extended


def remap_rows(rows: Sequence[Row], sources: Sequence[int], *, neutral: Row) -> tuple[Row, ...]:
    """Move slot-indexed ``rows`` to their new slots.

    A slot whose row moved away and that received none becomes ``neutral``.
    """
    left = {source for slot, source in enumerate(sources) if source != slot}
    return tuple(neutral if source == slot and slot in left else rows[source] for slot, source in enumerate(sources))


def without_remap(prepared: PreparedSamplingParams) -> PreparedSamplingParams:
    """Return the same rows without their remap, which must be applied once only."""
    return prepared if prepared.slot_remap is None else replace(prepared, slot_remap=None)


def remap_prepared_sampling(prepared: PreparedSamplingParams, slot_remap: Any) -> PreparedSamplingParams | None:
    """Move every row of ``prepared`` (its own remap dropped); None when no active row remains."""
    if slot_remap is None:
        return without_remap(prepared)
    sources = remap_sources(slot_remap)
    columns: dict[str, Any] = {
        name: remap_rows(getattr(prepared, name), sources, neutral=neutral) for name, neutral in NEUTRAL_ROW.items()
    }
    active_rows = columns["active_mask"].count(True)
    if active_rows == 0:
        return None
    paths = columns["row_paths"]
    return replace(
        prepared,
        **columns,
        active_rows=active_rows,
        sampling_path="argmax" if paths.count("argmax") == active_rows else "topk",
        prompt_tokens=_remap_history(prepared.prompt_tokens, sources),
        output_tokens=_remap_history(prepared.output_tokens, sources),
        slot_remap=None,
    )


def _remap_history(history: Any, sources: Sequence[int]) -> Any:
    """Move a slot-indexed token history; a vacated slot keeps stale tokens, which its mask makes unread."""
    if history is None:
        return None
    count = len(history)
    # A history given for the lane alone has no rows for the sampler's padding slots.
    rows = [source if source < count else slot for slot, source in enumerate(sources[:count])]
    if isinstance(history, (list, tuple)):
        return type(history)(history[row] for row in rows)
    return history[rows]
