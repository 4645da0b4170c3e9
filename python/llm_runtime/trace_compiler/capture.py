# SPDX-License-Identifier: Apache-2.0
"""One attempt to capture every registered trace: allocate, prime, record. Chapter 30, section 3.4."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from llm_runtime.device import tensor_namespace
from llm_runtime.errors import add_error_note
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_cleanup_failures
from llm_runtime.trace_compiler.book import TraceBook
from llm_runtime.trace_compiler.plan import PersistentInputs, TraceArtifact, TraceCapturePlan


class CaptureSession:
    """Runs the steps in order over a book of plans and undoes them after a failure.

    Persistent inputs belong to the session until their trace is begun, then to the book's artifact. Every tensor
    that outlives a call exists before the first recording, and everything is primed before it, because a program
    compiled or a tensor allocated late could move what a trace has fixed.
    """

    def __init__(self, book: TraceBook, programs: ProgramCompiler, namespace: Any) -> None:
        self._book = book
        self._programs = programs
        self._namespace = namespace
        self._mesh = programs.mesh_device
        self._context = programs.bound_cache_context()
        self._inputs: dict[int, PersistentInputs] = {}
        self.program_cache: tuple[int, ...] | None = None

    def run(self) -> None:
        """Capture everything; any error leaves the undoing to `roll_back`."""
        book = self._book
        for trace_id, plan in enumerate(book.plans):
            self._programs.require_compiled(plan.program_key)
            values = plan.prepare_inputs()
            self._inputs[trace_id] = values if isinstance(values, PersistentInputs) else PersistentInputs(values)
        for alias in book.aliases.values():
            if alias.prepare_workspace is not None:
                alias.workspace = alias.prepare_workspace()
        order = book.core.capture_order()
        for trace_id in order:
            self._prime(book.plans[trace_id], self._inputs[trace_id])
        for program_id, alias in book.aliases.items():
            if alias.prime_workspace is not None:
                persistent = self._inputs[book.core.trace_of_program(program_id)]
                alias.prime_workspace(persistent, alias.workspace)
        self.program_cache = self._programs.device_program_cache_entries()
        self._record_all(order)
        self._synchronize()
        _trim_host_heap()

    def _record_all(self, order: tuple[int, ...]) -> None:
        """Record every trace. When one does not fit the trace region, the others still are, to tell the whole need."""
        book = self._book
        overflow: Any = None
        missing_bytes = 0
        for position, trace_id in enumerate(order, start=1):
            try:
                self._record(trace_id)
            except BaseException as error:
                asked = _overflowing_bytes(error)
                if overflow is None:
                    overflow = error
                    add_error_note(
                        error,
                        f"while capturing trace {position} of {len(order)}: {book.plans[trace_id].operation} "
                        f"{book.records[trace_id].signature!r} ({book.keys[trace_id].digest})",
                    )
                elif asked is None:
                    attach_cleanup_failures(overflow, [error])
                if asked is None:
                    raise overflow  # noqa: B904 -- the first error stays the primary one
                missing_bytes += asked
        if overflow is not None:
            overflow.needed_bytes = self._mesh.trace_region_used + missing_bytes
            raise overflow

    def roll_back(self) -> list[BaseException]:
        """Release all that this attempt made; what cannot be released stays with the book. Returns the failures."""
        failures = self._book.release_all(self._namespace, self._mesh, self._inputs)
        self._inputs.clear()
        return failures

    def _prime(self, plan: TraceCapturePlan, persistent: PersistentInputs) -> None:
        if plan.prepare_capture is not None:
            plan.prepare_capture(persistent)
        prime, release = plan.prime, plan.release_prime_output
        if prime is None or release is None:
            return
        output = None
        try:
            output = prime(persistent)
            self._synchronize()
        except BaseException as primary:
            attach_cleanup_failures(primary, self._end_priming(release, output))
            raise
        failures = self._end_priming(release, output)
        if failures:
            raise_cleanup_failures(failures)

    def _end_priming(self, release: Callable[[Any], list[BaseException]], output: Any) -> list[BaseException]:
        failures: list[BaseException] = []
        try:
            failures += release(output)
        except BaseException as error:
            failures.append(error)
        try:
            self._synchronize()
        except BaseException as error:
            failures.append(error)
        return failures

    def _record(self, trace_id: int) -> None:
        plan, persistent, programs = self._book.plans[trace_id], self._inputs[trace_id], self._programs
        if plan.prepare_capture is not None:
            plan.prepare_capture(persistent)
        programs.require_unchanged_device_program_cache(self.program_cache, phase="before capture")
        programs.set_trace_capture_in_progress(True)
        device_id = self._namespace.begin_trace_capture(self._mesh, cq_id=0)
        outputs: Any = None
        ended = False
        try:
            outputs = plan.capture(persistent)
            self._namespace.end_trace_capture(self._mesh, device_id, cq_id=0)
            ended = True
            self._synchronize()
            programs.require_unchanged_device_program_cache(self.program_cache, phase="during capture")
        except BaseException as primary:
            stopped = ended or _overflowing_bytes(primary) is not None
            stopping = [] if stopped else self._stop_recording(device_id)
            artifact = self._own(trace_id, device_id, outputs)
            failures = stopping + self._book.release_trace(trace_id, self._namespace, self._mesh)
            artifact.recording = bool(stopping) and not artifact.trace_released
            attach_cleanup_failures(primary, failures)
            raise
        self._own(trace_id, device_id, outputs)
        self._book.core.set_captured(trace_id, True)
        self._acknowledge_retained(outputs)
        programs.set_trace_capture_in_progress(False)

    def _own(self, trace_id: int, device_id: int, outputs: Any) -> TraceArtifact:
        return self._book.hold(trace_id, device_id, self._inputs.pop(trace_id), outputs, self._context)

    def _stop_recording(self, device_id: int) -> list[BaseException]:
        """Close an interrupted recording, or the device would go on recording whatever comes next."""
        try:
            self._namespace.end_trace_capture(self._mesh, device_id, cq_id=0)
        except BaseException as error:
            return [error]
        return []

    def _acknowledge_retained(self, outputs: Any) -> None:
        """Tell the allocation tracker, where one exists, that a trace's outputs are kept on purpose."""
        tracker = getattr(getattr(self._namespace, "tools", None), "trace_allocation_tracker", self._namespace)
        acknowledge = getattr(tracker, "acknowledge_corruptible", None)
        if callable(acknowledge):
            for tensor in _tensors_in(outputs):
                acknowledge(tensor)

    def _synchronize(self) -> None:
        self._namespace.synchronize_device(self._mesh)


def _overflowing_bytes(error: BaseException) -> int | None:
    """The bytes of a trace that the device recorded but could not place, where it tells them."""
    asked = getattr(error, "trace_bytes", None)
    return asked if isinstance(asked, int) else None


def _tensors_in(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)
    elif tensor_namespace(value) is not None:
        yield value


def _trim_host_heap() -> None:
    """Give the heap that compilation used back to the system, where the C library can (glibc)."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    malloc_trim(0)
