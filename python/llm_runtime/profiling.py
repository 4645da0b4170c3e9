# SPDX-License-Identifier: Apache-2.0
"""Where the runtime's host time goes: spans around its phases, as a Chrome trace and as a table.

Off, there is nothing: turning it on replaces the methods that do the phases, and turning it off puts them back. On by
`with profile() as spans:` or, for a whole process, by the variable `LLM_RUNTIME_PROFILE=path.json`.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

__all__ = ["ENVIRONMENT_VARIABLE", "PHASES", "Profile", "Span", "profile", "start_from_environment"]

ENVIRONMENT_VARIABLE = "LLM_RUNTIME_PROFILE"

#: Phases in the order of a step; `call` is a whole public call.
PHASES = ("call", "prepare", "stage", "refresh", "submit", "read", "normalise", "assemble", "release")

#: Which methods (or functions that a module calls by name) do which phase.
_POINTS: dict[str, tuple[tuple[str, str], ...]] = {
    "call": (
        ("execution.eager:EagerExecutor", "prefill_forward decode_forward"),
        ("execution.traced_prefill:TracedPrefill", "prefill_forward"),
        ("execution.traced_decode:TracedDecode", "decode_forward"),
    ),
    "prepare": (
        ("prefill.runtime:PrefillRuntime", "prepare"),
        ("decode.runtime:DecodeRuntime", "prepare"),
    ),
    "stage": (
        ("prefill.inputs:PrefillInputStager", "stage_step refresh_regular_device_inputs refresh_chunk_device_inputs"),
        ("decode.inputs:DecodeInputStager", "host_inputs stage copy"),
    ),
    "refresh": (
        ("prefill.runtime:PrefillRuntime", "refresh_trace"),
        ("decode.runtime:DecodeRuntime", "refresh_trace"),
    ),
    "submit": (
        ("trace_compiler.compiler:TraceCompiler", "replay_program"),
        ("prefill.sequence_runner:PrefillSequenceRunner", "run"),
        ("prefill.trace:PrefillTraceLifecycle", "finish"),
        ("decode.body:DecodeBody", "run"),
    ),
    "read": (("output_reader:OutputReader", "read read_synchronized submit complete"),),
    "normalise": (
        ("prefill.result_collector:PrefillResultAssembler", "_collect_sampled _collect_logits"),
        ("decode.readout:DecodeReadout", "_normalise"),
    ),
    "assemble": (("prefill.result_collector:PrefillResultAssembler", "assemble"),),
    "release": (
        ("prefill.runtime", "release_or_retain"),
        ("decode.health:DecodeHealth", "release"),
        ("decode.leases:LeaseBook", "release"),
    ),
}


class Span(NamedTuple):
    """One finished phase; times in nanoseconds, `own` without the spans inside it."""

    phase: str
    name: str
    thread: int
    start: int
    duration: int
    own: int


@dataclass(frozen=True)
class PhaseSummary:
    """Spans of one phase; times in microseconds, of which `own` leaves out the spans inside."""

    phase: str
    count: int
    total_us: float
    own_us: float
    median_own_us: float


class Profile:
    """Spans in the order in which they ended. Recording and reading may happen on different threads."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._threads = threading.local()

    def timed(self, phase: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, recording a span of each call, also of one that raises."""
        threads, record = self._threads, self.spans.append

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            try:
                inside = threads.inside
            except AttributeError:
                inside = threads.inside = []
            inside.append(0)
            start = perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                duration = perf_counter_ns() - start
                nested = inside.pop()
                if inside:
                    inside[-1] += duration
                record(Span(phase, name, threading.get_ident(), start, duration, duration - nested))

        return recorded

    def summary(self) -> tuple[PhaseSummary, ...]:
        """One row for each phase that occurred, in the order of `PHASES`."""
        rows = []
        for phase in PHASES:
            spans = [span for span in self.spans if span.phase == phase]
            if spans:
                rows.append(
                    PhaseSummary(
                        phase=phase,
                        count=len(spans),
                        total_us=sum(span.duration for span in spans) / 1e3,
                        own_us=sum(span.own for span in spans) / 1e3,
                        median_own_us=median(span.own for span in spans) / 1e3,
                    )
                )
        return tuple(rows)

    def table(self) -> str:
        """The summary as text with a heading."""
        lines = [f"{'phase':10} {'count':>8} {'total us':>12} {'own us':>12} {'own share':>10} {'median own us':>14}"]
        rows = self.summary()
        whole = sum(row.own_us for row in rows) or 1.0
        lines += [
            f"{row.phase:10} {row.count:8d} {row.total_us:12.1f} {row.own_us:12.1f} {row.own_us / whole:10.1%} "
            f"{row.median_own_us:14.2f}"
            for row in rows
        ]
        return "\n".join(lines)

    def chrome_trace(self) -> dict[str, Any]:
        """Complete events of the Chrome trace format (Perfetto and chrome://tracing open it), in microseconds."""
        process = os.getpid()
        return {
            "displayTimeUnit": "ns",
            "traceEvents": [
                {
                    "name": span.name,
                    "cat": span.phase,
                    "ph": "X",
                    "ts": span.start / 1e3,
                    "dur": span.duration / 1e3,
                    "pid": process,
                    "tid": span.thread,
                }
                for span in sorted(self.spans, key=lambda span: span.start)
            ],
        }

    def write(self, path: Path | str) -> None:
        """Write :meth:`chrome_trace` as JSON."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")


@contextmanager
def profile() -> Iterator[Profile]:
    """Record spans of everything the runtime does inside the block, in every thread.

    Objects made before the block are covered too. RuntimeError while another profile is being recorded.
    """
    recorded = Profile()
    undo = _install(recorded)
    try:
        yield recorded
    finally:
        undo()


def start_from_environment() -> None:
    """Record until the process ends when `LLM_RUNTIME_PROFILE` names a file, and write it then; else do nothing."""
    path = os.environ.get(ENVIRONMENT_VARIABLE)
    if path:
        recorded = Profile()
        _install(recorded)
        atexit.register(recorded.write, path)


_active: Profile | None = None
_activation = threading.Lock()


def _install(recorded: Profile) -> Callable[[], None]:
    """Replace every point; the result puts the originals back."""
    global _active
    with _activation:
        if _active is not None:
            raise RuntimeError("a profile is being recorded already; profiles do not nest")
        replaced: list[tuple[Any, str, Any]] = []
        for phase, places in _POINTS.items():
            for place, names in places:
                owner = _owner(place)
                replaced += [(owner, name, (phase, vars(owner)[name])) for name in names.split()]
        for owner, name, (phase, original) in replaced:
            setattr(owner, name, recorded.timed(phase, f"{owner.__name__.rpartition('.')[2]}.{name}", original))
        _active = recorded

    def undo() -> None:
        global _active
        with _activation:
            for owner, name, (_, original) in replaced:
                setattr(owner, name, original)
            _active = None

    return undo


def _owner(place: str) -> Any:
    module, _, name = place.partition(":")
    owner = importlib.import_module(f"llm_runtime.{module}")
    return getattr(owner, name) if name else owner
