# SPDX-License-Identifier: Apache-2.0
"""Times short calls on a noisy machine: medians of many short batches, a path and its floor in turn."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

Call = Callable[[], Any]


@dataclass(frozen=True)
class Effort:
    """`batches` batches of about `batch_us` microseconds for each measured call, by `clock` (nanoseconds).

    Where nothing is waited for, the clock of the thread's own work leaves out what other programs take.
    """

    batches: int
    batch_us: float
    clock: Callable[[], int] = perf_counter_ns


FULL = Effort(batches=41, batch_us=2000.0)
#: ttnn's mock device answers some thousand reads and then waits for ever.
MOCK = Effort(batches=21, batch_us=150.0)
QUICK = Effort(batches=5, batch_us=200.0)


def median_us(calls: dict[str, Call | None], effort: Effort) -> dict[str, float | None]:
    """Median microseconds per call of each entry (`None` stays `None`).

    The entries take turns batch by batch, so that a slow phase of the machine meets all of them.
    """
    counts = {name: _batch_size(call, effort) for name, call in calls.items() if call is not None}
    samples: dict[str, list[float]] = {name: [] for name in counts}
    with _no_garbage_collection():
        for _ in range(effort.batches):
            for name, count in counts.items():
                samples[name].append(_timed_ns(calls[name], count, effort.clock) / count / 1000.0)
    return {name: statistics.median(samples[name]) if name in samples else None for name in calls}


def median_after_setup_us(setup: Call, call: Callable[[Any], Any], effort: Effort) -> float:
    """Median microseconds of `call(setup())`, of which only `call` is timed."""
    clock = statistics.median(_clock_ns() for _ in range(1001))
    samples: list[float] = []
    with _no_garbage_collection():
        for _ in range(effort.batches * 20):
            value = setup()
            start = perf_counter_ns()
            call(value)
            samples.append(perf_counter_ns() - start)
    return max(0.0, statistics.median(samples) - clock) / 1000.0


def once_us(call: Call) -> float:
    """Microseconds of one single call."""
    return _timed_ns(call, 1) / 1000.0


def _batch_size(call: Call, effort: Effort) -> int:
    call()
    nearly = min(_timed_ns(call, 3) / 3000.0 for _ in range(3))
    return max(1, round(effort.batch_us / max(nearly, 0.01)))


def _timed_ns(call: Any, count: int, clock: Callable[[], int] = perf_counter_ns) -> int:
    start = clock()
    for _ in range(count):
        call()
    return clock() - start


def _clock_ns() -> int:
    start = perf_counter_ns()
    return perf_counter_ns() - start


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
