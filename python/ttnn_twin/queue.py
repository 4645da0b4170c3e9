# SPDX-License-Identifier: Apache-2.0
"""The in-order command queue of a mesh: work runs when it is enqueued, when somebody waits for it, or never."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

Step = Callable[[], object]


class CommandQueue:
    """FIFO of device work. ``issued`` counts enqueued steps; ``completed`` is how far a caller has waited;
    ``busy_seconds`` is the wall time spent in steps.

    In immediate execution a step has run when ``submit`` returns, but it counts as completed only once somebody
    waited for it, so that both executions refuse the same early reads. A queue that does not run anything counts
    only. Guarded by the lock of the mesh.
    """

    __slots__ = ("_pending", "busy_seconds", "completed", "deferred", "executed", "issued", "runs")

    def __init__(self, *, deferred: bool, runs: bool = True) -> None:
        self.deferred = deferred
        self.runs = runs
        self.issued = 0
        self.executed = 0
        self.completed = 0
        self.busy_seconds = 0.0
        self._pending: deque[Step] = deque()

    def submit(self, step: Step) -> int:
        """Enqueue ``step`` and return its position."""
        self.issued += 1
        if not self.runs:
            self.executed = self.issued
        elif self.deferred:
            self._pending.append(step)
        else:
            self.executed = self.issued
            self._run(step)
        return self.issued

    def wait(self, position: int) -> None:
        """Run everything up to ``position`` and count it as completed.

        A step that raises is dropped; the error reaches the waiter and later steps stay queued.
        """
        while self.executed < position:
            step = self._pending.popleft()
            self.executed += 1
            self._run(step)
        self.completed = max(self.completed, position)

    def _run(self, step: Step) -> None:
        started = perf_counter()
        try:
            step()
        finally:
            self.busy_seconds += perf_counter() - started

    def drop(self) -> None:
        """Forget work that was never run; used when the mesh closes."""
        self._pending.clear()
        self.executed = self.issued
