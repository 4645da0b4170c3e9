# SPDX-License-Identifier: Apache-2.0
"""Concurrent output reads, one worker thread per lane and direction. Follows chapter 30, section 7.6."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from llm_runtime.errors import add_error_note
from llm_runtime.lane_group.naming import naming_lane

Call = Callable[[], Any]


class LaneReads:
    """Runs one call per lane at the same time. Owns its threads."""

    def __init__(self, lane_count: int) -> None:
        # Twice the lanes: workers that wait for the events of one step must not hold up the next step's reads.
        self._pool = ThreadPoolExecutor(max_workers=2 * lane_count, thread_name_prefix="lane-output")
        self._running: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def run(self, calls: Sequence[Call | None]) -> list[Any]:
        """Results in lane order (`None` where there is no call), after every call has ended.

        The failure of the first lane in order is raised, those of other lanes are its `lane_failures`.
        """
        futures: dict[int, Future[Any]] = {}
        try:
            # One lock over all lanes: `settle` sees a step's calls together or not at all.
            with self._lock:
                for lane, call in enumerate(calls):
                    if call is not None:
                        futures[lane] = self._pool.submit(partial(_named, lane, call))
                        self._running.add(futures[lane])
        finally:
            wait(futures.values())
            # Not reached when the wait is interrupted: `settle` then waits again.
            with self._lock:
                self._running.difference_update(futures.values())
        failures = [error for future in futures.values() if (error := future.exception()) is not None]
        if failures:
            primary, *others = failures
            if others:
                primary.lane_failures = tuple(others)  # type: ignore[attr-defined]
                add_error_note(primary, f"{len(others)} further lane(s) failed")
            raise primary
        return [futures[lane].result() if lane in futures else None for lane in range(len(calls))]

    def settle(self) -> list[BaseException]:
        """Wait for calls that other threads have started; returns their failures."""
        with self._lock:
            running = list(self._running)
        wait(running)
        return [error for future in running if (error := future.exception()) is not None]

    def shutdown(self) -> None:
        """End the threads once they are idle."""
        self._pool.shutdown()


def _named(lane: int, call: Call) -> Any:
    with naming_lane(lane):
        return call()


def host_values_and_events(values: Sequence[Any], raw: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Split what lanes' async reads returned into host values per lane and one flat list of events.

    A lane without a raw output was not read and has no host value. `TypeError` for a result that is no pair.
    """
    hosts: list[Any] = []
    events: list[Any] = []
    for lane, value in enumerate(values):
        if raw[lane] is None:
            hosts.append(None)
            continue
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(f"lane {lane}: an async read must return (host value, events), got {type(value).__name__}")
        hosts.append(value[0])
        events += _flat(value[1])
    return hosts, events


def _flat(events: Any) -> list[Any]:
    if events is None:
        return []
    if isinstance(events, (list, tuple)):
        return [event for item in events for event in _flat(item)]
    return [events]
