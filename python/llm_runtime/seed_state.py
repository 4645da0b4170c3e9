# SPDX-License-Identifier: Apache-2.0
"""Random streams of sampler rows: the pure function from seed and position to a device seed, and a lane's streams.

Follows chapter 20, section 5.5.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime import _core
from llm_runtime._core import MAX_DEVICE_SEED

__all__ = ["MAX_DEVICE_SEED", "SeedState", "device_seed"]

_UInt64Array = npt.NDArray[np.uint64]
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def device_seed(seed: int, position: int, salt: int = 0) -> int:
    """The device seed for the token behind `position` (absolute) of a request with `seed`: 1..MAX_DEVICE_SEED.

    `salt` tells apart requests that run at once with equal seeds; the first one has 0.
    """
    return _core.device_seed(_request_key(seed, salt), position)


class SeedState:
    """Streams of one lane's slots; a plain record that `SeedManager` changes. Owned by the lane's runtime."""

    def __init__(self, capacity: int) -> None:
        self._active = np.zeros(capacity, bool)
        self._keys = np.zeros(capacity, np.uint64)
        self._positions = np.full(capacity, -1, np.int64)
        self._counts = np.zeros(capacity, np.int64)
        self._seeds: list[int | None] = [None] * capacity
        self._salts = [0] * capacity
        # Which slots have streams changes rarely, and is asked for in every step.
        self._members: tuple[int, ...] | None = ()
        self._member_rows = np.zeros(0, np.int64)

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return len(self._salts)

    @property
    def active(self) -> tuple[bool, ...]:
        """Whether each slot has a stream."""
        return tuple(self._active.tolist())

    @property
    def request_seeds(self) -> tuple[int | None, ...]:
        """The explicit seed of each slot's request; `None` for inactive slots and requests without one."""
        return tuple(self._seeds)

    @property
    def salts(self) -> tuple[int, ...]:
        """What tells apart slots with equal seeds."""
        return tuple(self._salts)

    @property
    def token_counts(self) -> tuple[int, ...]:
        """How many positions each slot has drawn for."""
        return tuple(self._counts.tolist())

    @property
    def positions(self) -> tuple[int, ...]:
        """The last position each slot has drawn for, -1 before the first."""
        return tuple(self._positions.tolist())

    @property
    def random_states(self) -> tuple[int, ...]:
        """Each stream's counter, which moves with every new position."""
        return tuple(_counters(self._keys, self._positions).tolist())

    @property
    def members(self) -> tuple[int, ...]:
        """The slots that have a stream, ascending."""
        if self._members is None:
            self._member_rows = np.flatnonzero(self._active)
            self._members = tuple(self._member_rows.tolist())
        return self._members

    def rows_of(self, slots: Sequence[int]) -> npt.NDArray[np.int64]:
        """`slots` as an index array; `RuntimeError` naming those that have no stream."""
        members = self.members
        if slots is members or tuple(slots) == members:
            return self._member_rows
        missing = [slot for slot in slots if not self._active[slot]]
        if missing:
            raise RuntimeError(f"slots {missing} have no random stream yet; call with reset_batch=True first")
        return np.array(slots, np.int64)

    def start(self, slot: int, seed: int | None, salt: int | None = None) -> None:
        """Begin a stream; without a given salt it gets the lowest one that no equal seed has."""
        if salt is None:
            salt = 0
            if seed is not None:
                taken = {used for used, other in zip(self._salts, self._seeds, strict=True) if other == seed}
                while salt in taken:
                    salt += 1
        self._members = None
        self._active[slot] = True
        self._seeds[slot] = seed
        self._salts[slot] = salt
        self._keys[slot] = secrets.randbits(64) if seed is None else _request_key(seed, salt)

    def drop(self, slots: npt.NDArray[np.int64]) -> None:
        """End streams."""
        self._members = None
        self._active[slots] = False
        self._keys[slots] = 0
        self._positions[slots] = -1
        self._counts[slots] = 0
        for slot in slots.tolist():
            self._seeds[slot] = None
            self._salts[slot] = 0

    def draw(
        self,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.signedinteger[Any]] | None,
        out: npt.NDArray[np.uint32],
    ) -> None:
        """Move the streams of `slots` to `positions[slot]` and write their device seeds to `out[slot]`.

        `None` means one behind each slot's last position. Drawing twice for one position changes nothing.
        """
        _core.draw_seeds(self._keys, self._positions, self._counts, slots, positions, out)

    def move(self, sources: npt.NDArray[np.int64]) -> None:
        """Let slot i hold what slot `sources[i]` held."""
        self._members = None
        for values in (self._active, self._keys, self._positions, self._counts):
            values[:] = values[sources]
        self._seeds[:] = [self._seeds[source] for source in sources]
        self._salts[:] = [self._salts[source] for source in sources]


def _request_key(seed: int, salt: int) -> int:
    # Seeds of any size and sign count: each 64-bit limb is mixed in.
    key, rest = _mix(salt + _GAMMA), seed
    while True:
        key = _mix((key ^ (rest & _MASK)) + _GAMMA)
        rest >>= 64
        if rest in (0, -1):
            return _mix(key + (rest & 1))


def _mix(value: int) -> int:
    """The output function of SplitMix64: a bijection that spreads every input bit."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _counters(keys: _UInt64Array, positions: npt.NDArray[np.int64]) -> _UInt64Array:
    steps = (positions + 1).astype(np.uint64)
    counters: _UInt64Array = keys + steps * np.uint64(_GAMMA)
    return counters
