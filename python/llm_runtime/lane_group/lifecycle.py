# SPDX-License-Identifier: Apache-2.0
"""When a lane group may work, what ends it, and the cleanup of its lanes.

Follows chapter 30, sections 7.2 and 7.8, with decision D10: a refusal before device work leaves the group usable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llm_runtime.errors import TraceCoverageError
from llm_runtime.lane_group.naming import naming_lane
from llm_runtime.lane_group.reads import LaneReads
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_cleanup_failures

Refusals = tuple[type[BaseException], ...]


class LaneWork:
    """Calls lanes one after another and knows whether one of them has finished."""

    def __init__(self) -> None:
        self.is_untouched = True

    def call(self, lane: int, call: Callable[[], Any], *, rows: Sequence[int] | None = None) -> Any:
        """The result of `call`; an error names the lane."""
        with naming_lane(lane, rows):
            result = call()
        self.is_untouched = False
        return result


class LaneLifecycle:
    """Owns the lanes (from construction on) and the read workers; `end` and `cleanup` make the group terminal."""

    def __init__(self, lanes: Sequence[Any], reads: LaneReads) -> None:
        self._uncleaned = list(enumerate(lanes))
        self._reads: LaneReads | None = reads
        self._lock = threading.RLock()
        self._reason: str | None = None

    @property
    def terminal(self) -> bool:
        """Whether the group has ended."""
        return self._reason is not None

    def require_usable(self) -> None:
        """`RuntimeError` with the reason once the group has ended."""
        if self._reason is not None:
            raise RuntimeError(f"the lane group is terminal: {self._reason}; build new lanes and a new group")

    @contextmanager
    def device_work(self, *, refusals: Refusals = (TraceCoverageError,)) -> Iterator[LaneWork]:
        """A stretch in which lanes touch their devices: an error ends the group and cleans every lane.

        The exception: one of the `refusals`, raised by the first lane that is called. By its type nothing has
        executed then, so the group stays usable.
        """
        work = LaneWork()
        try:
            yield work
        except BaseException as error:
            if not (work.is_untouched and isinstance(error, refusals)):
                self.end(error)
            raise

    def end(self, primary: BaseException) -> None:
        """Become terminal because of `primary` and clean every lane; what fails there is attached to it."""
        failures = self._release(f"it failed with {type(primary).__name__}: {primary}")
        attach_cleanup_failures(primary, failures, note="{count} lane cleanup failure(s) also occurred")

    def cleanup(self) -> None:
        """Release every lane and the workers; idempotent, and a repeated call retries only what failed.

        The first failure is raised, the others in its `cleanup_failures`.
        """
        failures = self._release("it was cleaned up")
        if failures:
            raise_cleanup_failures(failures)

    def _release(self, reason: str) -> list[BaseException]:
        with self._lock:
            if self._reason is None:
                self._reason = reason
            failures: list[BaseException] = [] if self._reads is None else self._reads.settle()
            remaining = []
            for lane, executor in self._uncleaned:
                try:
                    with naming_lane(lane):
                        executor.cleanup()
                except BaseException as failure:  # every other lane must still be cleaned
                    failures.append(failure)
                    remaining.append((lane, executor))
            self._uncleaned = remaining
            if self._reads is not None:
                try:
                    self._reads.shutdown()
                    self._reads = None
                except BaseException as failure:
                    failures.append(failure)
            return failures
