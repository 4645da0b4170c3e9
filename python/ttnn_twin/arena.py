# SPDX-License-Identifier: Apache-2.0
"""Memory that captures reuse: what one op of a capture frees, a later op, or a later capture, gets."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

Block = npt.NDArray[np.uint8]


class CaptureArena:
    """Blocks that were freed inside a capture, smallest first. Guarded by the lock of the mesh.

    As on hardware, intermediate tensors of all traces share memory: a replay leaves garbage where another trace had
    its own, and outputs must be read before the next replay. Without that every trace would keep every intermediate.
    """

    def __init__(self) -> None:
        self._sizes: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def take(self, size: int) -> Block:
        """Return a spare block of ``size`` to twice that many bytes, or a new one."""
        index = bisect_left(self._sizes, (size, 0))
        if index < len(self._sizes) and self._sizes[index][0] <= 2 * size:
            _, identity = self._sizes.pop(index)
            return self._blocks.pop(identity)
        return np.empty(size, np.uint8)

    def give(self, block: Block) -> None:
        """Take a block back; its last user must have been recorded."""
        insort(self._sizes, (block.nbytes, id(block)))
        self._blocks[id(block)] = block

    def clear(self) -> None:
        """Forget every spare block."""
        self._sizes.clear()
        self._blocks.clear()
