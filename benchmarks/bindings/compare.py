# SPDX-License-Identifier: Apache-2.0
"""Times three calls through nanobind and pybind11, built by the same compiler: empty, six keywords, one int32 table.

    python benchmarks/bindings/compare.py [--build DIRECTORY] [--json FILE]

Needs nanobind, nanobind-backend, pybind11 and cmake in this Python's environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent / "python"))

from timing import FULL, QUICK, Effort, median_us  # noqa: E402

BINDINGS = ("nanobind", "pybind11")


def build(folder: Path) -> None:
    """Configure and build both modules into `folder`."""
    cmake = Path(sys.executable).with_name("cmake")
    command = str(cmake) if cmake.exists() else "cmake"
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    for step in ([command, "-S", str(_HERE), "-B", str(folder), *options], [command, "--build", str(folder), "-j2"]):
        subprocess.run(step, check=True, stdout=subprocess.DEVNULL)


def compare(folder: Path, effort: Effort) -> dict[str, dict[str, float | None]]:
    """Microseconds of each call by binding; both take turns."""
    sys.path.insert(0, str(folder))
    modules = {name: importlib.import_module(f"{name}_calls") for name in BINDINGS}
    return {
        call: median_us({name: make(module) for name, module in modules.items()}, effort)
        for call, make in CALLS.items()
    }


def _six_keywords(module: Any) -> Callable[[], Any]:
    call = module.six_keywords
    return lambda: call(first=True, second=False, third=None, rows=32, width=64, last=True)


def _array(module: Any) -> Callable[[], Any]:
    call, table = module.array, np.arange(32 * 64, dtype=np.int32).reshape(32, 64)
    return lambda: call(table)


CALLS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "empty": lambda module: module.empty,
    "six keywords": _six_keywords,
    "int32 table [32, 64] in and out": _array,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=_HERE.parents[1] / "build" / "bench-bindings")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    build(options.build)
    figures = compare(options.build, QUICK if options.quick else FULL)
    print("| call, us | nanobind | pybind11 |\n| --- | --: | --: |")
    for call, row in figures.items():
        print(f"| {call} | {row['nanobind']:.3f} | {row['pybind11']:.3f} |")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
