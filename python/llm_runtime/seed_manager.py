# SPDX-License-Identifier: Apache-2.0
"""Per-slot random streams for sampling on the device: which seed each sampler row gets at which position.

Follows chapter 20, section 5.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from llm_runtime.seed_state import MAX_DEVICE_SEED, SeedState, device_seed

__all__ = ["MAX_DEVICE_SEED", "SeedBuffer", "SeedManager", "SeedState", "device_seed"]


_INDEX_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


class SeedBuffer(Protocol):
    """The sampler's seeds on the device: `source` holds the defaults, uint32 [sampler rows]."""

    source: npt.NDArray[np.uint32]

    def update(self, values: npt.NDArray[np.uint32]) -> None:
        """Write uint32 [sampler rows] into the device buffer in place, unless it holds them already."""

    def get_device_buffer(self) -> Any:
        """The device tensor; the same object for as long as traces may use it."""


class SeedManager:
    """Turns request seeds and positions into the contents of the sampler's seed buffer (borrowed).

    A seeded row's device seed depends on its seed, position and salt alone: not on its slot, its batch mates or the
    steps before. A row without a seed has a stream of its own that draws once per new position. State is passed
    into each call. Slots are row numbers of the sampler.
    """

    def __init__(self, seeds: SeedBuffer) -> None:
        self._buffer = seeds
        # Of buffers that can write host tensors again.
        self._update_staged = getattr(seeds, "update_staged", None)

    def create_state(self) -> SeedState:
        """A state without streams, one slot per sampler row."""
        return SeedState(len(self._buffer.source))

    def get_seed_device_buffer(self) -> Any:
        """The device tensor that programs and traces read the seeds from."""
        return self._buffer.get_device_buffer()

    def admit(
        self,
        state: SeedState,
        seeds: Sequence[int | None] | None,
        slots: Sequence[int],
        *,
        positions: Sequence[int],
    ) -> None:
        """Start the streams of newly prefilled requests and stage their seeds for the prefill's sampler.

        `seeds[i]`, `slots[i]` and `positions[i]` (of the last prompt token) belong to request i, which the prefill
        samples in row i; a single request fills all rows, since its token may sit in any row of a tile. Streams of
        other slots stay as they are. `ValueError` for slots that are out of range or named twice.
        """
        _check_slots(state, slots)
        if len(positions) < len(slots):
            raise ValueError(f"{len(slots)} slots need as many positions, got {len(positions)}")
        rows = np.array(slots, np.int64)
        state.drop(rows)
        for index, slot in enumerate(slots):
            state.start(slot, _seed_of(seeds, index))
        wanted = np.zeros(state.capacity, np.int64)
        wanted[rows] = positions[: len(slots)]
        drawn = np.empty(state.capacity, np.uint32)
        state.draw(rows, wanted, drawn)
        values = self._buffer.source.copy()
        if len(slots) == 1:
            values[:] = drawn[slots[0]]
        else:
            values[: len(slots)] = drawn[rows]
        self._buffer.update(values)

    def synchronize(
        self,
        state: SeedState,
        seeds: Sequence[int | None] | None,
        active: Sequence[int],
        *,
        reset_batch: bool = False,
    ) -> None:
        """Make `active` the slots with streams.

        With `reset_batch` every stream starts anew from `seeds` (by slot); a slot whose seed is unchanged keeps its
        salt. Without it streams go on, those of other slots end, and a slot that has none is a `RuntimeError`.
        `ValueError` for slots that are out of range or named twice.
        """
        if not reset_batch and tuple(active) == state.members:
            return
        _check_slots(state, active)
        if reset_batch:
            self._restart(state, seeds, active)
        else:
            state.rows_of(active)
            self.cleanup(state, active)

    def reset_decode(self, state: SeedState, seeds: Sequence[int | None] | None, active: Sequence[int]) -> None:
        """Start every stream anew, as `synchronize` with `reset_batch`."""
        self.synchronize(state, seeds, active, reset_batch=True)

    def reload_request_seeds(self, state: SeedState, seeds: Sequence[int | None] | None, active: Sequence[int]) -> None:
        """Take over changed seeds of `active` slots; streams whose seed is the same go on untouched."""
        _check_slots(state, active)
        state.rows_of(active)
        changed = [slot for slot in active if _seed_of(seeds, slot) != state._seeds[slot]]
        state.drop(np.array(changed, np.int64))
        for slot in changed:
            state.start(slot, _seed_of(seeds, slot))

    def refresh(
        self,
        state: SeedState,
        active: Sequence[int],
        *,
        positions: Sequence[int] | None = None,
        staging_set: int = -1,
    ) -> None:
        """Draw for `positions[slot]` of each active slot and write the seed buffer; other rows get the defaults.

        `None` means one behind each slot's last position. Drawing twice for one position changes nothing. The host
        tensors of `staging_set` are free to be written again; -1 stands for none. `RuntimeError` for a slot without a
        stream.
        """
        buffer = self._buffer
        values = buffer.source.copy()
        rows = state._member_rows if active is state._members else state.rows_of(active)
        state.draw(rows, None if positions is None else device_positions(positions), values)
        if staging_set < 0 or self._update_staged is None:
            buffer.update(values)
        else:
            self._update_staged(values, staging_set)

    def apply_slot_remap(self, state: SeedState, slot_remap: Sequence[int]) -> None:
        """Move streams: slot i then holds what slot `slot_remap[i]` held; slots beyond its length stay.

        `ValueError` for a source that is out of range.
        """
        sources = np.arange(state.capacity)
        moved = np.asarray(slot_remap, np.int64)
        if len(moved) > state.capacity:
            raise ValueError(f"slot_remap has {len(moved)} entries for {state.capacity} slots")
        if ((moved < 0) | (moved >= state.capacity)).any():
            raise ValueError(f"slot_remap {moved.tolist()} names slots outside 0..{state.capacity - 1}")
        sources[: len(moved)] = moved
        state.move(sources)

    def cleanup(self, state: SeedState, active: Sequence[int]) -> None:
        """End the streams of all slots but `active`."""
        members = state.members
        if not members or members == active:
            return
        gone = state._active.copy()
        gone[list(active)] = False
        if gone.any():
            state.drop(np.flatnonzero(gone))

    def restore_defaults(self, state: SeedState) -> None:
        """Write the default seeds into the buffer; streams stay as they are."""
        self._buffer.update(self._buffer.source.copy())

    def reset(self, state: SeedState) -> None:
        """End every stream and restore the default seeds."""
        state.drop(np.arange(state.capacity))
        self.restore_defaults(state)

    def _restart(self, state: SeedState, seeds: Sequence[int | None] | None, active: Sequence[int]) -> None:
        kept = {
            slot: state._salts[slot]
            for slot in active
            if state._active[slot] and state._seeds[slot] == _seed_of(seeds, slot)
        }
        state.drop(np.arange(state.capacity))
        for slot, salt in kept.items():
            state.start(slot, _seed_of(seeds, slot), salt)
        for slot in active:
            if slot not in kept:
                state.start(slot, _seed_of(seeds, slot))


def device_positions(positions: Any) -> npt.NDArray[np.signedinteger[Any]]:
    """`positions` as the core takes them: int32 or int64 arrays go as they are."""
    if type(positions) is np.ndarray and positions.dtype in _INDEX_TYPES:
        return positions
    return np.ascontiguousarray(positions, np.int64)


def _check_slots(state: SeedState, slots: Sequence[int]) -> None:
    if len(set(slots)) != len(slots):
        raise ValueError(f"slots {list(slots)} name one slot twice")
    outside = [slot for slot in slots if not 0 <= slot < state.capacity]
    if outside:
        raise ValueError(f"slots {outside} are outside 0..{state.capacity - 1}")


def _seed_of(seeds: Sequence[int | None] | None, index: int) -> int | None:
    return None if seeds is None or index >= len(seeds) else seeds[index]
