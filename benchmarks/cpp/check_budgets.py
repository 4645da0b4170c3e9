# SPDX-License-Identifier: Apache-2.0
"""Counts the core's instructions per case under callgrind and compares them with `benchmarks/budgets.json`.

    python benchmarks/cpp/check_budgets.py BUILD_DIRECTORY [--write]

A case may take 5 % more than its budget. Counts do not depend on the machine's load but on the compiler, so another
compiler than the budgets' own is compared for growth only. Growth: planning and page tables are linear in rows and in
table width, a lookup is constant in registered programs, a decode batch in steps done.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BUDGETS = Path(__file__).resolve().parent.parent / "budgets.json"
TOLERANCE = 0.05
#: A straight line must explain this share of the variance of the counts.
LINEAR_FIT = 0.98
#: What ought to be constant may differ by the luck of a hash bucket.
CONSTANT_SPREAD = 1.5
LINEAR_IN_ROWS = ("plan_wave", "plan_singles", "decode_table_copy", "decode_batch", "change_detection", "sampling_rows")
LINEAR_IN_WIDTH = ("plan_wave", "decode_table_copy", "decode_batch", "change_detection")
CONSTANT = (("signature_lookup", "programs"), ("decode_batch_after_steps", "steps"))

Counts = dict[str, int]


def count_instructions(program: Path) -> tuple[str, Counts]:
    """The compiler's name and the instructions per call of each case. Needs valgrind."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                "--collect-atstart=no",
                f"--callgrind-out-file={folder}/counts",
                str(program),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise SystemExit(f"callgrind failed:\n{result.stderr}")
        compiler, runs = _header(result.stdout)
        dumps = [path.read_text() for path in Path(folder).glob("counts.*")]
    return compiler, dict(sorted(_count(text, runs) for text in dumps if "Client Request: " in text))


def over_budget(counts: Counts, budgets: Counts) -> list[str]:
    """What takes more than its budget and the tolerance, has none, or is gone."""
    problems = []
    for name in sorted(counts.keys() | budgets.keys()):
        if name not in counts or name not in budgets:
            problems.append(f"{name}: {'no budget' if name in counts else 'the case is gone'}; write the budgets anew")
        elif counts[name] > budgets[name] * (1 + TOLERANCE):
            share = counts[name] / budgets[name] - 1
            problems.append(f"{name}: {counts[name]:,} instructions, {share:.0%} over its budget {budgets[name]:,}")
    return problems


def bad_growth(counts: Counts) -> list[str]:
    """Where counts grow otherwise than they may."""
    problems = []
    for variable, families in (("rows", LINEAR_IN_ROWS), ("width", LINEAR_IN_WIDTH)):
        for name, points in series(counts, variable).items():
            if name.partition("/")[0] in families and (fit := line_fit(points)) < LINEAR_FIT:
                problems.append(f"{name}: not linear in {variable} (R2 {fit:.3f}): {points}")
    for family, variable in CONSTANT:
        values = [value for points in series(counts, variable, family).values() for _, value in points]
        if max(values) > min(values) * CONSTANT_SPREAD:
            problems.append(f"{family}: not constant in {variable}: {values}")
    return problems


def series(counts: Counts, variable: str, family: str = "") -> dict[str, list[tuple[int, int]]]:
    """Counts by one size, for each case name without it."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, count in counts.items():
        size = re.search(rf"/{variable}:(\d+)", name)
        if size and name.startswith(family):
            found.setdefault(name.replace(size.group(), ""), []).append((int(size.group(1)), count))
    return {name: sorted(points) for name, points in found.items()}


def line_fit(points: Sequence[tuple[int, int]]) -> float:
    """R2 of the least-squares line through `points`."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread_x = sum((x - mean_x) ** 2 for x, _ in points)
    spread_y = sum((y - mean_y) ** 2 for _, y in points)
    if spread_x == 0 or spread_y == 0:
        return 1.0
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread_x
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return 1.0 - residual / spread_y


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path, help="build directory with the benchmarks")
    parser.add_argument("--write", action="store_true", help="make today's counts the budgets")
    options = parser.parse_args(arguments)
    compiler, counts = count_instructions(options.build / "benchmarks" / "cpp" / "instruction_counts")
    if options.write:
        BUDGETS.write_text(json.dumps({"compiler": compiler, "instructions": counts}, indent=1) + "\n")
        print(f"wrote {len(counts)} budgets for {compiler}")
    budgets = json.loads(BUDGETS.read_text())
    problems = bad_growth(counts)
    if budgets["compiler"] == compiler:
        problems += over_budget(counts, budgets["instructions"])
    else:
        print(f"NOTE: budgets are for {budgets['compiler']}, this is {compiler}: only growth is checked")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(counts)} cases counted, {len(problems)} problem(s)")
    return int(bool(problems))


def _header(output: str) -> tuple[str, int]:
    lines = dict(line.split(" ", 1) for line in output.splitlines() if line.startswith(("compiler ", "runs ")))
    return lines["compiler"], int(lines["runs"])


def _count(dump: str, runs: int) -> tuple[str, int]:
    name = re.search(r"Client Request: (.*)", dump)
    total = re.search(r"^(?:summary|totals): (\d+)", dump, re.MULTILINE)
    if name is None or total is None:
        raise SystemExit("a callgrind dump has no name or no total")
    return name.group(1).strip(), round(int(total.group(1)) / runs)


if __name__ == "__main__":
    raise SystemExit(main())
