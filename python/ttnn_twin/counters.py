# SPDX-License-Identifier: Apache-2.0
"""What happened on a mesh, in numbers."""

from __future__ import annotations

from collections import Counter


class Counters:
    """Counts of one mesh since it was opened (or since ``clear``).

    ``calls`` counts every call of a public function or op by name, refused calls included; ops inside a replay
    are not calls. ``bytes_to_device`` and ``bytes_to_host`` count device-side bytes of the copied tensors.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.clear()

    def clear(self) -> None:
        """Set every count to zero."""
        self.calls.clear()
        self.bytes_to_device = 0
        self.bytes_to_host = 0
        self.compiles = 0
        self.captures = 0
        self.replays = 0
        self.allocations = 0
        self.deallocations = 0
        self.syncs = 0
