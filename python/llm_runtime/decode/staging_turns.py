# SPDX-License-Identifier: Apache-2.0
"""Which set of host tensors a step may write again: one that no queued copy still reads.

A step's copies lie before its output in the command queue, so they are complete once its output, or that of a later
step, has been read.
"""

from __future__ import annotations

__all__ = ["STAGING_SETS", "StagingTurns"]

#: Two steps in flight and the one that is being prepared.
STAGING_SETS = 3


class StagingTurns:
    """Counts the steps of one lane: `submitted` to the device, and `read` up to which one.

    Reading may happen on another thread. There is no lock: at worst a slow reader sets `read` back to a step that was
    read too, and a set stays in use for one more step.
    """

    def __init__(self) -> None:
        self.submitted = 0
        self.read = 0
        self._used_by = [0] * STAGING_SETS

    def take(self) -> int:
        """The number of a set for the step after the latest one, or -1 when queued copies may still read them all."""
        read = self.read
        for number, step in enumerate(self._used_by):
            if step <= read:
                self._used_by[number] = self.submitted + 1
                return number
        return -1

    def note_read(self, step: int) -> None:
        """The output of `step`, as `submitted` counted it, has arrived."""
        if step > self.read:
            self.read = step
