# SPDX-License-Identifier: Apache-2.0
"""KV blocks of one lane: reuse, prefix cache, poison, and an audit of every write."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

from support.serving.traffic import Request

SEALED = "sealed"


class BlockManager:
    """Hands out blocks of one lane. A full block may be shared by requests with the same tokens before it.

    Free blocks that hold a known prefix are kept until their space is needed, oldest first. Every block that belongs
    to nobody is filled with NaN and marked in the mesh's ledger, so that a read shows in the tokens and a write in the
    ledger. Nobody may write to a block once it is full.
    """

    def __init__(self, mesh: Any, caches: Sequence[Any], *, num_blocks: int, block_size: int) -> None:
        self.mesh, self.caches, self.block_size = mesh, list(caches), block_size
        self.free = list(range(num_blocks))
        self.users: Counter[int] = Counter()
        self.block_of: dict[tuple[int, ...], int] = {}
        self.prefix_of: dict[int, tuple[int, ...]] = {}
        self.idle_prefixes: OrderedDict[int, None] = OrderedDict()
        self.hits = self.evictions = self.reused = 0
        self._seen: set[int] = set()
        mesh.ledger.clear()  # warmup wrote to blocks of nobody
        for block in self.free:  # one by one, as later: the twin counts programs by the number of blocks
            mesh.ledger.poison([block], caches=self.caches)
        mesh.ledger.take_writes()

    @property
    def available(self) -> int:
        """Blocks that can be had, evicting idle prefixes."""
        return len(self.free) + len(self.idle_prefixes)

    def cached_prefix(self, tokens: Sequence[int]) -> list[int]:
        """Blocks of the longest known prefix that leaves at least one token to compute."""
        found = []
        for count in range(1, (len(tokens) - 1) // self.block_size + 1):
            block = self.block_of.get(tuple(tokens[: count * self.block_size]))
            if block is None:
                break
            found.append(block)
        return found

    def missing(self, tokens: Sequence[int], cached: Sequence[int]) -> int:
        """Free blocks that a prompt needs beside its cached ones, those included that would stop being idle."""
        return -(-len(tokens) // self.block_size) - len(cached) + sum(block in self.idle_prefixes for block in cached)

    def start(self, request: Request, cached: Sequence[int]) -> None:
        """Give a request its cached blocks and new ones for the rest of its tokens."""
        for block in cached:
            self.idle_prefixes.pop(block, None)
            self.users[block] += 1
        self.hits += len(cached)
        request.blocks = list(cached)
        while len(request.blocks) * self.block_size < len(request.tokens):
            self.extend(request)

    def extend(self, request: Request) -> None:
        """Append one block; `available` must be positive."""
        if self.free:
            block = self.free.pop(0)
        else:
            block, _ = self.idle_prefixes.popitem(last=False)
            del self.block_of[self.prefix_of.pop(block)]
            self.evictions += 1
            self.mesh.ledger.poison([block], caches=self.caches)
        self.reused += block in self._seen
        self._seen.add(block)
        self.users[block] = 1
        self.mesh.ledger.own(block, request.number)
        request.blocks.append(block)

    def seal(self, request: Request, computed: int) -> None:
        """Enter blocks that `computed` tokens have filled into the prefix cache."""
        tokens = request.tokens
        for index in range(min(computed // self.block_size, len(request.blocks))):
            block = request.blocks[index]
            if self.mesh.ledger.owner(block) != request.number:
                continue
            self.mesh.ledger.own(block, SEALED)
            prefix = tuple(tokens[: (index + 1) * self.block_size])
            if prefix not in self.block_of:
                self.block_of[prefix] = block
                self.prefix_of[block] = prefix

    def release(self, request: Request) -> None:
        """Take a request's blocks back."""
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if self.users[block]:
                continue
            del self.users[block]
            if block in self.prefix_of:
                self.idle_prefixes[block] = None
            else:
                self.mesh.ledger.poison([block], caches=self.caches)
                self.free.append(block)
        request.blocks = []


class WriteAudit:
    """What the steps since the last check may write to one lane's cache, compared with what was written."""

    def __init__(self, manager: BlockManager, *, layers: int) -> None:
        self.manager, self.copies = manager, 2 * layers
        self.updates: Counter[tuple[int, int]] = Counter()
        self.fills: Counter[tuple[int, int]] = Counter()
        self.padding: set[tuple[int, int]] = set()

    def expect_decode(self, request: Request) -> None:
        """One token at the request's next position."""
        block, offset = divmod(request.next_position, self.manager.block_size)
        self.updates[request.blocks[block], offset] += self.copies

    def expect_prefill(self, request: Request, start: int) -> None:
        """Every token from `start`; what lies behind the last one in its block is padding that nobody reads."""
        size, length = self.manager.block_size, len(request.tokens)
        for position in range(start, len(request.blocks) * size):
            place = request.blocks[position // size], position % size
            if position < length:
                self.fills[place] += self.copies
            else:
                self.padding.add(place)

    def check(self) -> None:
        """Compare and start anew; the device must be idle. Sealed blocks and poison are never written."""
        ledger = self.manager.mesh.ledger
        assert ledger.poisoned_writes() == [], ledger.poisoned_writes()[:4]
        updates: Counter[tuple[int, int]] = Counter()
        fills: Counter[tuple[int, int]] = Counter()
        for write in ledger.take_writes():
            assert write.owner not in (None, SEALED), f"a write to a block of nobody or of a shared prefix: {write}"
            place = (write.block, write.offset)
            if write.kind == "update":
                updates[place] += 1
            elif place not in self.padding:
                fills[place] += 1
        assert updates == self.updates, _difference(updates, self.updates)
        assert fills == self.fills, _difference(fills, self.fills)
        self.updates.clear()
        self.fills.clear()
        self.padding.clear()


def _difference(written: Counter[tuple[int, int]], expected: Counter[tuple[int, int]]) -> str:
    return f"written but not expected {dict(written - expected)}, expected but not written {dict(expected - written)}"
