# SPDX-License-Identifier: Apache-2.0
"""Reading device outputs: blocking, synchronised as one batch, or asynchronous with a retained completion
event.

Follows chapter 20, section 2.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from llm_runtime.device import namespace_of, tensor_namespace
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_counted_failures
from llm_runtime.wait_limit import require_wait_limit, wait_at_most

_COMMAND_QUEUE = 0


@dataclass(eq=False, slots=True)
class PendingRead:
    """One submitted read: `value` is the host tree, valid only once its `events` have been waited for.

    Made by `OutputReader.submit`, which owns it (value and events) until it is completed or drained.
    """

    value: Any
    events: tuple[Any, ...]
    sequence: int
    _owner: object = field(repr=False)
    _completed: bool = field(default=False, repr=False)


class OutputReader:
    """Copies output trees of one mesh to the host and owns every read that has not been completed.

    The mesh is borrowed. A wait for the device that takes longer than `wait_limit` seconds (`None`: as long as it
    takes) ends in a `TimeoutError`, and the read stays pending. Methods may be called from several threads: a lock
    guards the book-keeping only, never a copy or a wait.
    """

    def __init__(self, mesh_device: Any, *, wait_limit: float | None = None) -> None:
        require_wait_limit(wait_limit, name="wait_limit")
        self.mesh_device = mesh_device
        self.wait_limit = wait_limit
        self._owner = object()
        self._lock = threading.Lock()
        self._next_sequence = 0
        self._pending: dict[int, PendingRead] = {}
        self._sequence_of_value: dict[int, int] = {}

    def read(self, value: Any, *, blocking: bool = True) -> Any:
        """The host tree of `value` (blocking), or the `PendingRead` of `submit` when not blocking."""
        if not blocking:
            return self.submit(value)
        if self.wait_limit is None:
            return _BLOCKING_COPY.tree(value)
        return self._limited(partial(_BLOCKING_COPY.tree, value), "blocking output read")

    def synchronize(self) -> None:
        """Wait until everything enqueued on the mesh is complete."""
        self._limited(partial(self._namespace.synchronize_device, self.mesh_device), "synchronisation")

    def read_synchronized(self, value: Any) -> Any:
        """Start every copy of the tree, then wait for the device once; nothing is retained."""
        copy = _Copy(blocking=False)
        try:
            host = copy.tree(value)
            if copy.submitted:
                self.synchronize()
        except BaseException as error:
            self._settle(error)
            raise
        return host

    def submit(self, value: Any) -> PendingRead:
        """Start non-blocking copies of the tree, record one event on queue 0 and retain the read.

        A payload without device tensors comes back already complete, without touching any event. When a
        copy or the event fails, the device is synchronised (so that no copy is in flight into a dying
        buffer) and the error propagates; nothing is retained. `RuntimeError` when the device offers no
        events.
        """
        copy = _Copy(blocking=False)
        try:
            host = copy.tree(value)
            events = (self._record_event(),) if copy.submitted else ()
        except BaseException as error:
            self._settle(error)
            raise
        with self._lock:
            sequence = self._next_sequence
            self._next_sequence += 1
            pending = PendingRead(host, events, sequence, self._owner, not events)
            if events:
                self._pending[sequence] = pending
                self._sequence_of_value[id(host)] = sequence
        return pending

    def complete(self, pending: Any) -> Any:
        """Wait for a read, retire it and return its host tree.

        Takes the `PendingRead` or its host value. Completing twice waits once. A read of another reader, or
        one that is no longer active, is a `ValueError`; a value that this reader does not know is returned
        unchanged. When a wait fails the read stays pending and can be completed again.
        """
        if isinstance(pending, PendingRead):
            # Looked up without the lock: whoever retires the read meanwhile has waited for it as well.
            read = pending if self._pending.get(pending.sequence) is pending else self._active_read(pending)
        else:
            with self._lock:
                sequence = self._sequence_of_value.get(id(pending))
                read = None if sequence is None else self._pending[sequence]
            if read is None:
                return pending
        if read is None:
            return pending.value
        event_synchronize = getattr(self._namespace, "event_synchronize", None)
        if not callable(event_synchronize):
            raise RuntimeError("completing an async read needs event_synchronize, which the device lacks")
        for event in read.events:
            if self.wait_limit is None:
                event_synchronize(event)
            else:
                self._limited(partial(event_synchronize, event), f"output read {read.sequence}")
        self._retire(read)
        return read.value

    def drain(self) -> None:
        """Complete every pending read in submit order; idempotent.

        All are attempted; failures end in one `RuntimeError` with their count, and those reads stay pending.
        """
        with self._lock:
            reads = [self._pending[sequence] for sequence in sorted(self._pending)]
        failures: list[BaseException] = []
        for read in reads:
            try:
                self.complete(read)
            except BaseException as error:
                failures.append(error)
        if failures:
            raise_counted_failures("failed to complete pending output reads", failures)

    def _active_read(self, pending: PendingRead) -> PendingRead | None:
        """The retained read, or `None` when `pending` has been completed before."""
        if pending._owner is not self._owner:
            raise ValueError(f"pending read {pending.sequence} is not owned by this output reader")
        with self._lock:
            retained = self._pending.get(pending.sequence)
        if retained is pending:
            return pending
        if retained is None and pending._completed:
            return None
        raise ValueError(f"pending read {pending.sequence} is not active in this output reader")

    def _retire(self, read: PendingRead) -> None:
        with self._lock:
            self._pending.pop(read.sequence, None)
            if self._sequence_of_value.get(id(read.value)) == read.sequence:
                del self._sequence_of_value[id(read.value)]
            read._completed = True

    def _record_event(self) -> Any:
        namespace = self._namespace
        record = getattr(namespace, "record_event", None)
        if not (callable(record) and callable(getattr(namespace, "event_synchronize", None))):
            raise RuntimeError("async reads need record_event and event_synchronize, which the device lacks")
        return record(self.mesh_device, _COMMAND_QUEUE)

    def _limited(self, wait: Callable[[], Any], what: str) -> Any:
        return wait_at_most(self.wait_limit, wait, what=what)

    def _settle(self, primary: BaseException) -> None:
        """Wait until no started copy can still write into a destination that is about to die."""
        synchronize = getattr(self._namespace, "synchronize_device", None)
        if not callable(synchronize):
            return
        try:
            self._limited(partial(synchronize, self.mesh_device), "synchronisation")
        except BaseException as error:
            attach_cleanup_failures(primary, [error])

    @cached_property
    def _namespace(self) -> Any:
        return namespace_of(self.mesh_device)


class _Copy:
    """One pass over an output tree; keeps started destinations alive until the pass's owner lets go."""

    def __init__(self, *, blocking: bool) -> None:
        self._blocking = blocking
        self._destinations: list[Any] = []
        self.submitted = False

    def tree(self, value: Any) -> Any:
        if value is None:
            return None
        if type(value) is tuple:
            if len(value) == 2 and value[1] is None:  # what a step without log-probabilities returns
                return (self.tree(value[0]), None)
            return tuple([self.tree(item) for item in value])
        namespace = tensor_namespace(value)
        if namespace is not None:
            if value.storage_type() == namespace.StorageType.HOST:
                return value
            if self._blocking:
                return value.cpu(blocking=True)
            return self._started(value.cpu(blocking=False))
        if isinstance(value, tuple):
            return tuple(self.tree(item) for item in value)
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        if isinstance(value, dict):
            return {key: self.tree(item) for key, item in value.items()}
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return value.cpu()
        cpu = getattr(value, "cpu", None)
        if not callable(cpu):
            return value
        try:
            host = cpu(blocking=self._blocking)
        except TypeError:
            # An object whose copy knows no blocking mode: it has arrived when the call returns.
            return cpu()
        return self._started(host)

    def _started(self, host: Any) -> Any:
        if not self._blocking:
            self.submitted = True
            self._destinations.append(host)
        return host


# A blocking copy keeps nothing, so that one serves every reader.
_BLOCKING_COPY = _Copy(blocking=True)
