# SPDX-License-Identifier: Apache-2.0
"""Ledger of key/value cache writes: which block was written where, by whom, and whether it belonged to anybody."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .tensor import Tensor

HISTORY = 1_000_000
"""Writes kept by a ledger; older ones are forgotten. Writes into poisoned blocks are always kept."""


class CacheWrite(NamedTuple):
    """One token's write into a cache. ``offset`` is the row inside ``block``; ``label`` names the cache."""

    buffer_id: int
    label: str
    block: int
    offset: int
    position: int | None
    kind: str
    owner: Hashable | None
    poisoned: bool


class Ledger:
    """Writes and block owners of one mesh. Records are made when a kernel runs, in replays too."""

    def __init__(self, fill: Callable[[Tensor, Sequence[int]], None]) -> None:
        self.enabled = True
        self._fill = fill
        self._labels: dict[int, str] = {}
        self._owners: dict[int, Hashable] = {}
        self._poisoned: set[int] = set()
        self._writes: deque[CacheWrite] = deque(maxlen=HISTORY)
        self._poisoned_writes: list[CacheWrite] = []

    def record(self, cache: Tensor, *, block: int, offset: int, position: int | None, kind: str) -> None:
        """Note that row ``offset`` of ``block`` was written; ``kind`` is ``"fill"`` or ``"update"``."""
        if not self.enabled:
            return
        number = cache.buffer_id or 0
        poisoned = block in self._poisoned
        label = self._labels.get(number, "")
        write = CacheWrite(number, label, block, offset, position, kind, self._owners.get(block), poisoned)
        self._writes.append(write)
        if poisoned:
            self._poisoned_writes.append(write)

    def label(self, cache: Tensor, label: str) -> None:
        """Name a cache in later records, for example ``"layer 3 key"``."""
        self._labels[cache.buffer_id or 0] = label

    def own(self, block: int, owner: Hashable | None) -> None:
        """Give ``block`` to ``owner`` and lift its poison; ``None`` takes it away from its owner."""
        if owner is None:
            self._owners.pop(block, None)
        else:
            self._owners[block] = owner
            self._poisoned.discard(block)

    def owner(self, block: int) -> Hashable | None:
        """Return the owner of ``block``, or ``None``."""
        return self._owners.get(block)

    def poison(self, blocks: Iterable[int], *, caches: Iterable[Tensor] = ()) -> None:
        """Mark blocks that belong to nobody; every write into one is kept in ``poisoned_writes``.

        With ``caches`` (device tensors, blocks on dimension 0) the blocks are filled with NaN as well, so that a
        read of one shows in the result.
        """
        marked = [int(block) for block in blocks]
        for block in marked:
            self._owners.pop(block, None)
        self._poisoned.update(marked)
        for cache in caches:
            self._fill(cache, marked)

    @property
    def writes(self) -> list[CacheWrite]:
        """Return the kept writes, oldest first."""
        return list(self._writes)

    def take_writes(self) -> list[CacheWrite]:
        """Return the kept writes, oldest first, and forget them; owners, poison and ``poisoned_writes`` stay."""
        taken = list(self._writes)
        self._writes.clear()
        return taken

    def poisoned_writes(self) -> list[CacheWrite]:
        """Return every write into a block that was poisoned at the time."""
        return list(self._poisoned_writes)

    def clear(self) -> None:
        """Forget writes, owners and poison; labels stay."""
        self._writes.clear()
        self._poisoned_writes.clear()
        self._owners.clear()
        self._poisoned.clear()


def fill_with_nan(cache: Tensor, blocks: Sequence[int]) -> None:
    """Enqueue NaN into ``blocks`` (dimension 0) of a floating-point cache."""
    from .dispatch import dispatch

    rows = np.asarray(blocks, np.int64)

    def kernel(_out: list[np.ndarray], _read: list[np.ndarray], write: list[np.ndarray]) -> None:
        write[0][rows] = np.nan

    dispatch("poison", reads=(), kernel=kernel, writes=(cache,), attributes=(len(rows),), exact_writes=True)
