# SPDX-License-Identifier: Apache-2.0
"""Times three calls through nanobind and pybind11, built by the same compiler: empty, six keywords, one int32 table.

"with NumPy" is nanobind as the project uses it: arrays go by NumPy's own C interface instead of nanobind's.

    python benchmarks/bindings/compare.py [--build DIRECTORY] [--json FILE]

Needs nanobind, nanobind-backend, NumPy 2, pybind11 and cmake in this Python's environment.
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

from timing import FULL, QUICK, Effort, Sampler, no_garbage_collection  # noqa: E402

#: Columns of the table and the modules behind them.
BINDINGS = {"nanobind": "nanobind_calls", "with NumPy": "numpy_calls", "pybind11": "pybind11_calls"}


def build(folder: Path) -> None:
    """Configure and build both modules into `folder`."""
    cmake = Path(sys.executable).with_name("cmake")
    command = str(cmake) if cmake.exists() else "cmake"
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    for step in ([command, "-S", str(_HERE), "-B", str(folder), *options], [command, "--build", str(folder), "-j2"]):
        subprocess.run(step, check=True, stdout=subprocess.DEVNULL)


def compare(folder: Path, effort: Effort) -> dict[str, dict[str, float]]:
    """Microseconds of each call by binding; all take turns."""
    sys.path.insert(0, str(folder))
    modules = {name: importlib.import_module(module) for name, module in BINDINGS.items()}
    samplers = {
        (call, name): Sampler(make(module), effort) for call, make in CALLS.items() for name, module in modules.items()
    }
    with no_garbage_collection():
        for _ in range(effort.batches):
            for sampler in samplers.values():
                sampler.take()
    return {call: {name: samplers[call, name].median_us() for name in modules} for call in CALLS}


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
    print(f"| call, us | {' | '.join(BINDINGS)} |\n| --- |{' --: |' * len(BINDINGS)}")
    for call, row in figures.items():
        print(f"| {call} | {' | '.join(f'{us:.3f}' for us in row.values())} |")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
