# SPDX-License-Identifier: Apache-2.0
"""Times short calls on a noisy machine: medians of many short batches, which different calls take in turn."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
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
MOCK = Effort(batches=21, batch_us=300.0)
QUICK = Effort(batches=5, batch_us=200.0)


class Sampler:
    """Batches of one call, taken one by one; `enter` runs before each. With `setup` a batch is one call for each of the
    values that it returns.
    """

    def __init__(self, call: Call, effort: Effort, *, enter: Call | None = None, setup: Call | None = None) -> None:
        self._call, self._enter, self._setup, self._clock = call, enter, setup, effort.clock
        self._samples: list[float] = []
        if enter is not None:
            enter()
        self._count = 0 if setup is not None else _batch_size(call, effort)

    def take(self) -> None:
        """Time one batch. The call before it is not timed: it finds the caches as others left them."""
        if self._enter is not None:
            self._enter()
        if self._setup is not None:
            first, *values = self._setup()
            self._call(first)
            self._samples.append(_timed_each_ns(self._call, values, self._clock) / len(values) / 1000.0)
        else:
            self._call()
            self._samples.append(_timed_ns(self._call, self._count, self._clock) / self._count / 1000.0)

    def median_us(self) -> float:
        """Microseconds of a call."""
        return statistics.median(self._samples)


def median_us(call: Call, effort: Effort) -> float:
    """Median microseconds of a call over the batches of `effort`."""
    sampler = Sampler(call, effort)
    with no_garbage_collection():
        for _ in range(effort.batches):
            sampler.take()
    return sampler.median_us()


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


def _timed_each_ns(call: Any, values: Sequence[Any], clock: Callable[[], int]) -> int:
    start = clock()
    for value in values:
        call(value)
    return clock() - start


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect once and then not before the end: a collection empties the free lists that short calls live on."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
