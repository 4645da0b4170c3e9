# SPDX-License-Identifier: Apache-2.0
"""Faults at every device call of one step of a lane's life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Fault(Exception):
    """The injected error."""


class Interrupt(KeyboardInterrupt):
    """The injected error that no `except Exception` catches."""


def calls_of(mesh: Any, run: Callable[[], Any]) -> dict[str, int]:
    """How often `run` calls each device function."""
    before = mesh.counters.calls.copy()
    run()
    return dict(mesh.counters.calls - before)


def points(calls: dict[str, int], *, every: bool = True) -> list[tuple[str, int]]:
    """Every (function, n-th call); or only the first, the middle and the last call of each function."""
    found = []
    for op, count in sorted(calls.items()):
        chosen = range(1, count + 1) if every else sorted({1, (count + 1) // 2, count})
        found += [(op, at) for at in chosen]
    return found


class Sweep:
    """Injects one fault after the other and collects what went wrong at each; `finish` tells it all at once."""

    def __init__(self) -> None:
        self.done = 0
        self._problems: list[str] = []

    @contextmanager
    def at(self, mesh: Any, op: str, at: int, *, times: int | None = 1) -> Iterator[BaseException]:
        """The n-th call of `op` fails inside the block; faults are gone behind it."""
        kind = Fault if at % 2 else Interrupt
        error = kind(f"{op} call {at}")
        mesh.faults.fail(op, at=at, times=times, error=error)
        try:
            with self.after(op, at):
                yield error
        finally:
            mesh.faults.clear()
            self.done += 1

    @contextmanager
    def after(self, op: str, at: int) -> Iterator[None]:
        """Checks after that fault; a failing one is collected."""
        try:
            yield
        except (AssertionError, Exception, pytest.fail.Exception) as problem:
            self._problems.append(f"{op} call {at}: {type(problem).__name__}: {str(problem)[:300]}")

    def finish(self, *, at_least: int) -> None:
        """Fail with every problem; also when fewer faults than expected were injected."""
        assert not self._problems, f"{len(self._problems)} of {self.done}:\n" + "\n".join(self._problems)
        assert self.done >= at_least, f"only {self.done} faults"


def failure_of(run: Callable[[], Any], error: BaseException) -> BaseException:
    """Run and return what it raises: `error` itself, or a RuntimeError that is chained from it.

    Every attached cleanup failure must come from it too: a tensor that is freed twice would add another.
    """
    try:
        run()
    except BaseException as raised:
        assert raised is error or raised.__cause__ is error, f"{error!r} was replaced by {raised!r}"
        attached = [*getattr(raised, "cleanup_failures", ()), *getattr(error, "cleanup_failures", ())]
        foreign = [failure for failure in attached if failure is not error and failure.__cause__ is not error]
        assert not foreign, f"more failed than was injected: {foreign}"
        raised.__traceback__ = error.__traceback__ = None  # the frames hold tensors
        return raised
    raise AssertionError("the fault was swallowed")
