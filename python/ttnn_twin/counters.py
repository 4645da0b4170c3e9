# SPDX-License-Identifier: Apache-2.0
"""What happened on a mesh, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .allocator import Allocator


class Counters:
    """Counts of one mesh since it was opened, or since ``clear``.

    Attributes:
        calls: calls of each public function or op by name, refused ones included; ops inside a replay are none.
        bytes_to_device: bytes of the device tensors written by uploads.
        bytes_to_host: bytes of the device tensors read.
        compiles: programs compiled.
        captures: finished captures.
        replays: replays enqueued.
        allocations: device tensors made.
        deallocations: device tensors freed by ``deallocate``; tensors that Python dropped do not count.
        syncs: blocking reads and replays, event and device synchronisations.
    """

    def __init__(self, memory: Allocator) -> None:
        self._memory = memory
        self.calls: Counter[str] = Counter()
        self.clear()

    def clear(self) -> None:
        """Set every count to zero; live tensors are a state and stay."""
        self.calls.clear()
        self.bytes_to_device = 0
        self.bytes_to_host = 0
        self.compiles = 0
        self.captures = 0
        self.replays = 0
        self.allocations = 0
        self.deallocations = 0
        self.syncs = 0

    @property
    def live_tensors(self) -> int:
        """Return the number of device tensors that are allocated now."""
        return len(self._memory.live())

    @property
    def live_bytes(self) -> int:
        """Return the device bytes of the tensors that are allocated now."""
        return sum(buffer.spec.device_bytes for buffer in self._memory.live())
