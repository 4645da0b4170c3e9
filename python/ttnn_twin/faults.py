# SPDX-License-Identifier: Apache-2.0
"""Fault injection: the n-th call of a named function raises, before it has any effect; or waits do not end."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass
class _Rule:
    first: int
    last: int | None
    error: BaseException
    calls: int = 0


class Faults:
    """Rules of one mesh. A rule names a public function or op (``"to_device"``, ``"linear"``, ``"cpu"`` …)."""

    def __init__(self) -> None:
        self.active = False
        self._rules: dict[str, list[_Rule]] = {}
        self._answers = threading.Event()
        self._answers.set()

    def fail(self, op: str, *, at: int = 1, times: int | None = 1, error: BaseException | None = None) -> None:
        """Make calls ``at`` .. ``at + times - 1`` of ``op`` raise ``error``; calls are counted from now.

        Args:
            op: name of the function, as counted in ``mesh.counters.calls``.
            at: first failing call; 1 is the next one.
            times: number of failing calls in a row; ``None`` for every call from ``at`` on.
            error: what to raise; by default a ``RuntimeError`` naming the op and the call.

        Raises:
            ValueError: ``at`` or ``times`` is below 1.
        """
        if at < 1 or (times is not None and times < 1):
            raise ValueError(f"fault on {op}: at={at} and times={times} must be 1 or more")
        rule = _Rule(at, None if times is None else at + times - 1, error or RuntimeError(f"injected fault: {op}"))
        self._rules.setdefault(op, []).append(rule)
        self.active = True

    def clear(self) -> None:
        """Forget every rule."""
        self._rules.clear()
        self.active = False

    def hang(self) -> None:
        """Let every wait for the device (events, synchronisation, blocking reads) last until :meth:`resume`."""
        self._answers.clear()

    def resume(self) -> None:
        """Let the waits end."""
        self._answers.set()

    def wait_out(self) -> None:
        """Return at once, or when the device answers again."""
        self._answers.wait()

    def check(self, op: str) -> None:
        """Count a call of ``op`` against its rules and raise where one asks for it."""
        failing = None
        for rule in self._rules.get(op, ()):
            rule.calls += 1
            if failing is None and rule.first <= rule.calls and (rule.last is None or rule.calls <= rule.last):
                failing = rule.error
        if failing is not None:
            raise failing
