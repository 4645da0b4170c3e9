# SPDX-License-Identifier: Apache-2.0
"""Waiting for a device for a limited time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["require_wait_limit", "wait_at_most"]


def require_wait_limit(value: Any, *, name: str) -> None:
    """`TypeError` unless `value` is `None` (no limit) or a number, `ValueError` unless it is finite and above 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None, got {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number of seconds above 0, got {value!r}")


def wait_at_most(seconds: float | None, wait: Callable[[], Any], *, what: str) -> Any:
    """The result of `wait()`; `TimeoutError` naming `what` when it does not return within `seconds` (`None`: no limit).

    Nothing can interrupt a driver that waits, so a limited wait runs on a daemon thread of its own, which is left
    behind when the limit is over. An error of `wait` is raised here.
    """
    if seconds is None:
        return wait()
    results: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(wait())
        except BaseException as error:  # raised where the result is awaited
            failures.append(error)

    thread = threading.Thread(target=run, name=f"wait for {what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError(f"{what}: the device did not answer within {seconds:g} s")
    return results[0]
