# SPDX-License-Identifier: Apache-2.0
"""Ownership of raw decode outputs that an external scheduler reads later.

Follows chapter 20, sections 6.2 and 6.3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llm_runtime.decode.staging_turns import StagingTurns
from llm_runtime.errors import add_error_note
from llm_runtime.output_reader import OutputReader, PendingRead
from llm_runtime.tensor_resources import best_effort_deallocate_owned_tensors, raise_cleanup_failures

__all__ = ["DecodeOutputLease", "LeaseBook"]


@dataclass(eq=False)
class DecodeOutputLease:
    """One un-read output. ``owned_values`` (None for a trace's output) is freed with the raw value on release.

    ``raw_value`` is borrowed when nothing is owned. ``result_like`` turns the NumPy result into the kind of
    array that the step's tokens were; ``step`` is its number in the lane. Follows chapter 20, section 3.4.
    """

    raw_value: Any
    owned_values: Any
    host_value: Any = None
    pending: PendingRead | None = None
    released: bool = False
    deallocated_tensor_ids: set[int] = field(default_factory=set)
    result_like: Callable[[Any], Any] | None = None
    step: int = 0
    # Two threads may retire one lease: a processing thread and a drain.
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)


class LeaseBook:
    """Finds leases by the identity of a raw value or of a host value, and releases each exactly once.

    The reader and the count of steps are borrowed. A lock guards what two steps could change at once, never a wait;
    looking up a value that another thread is retiring is safe.
    """

    def __init__(self, output_reader: OutputReader, turns: StagingTurns) -> None:
        self._reader = output_reader
        self._turns = turns
        self._lock = threading.Lock()
        self._by_raw: dict[int, DecodeOutputLease] = {}
        self._by_host: dict[int, DecodeOutputLease] = {}
        self._owning = 0  # leases in the host map that own tensors

    def __len__(self) -> int:
        return len(self._outstanding())

    def open(self, raw_value: Any, owned: Any, result_like: Callable[[Any], Any]) -> DecodeOutputLease:
        """Take over ``owned`` until the output has been read; RuntimeError while ``raw_value`` is still un-read."""
        lease = DecodeOutputLease(raw_value, owned, result_like=result_like, step=self._turns.submitted)
        with self._lock:
            if self._by_raw.setdefault(id(raw_value), lease) is not lease:
                raise RuntimeError("this decode output is already leased; read it before consuming it again")
        return lease

    def of_raw(self, value: Any) -> DecodeOutputLease | None:
        """The lease of a raw output that has not been released, or None."""
        return self._by_raw.get(id(value))

    def of_host(self, value: Any) -> DecodeOutputLease | None:
        """The lease whose submitted read delivers ``value``, or None."""
        return self._by_host.get(id(value))

    def attach_read(self, lease: DecodeOutputLease, pending: PendingRead) -> None:
        """Index ``lease`` by its host destination.

        A trace's output leaves the raw map here: its copy is queued before the next replay can overwrite it.
        """
        with self._lock:
            lease.pending = pending
            lease.host_value = pending.value
            self._by_host[id(pending.value)] = lease
            self._owning += lease.owned_values is not None
            if lease.owned_values is None and self._by_raw.get(id(lease.raw_value)) is lease:
                del self._by_raw[id(lease.raw_value)]

    def release(self, lease: DecodeOutputLease | None) -> None:
        """Complete a submitted read, free what the lease owns and forget it; no-op once released.

        When a tensor cannot be freed the first failure is raised with the others attached and the lease
        stays, so that a retry frees only what is left.
        """
        if lease is None:
            return
        with lease._guard:
            if lease.released:
                return
            if lease.pending is not None:
                try:
                    self._reader.complete(lease.pending)
                except TimeoutError as error:
                    add_error_note(error, f"output of decode step {lease.step} of this lane")
                    raise
            self._turns.note_read(lease.step)
            if lease.owned_values is not None:
                failures = best_effort_deallocate_owned_tensors(
                    (lease.raw_value, lease.owned_values), lease.deallocated_tensor_ids
                )
                if failures:
                    raise_cleanup_failures(failures)
            lease.released = True
            # Only this thread removes this lease, and nobody replaces it while it is there: no lock is needed.
            if self._by_raw.get(id(lease.raw_value)) is lease:
                del self._by_raw[id(lease.raw_value)]
            if self._by_host.get(id(lease.host_value)) is lease:
                if lease.owned_values is not None:
                    with self._lock:
                        self._owning -= 1
                del self._by_host[id(lease.host_value)]

    def require_processed(self) -> None:
        """RuntimeError while the caller cannot know what earlier steps sampled."""
        if self._by_host:
            raise RuntimeError(
                f"{len(self._by_host)} decode output(s) have not been processed, so the host's tokens are older than "
                "the device's; process or drain them before a step that takes its inputs from the host"
            )

    @property
    def unprocessed(self) -> bool:
        """Whether reads were submitted whose values nobody has processed."""
        return bool(self._by_host)

    def drain(self) -> None:
        """Release every outstanding lease, waiting for the device when an output was never submitted.

        All are attempted; failures are raised together (first one primary) and their leases stay.
        """
        failures: list[BaseException] = []
        synchronised = False
        for lease in self._outstanding():
            try:
                if lease.pending is None and not synchronised:
                    self._reader.synchronize()
                    synchronised = True
                self.release(lease)
            except BaseException as error:
                failures.append(error)
        if failures:
            raise_cleanup_failures(failures)

    def require_trace_safe(self) -> None:
        """RuntimeError while a replay could overwrite an un-read output or run beside an owned one."""
        if self._by_raw:
            raise RuntimeError(
                f"{len(self._by_raw)} decode output(s) have not been read; "
                "read the outstanding outputs before the next step"
            )
        if self._owning:
            raise RuntimeError(
                f"{self._owning} eager decode output(s) still own device tensors; "
                "complete the eager readback before the next step"
            )

    def _outstanding(self) -> list[DecodeOutputLease]:
        with self._lock:
            leases = {id(lease): lease for lease in (*self._by_raw.values(), *self._by_host.values())}
        return list(leases.values())
