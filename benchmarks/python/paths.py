# SPDX-License-Identifier: Apache-2.0
"""One hot path as a benchmark sees it, and how its numbers are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from timing import Effort, median_after_setup_us, median_us


@dataclass(frozen=True, kw_only=True)
class Path:
    """`call` is the path; `floor` makes the same device calls by hand (`None`: it makes none); `oracle` is the
    pure-Python form. With `setup`, all three get what it returned and only they are timed.
    """

    name: str
    call: Callable[..., Any]
    budget_us: float | None = None
    floor: Callable[..., Any] | None = None
    oracle: Callable[[], Any] | None = None
    setup: Callable[[], Any] | None = None


def measure(path: Path, *, device: str, effort: Effort) -> dict[str, float | None]:
    """The figures of one path in microseconds.

    `own_us` is everything on the null device, whose calls do nothing; on the others the floor is subtracted.
    """
    if path.setup is None:
        timed = median_us({"total": path.call, "floor": path.floor}, effort)
        total, floor = timed["total"], timed["floor"]
    else:
        total = median_after_setup_us(path.setup, path.call, effort)
        floor = None if path.floor is None else median_after_setup_us(path.setup, path.floor, effort)
    own = total if device == "null" or floor is None else max(0.0, total - floor)
    slow = replace(effort, batches=max(3, effort.batches // 4))
    oracle = None if path.oracle is None else median_us({"oracle": path.oracle}, slow)["oracle"]
    return {
        "own_us": own,
        "floor_us": floor,
        "ratio": None if not floor else own / floor,
        "oracle_us": oracle,
        "budget_us": path.budget_us,
        "total_us": total,
    }
