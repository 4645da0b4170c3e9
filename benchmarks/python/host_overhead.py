# SPDX-License-Identifier: Apache-2.0
"""What the runtime's own host work costs on each hot path, beside the same device calls made by hand.

    python benchmarks/python/host_overhead.py [--device null|twin|ttnn] [--json FILE] [--plot FILE.png] [--check]

`null` is a device whose calls do nothing. `--check` exits with 1 when a budget of the table does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from time import thread_time_ns
from typing import Any

_HERE = FilePath(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parents[1] / "tests")]

import paths_decode  # noqa: E402
import paths_prefill  # noqa: E402
from devices import DEVICES, open_mesh  # noqa: E402
from lane import BenchLane, greedy_params, prefill_call  # noqa: E402
from loops import first_call_figures, growth_in_steps, loop_figures, profiling_figures  # noqa: E402
from paths import Path, measure  # noqa: E402
from planning_growth import planning_growth  # noqa: E402
from timing import FULL, MOCK, QUICK, Effort  # noqa: E402

#: On a device whose calls cost time, a whole decode step may take this much of its floor, and this much more.
STEP_OVER_FLOOR, STEP_MARGIN_US = 1.3, 15.0

#: How many times faster than the pure-Python planner of the tests the planner has to be.
TIMES_ORACLE = 20.0

#: After how many steps the cost of one more is looked at.
STEP_COUNTS = (10, 100, 1000, 10_000, 100_000)


def measure_all(device: str, *, effort: Effort, only: str = "", steps: int = STEP_COUNTS[-1]) -> dict[str, Any]:
    """Every figure as the JSON has it; `only` keeps the paths whose name contains it and leaves the loops out."""
    if device == "null":
        effort = replace(effort, clock=thread_time_ns)
    first_call = None
    if not only:
        with open_mesh(device) as mesh:
            first_call = first_call_figures(_decode_lane(mesh))
    with open_mesh(device) as mesh:
        lanes = {batched: BenchLane(mesh, batched_prefill=batched) for batched in (True, False)}
        lane = lanes[True]
        for length in (100, 128):
            lane.capture_prefill({**prefill_call(1, length), "sampling_params": greedy_params()})
        lane.capture_prefill({**paths_prefill.mixed_prompts(), "sampling_params": greedy_params()})
        lane.capture()
        report: dict[str, Any] = {
            "device": device,
            "machine": machine(),
            "paths": measure([path for path in all_paths(lanes) if only in path.name], device=device, effort=effort),
        }
        if not only:
            report["loops"] = loop_figures(lane, effort)
            report["profiling"] = profiling_figures(lane, effort)
            report["first_call"] = first_call
            report["growth"] = {
                "step_us_after_steps": growth_in_steps(lane, tuple(n for n in STEP_COUNTS if n <= steps)),
                **planning_growth(effort),
            }
        lane.close()
    return report


def all_paths(lanes: dict[bool, BenchLane]) -> list[Path]:
    """Every hot path, with torch inputs too where torch is installed."""
    try:
        import torch
    except ImportError:
        torch = None
    lane = lanes[True]
    return [
        *paths_prefill.planning_paths(),
        *paths_prefill.prepare_paths(lanes, torch),
        paths_prefill.lookup_path(lane),
        *paths_decode.prepare_paths(lane, torch),
        *paths_decode.step_paths(lane),
        paths_decode.output_path(lane),
    ]


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    model = platform.processor() or platform.machine()
    cpuinfo = FilePath("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def table(report: dict[str, Any]) -> str:
    """The paths as a Markdown table, in microseconds."""
    lines = [
        "| path, us | own | floor | own / floor | oracle | oracle / own | budget | |",
        "| --- | --: | --: | --: | --: | --: | --: | --- |",
    ]
    for name, row in report["paths"].items():
        cells = [_number(row[key]) for key in ("own_us", "floor_us", "ratio", "oracle_us", "times_oracle", "budget_us")]
        lines.append(f"| {name} | {' | '.join(cells)} | {'' if holds(name, row, report['device']) else 'over'} |")
    return "\n".join(lines)


def holds(name: str, row: dict[str, Any], device: str) -> bool:
    """Whether a path keeps its budget: of own time, or, for a decode step on a device with a floor, of the whole; and
    whether it is as much faster than its oracle as it has to be.
    """
    times = row.get("times_oracle")
    if times is not None and times < TIMES_ORACLE:
        return False
    if row["budget_us"] is None:
        return True
    if device != "null" and name.startswith("decode step"):
        return bool(row["total_us"] <= STEP_OVER_FLOOR * row["floor_us"] + STEP_MARGIN_US)
    return bool(row["own_us"] <= row["budget_us"])


def summary(report: dict[str, Any]) -> str:
    """The loops and growth figures as Markdown."""
    lines = ["| loop | us | a second |", "| --- | --: | --: |"]
    for name, row in report["loops"].items():
        lines.append(f"| {name} | {row['us']:.1f} | {row['per_second']:,.0f} |")
    first = report["first_call"]
    lines += ["", f"First step of a fresh lane: {first['first_us']:.0f} us, steady {first['steady_us']:.1f} us.", ""]
    cost = report["profiling"]
    lines += [
        f"A step before any profile {cost['before_us']:.1f} us, recorded {cost['on_us']:.1f} us, after it "
        f"{cost['after_us']:.1f} us.",
        "",
    ]
    lines += ["| step | us |", "| --: | --: |"]
    lines += [f"| {count:,} | {us:.1f} |" for count, us in report["growth"]["step_us_after_steps"].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=DEVICES, default="null")
    parser.add_argument("--json", type=FilePath, help="write all figures here")
    parser.add_argument("--plot", type=FilePath, help="write the plots beside this PNG (needs matplotlib)")
    parser.add_argument("--only", default="", help="only paths whose name contains this; no loops")
    parser.add_argument("--quick", action="store_true", help="a few short batches: figures are rough")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a budget does not hold")
    options = parser.parse_args(arguments)
    report = measure_all(
        options.device,
        effort=QUICK if options.quick else MOCK if options.device == "ttnn" else FULL,
        only=options.only,
        steps=100 if options.device == "ttnn" else 1000 if options.quick else STEP_COUNTS[-1],
    )
    print(f"device {report['device']}, {report['machine']}\n\n{table(report)}")
    if not options.only:
        print(f"\n{summary(report)}")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot is not None:
        from plots import write_plots

        for written in write_plots(report, options.plot):
            print(f"wrote {written}")
    over = [name for name, row in report["paths"].items() if not holds(name, row, report["device"])]
    if over and options.check:
        print(f"over budget: {', '.join(over)}", file=sys.stderr)
    return int(bool(over) and options.check)


def _decode_lane(mesh: Any) -> BenchLane:
    lane = BenchLane(mesh)
    lane.capture()
    return lane


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
