# SPDX-License-Identifier: Apache-2.0
"""One hot path as a benchmark sees it, and how its numbers are reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from timing import Effort, Sampler, no_garbage_collection


@dataclass(frozen=True, kw_only=True)
class Path:
    """`call` is the path; `floor` makes the same device calls by hand (`None`: it makes none); `oracle` is the
    pure-Python form. `enter` brings the lane to where `call` goes on from, whatever ran before. With `setup`, `call`
    and `floor` get one of the values that it returned. Neither is timed.
    """

    name: str
    call: Callable[..., Any]
    budget_us: float | None = None
    floor: Callable[..., Any] | None = None
    oracle: Callable[[], Any] | None = None
    enter: Callable[[], Any] | None = None
    setup: Callable[[], Any] | None = None


def measure(paths: Sequence[Path], *, device: str, effort: Effort) -> dict[str, dict[str, float | None]]:
    """The figures of each path in microseconds.

    All paths take turns batch by batch over the whole run, so that a slow phase of the machine meets all of them and
    moves the median of none. `own_us` is everything on the null device, whose calls do nothing; on the others the
    floor is subtracted.
    """
    samplers = {
        (path.name, part): Sampler(call, effort, enter=path.enter if part == "total" else None, setup=path.setup)
        for path in paths
        for part, call in _parts(path)
    }
    with no_garbage_collection():
        for turn in range(effort.batches):
            for (_, part), sampler in samplers.items():
                if part != "oracle" or turn % 4 == 0:  # slow, and compared in tens
                    sampler.take()
    return {path.name: _figures(path, samplers, device) for path in paths}


def _parts(path: Path) -> list[tuple[str, Callable[..., Any]]]:
    parts = (("total", path.call), ("floor", path.floor), ("oracle", path.oracle))
    return [(part, call) for part, call in parts if call is not None]


def _figures(path: Path, samplers: dict[tuple[str, str], Sampler], device: str) -> dict[str, float | None]:
    median = {part: samplers[path.name, part].median_us() for part, _ in _parts(path)}
    total, floor = median["total"], median.get("floor")
    own = total if device == "null" or floor is None else max(0.0, total - floor)
    return {
        "own_us": own,
        "floor_us": floor,
        "ratio": None if not floor else own / floor,
        "oracle_us": median.get("oracle"),
        "times_oracle": median["oracle"] / total if "oracle" in median else None,
        "budget_us": path.budget_us,
        "total_us": total,
    }
