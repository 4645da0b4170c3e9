# SPDX-License-Identifier: Apache-2.0
"""Whole loops over the runtime: steps a second, a big prefill call, the first call, and the ten-thousandth step."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from lane import BenchLane, greedy_params
from paths_decode import inferred_step
from paths_prefill import mixed_prompts
from timing import Effort, median_us, once_us

from llm_runtime.profiling import profile

LOOPS = ("steady decode, blocking", "steady decode, two steps in flight", "prefill of 32 mixed prompts")


def loop_figures(lane: BenchLane, effort: Effort) -> dict[str, dict[str, float]]:
    """Microseconds and calls a second of each of `LOOPS`; `lane` has captured what they replay."""
    call = {**mixed_prompts(), "sampling_params": greedy_params()}
    loops: dict[str, Callable[[], Any]] = {
        LOOPS[0]: inferred_step(lane),
        LOOPS[1]: _two_in_flight(lane),
        LOOPS[2]: lambda: lane.traced.prefill_forward(**call),
    }
    figures = {}
    for name, loop in loops.items():
        us = median_us(loop, effort)
        figures[name] = {"us": us, "per_second": 1e6 / us if us else 0.0}
        lane.decode.drain_external_outputs()
    return figures


def first_call_figures(lane: BenchLane) -> dict[str, float]:
    """The first step of a fresh lane, which is closed then, against its hundredth, in microseconds."""
    step = inferred_step(lane)
    times = [once_us(step) for _ in range(100)]
    lane.close()
    return {"first_us": times[0], "steady_us": statistics.median(times[50:])}


def profiling_figures(lane: BenchLane, effort: Effort) -> dict[str, float]:
    """A steady step before any profile, while one records, and after it: what a profile costs on and off."""
    step = inferred_step(lane)
    before = median_us(step, effort)
    with profile():
        on = median_us(step, effort)
    after = median_us(step, effort)
    return {"before_us": before, "on_us": on, "after_us": after}


def growth_in_steps(lane: BenchLane, counts: tuple[int, ...]) -> dict[int, float]:
    """Median microseconds of a step around the n-th one, for ascending `counts`."""
    step, done, figures = inferred_step(lane), 0, {}
    for count in counts:
        while done < count - 10:
            step()
            done += 1
        window = [once_us(step) for _ in range(max(10, min(500, count // 10)))]
        done += len(window)
        figures[count] = statistics.median(window)
    return figures


def _two_in_flight(lane: BenchLane) -> Callable[[], Any]:
    """Submit a step, then finish the one before it, as an asynchronous scheduler does."""
    decode, step = lane.decode, inferred_step(lane, read_from_device=False)
    queued: list[Any] = [decode.read_decode_output(step(), async_read=True)]

    def advance() -> Any:
        queued.append(decode.read_decode_output(step(), async_read=True))
        return decode.process_decode_output_host(queued.pop(0)[0], is_tokens=True)

    return advance
