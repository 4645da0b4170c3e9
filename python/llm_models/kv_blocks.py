# SPDX-License-Identifier: Apache-2.0
"""Which blocks of the paged KV cache are free."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Hands out block ids of one lane's KV cache, lowest first. Not thread-safe; one owner per lane."""

    def __init__(self, num_blocks: int, *, reserved: Iterable[int] = ()) -> None:
        """All of `num_blocks` are free but the `reserved` ids, which are never handed out."""
        withheld = set(reserved)
        outside = [block for block in withheld if not 0 <= block < num_blocks]
        if outside:
            raise ValueError(f"reserved block {outside[0]} is outside a cache of {num_blocks} blocks")
        self._free = [block for block in range(num_blocks - 1, -1, -1) if block not in withheld]
        self._used: set[int] = set()
        self.total = num_blocks
        self.peak_used = 0

    @property
    def free(self) -> int:
        """How many blocks can still be allocated."""
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take `count` blocks, all or none. `ValueError` names the wanted and the free number."""
        if count > len(self._free):
            raise ValueError(f"{count} KV blocks are needed, {len(self._free)} of {self.total} are free")
        taken = tuple(self._free.pop() for _ in range(count))
        self._used.update(taken)
        self.peak_used = max(self.peak_used, len(self._used))
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        """Give blocks back. `ValueError` for one that is not in use; nothing is given back then."""
        blocks = list(blocks)
        strangers = [block for block in blocks if block not in self._used]
        if strangers or len(set(blocks)) != len(blocks):
            raise ValueError(f"blocks {strangers or blocks} are not in use, or are given back twice")
        self._used.difference_update(blocks)
        self._free.extend(sorted(blocks, reverse=True))
