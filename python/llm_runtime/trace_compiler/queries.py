# SPDX-License-Identifier: Apache-2.0
"""What can be asked of the trace registry in every state, by key for callers and by id for hot paths."""

from __future__ import annotations

from typing import Any

from llm_runtime._core import SignatureKey
from llm_runtime.digest import ProgramKey, TraceKey
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.trace_compiler.book import TraceBook
from llm_runtime.trace_compiler.plan import TraceRecord, require_operation


class TraceQueries:
    """Read-only view of one trace book beside the programs (borrowed) that its aliases name."""

    def __init__(self, program_compiler: ProgramCompiler) -> None:
        self.program_compiler = program_compiler
        self._book = TraceBook()
        self._core = self._book.core

    @property
    def replay_count(self) -> int:
        """Successful replays of all traces."""
        return self._core.replay_count("prefill") + self._core.replay_count("decode")

    @property
    def replay_counts(self) -> dict[str, int]:
        """Successful replays per operation (a fresh dict)."""
        return {operation: self._core.replay_count(operation) for operation in ("prefill", "decode")}

    @property
    def trace_count(self) -> int:
        """Registered traces, captured or not."""
        return len(self._book.records)

    @property
    def trace_association_count(self) -> int:
        """Programs that have a trace."""
        return self._core.association_count

    def registered_coverage(self, operation: str) -> tuple[tuple[TraceKey, Any], ...]:
        """`(key, signature)` of every trace of an operation in registration order, captured or not."""
        require_operation(operation)
        book = self._book
        return tuple(
            (key, record.signature)
            for key, record in zip(book.keys, book.records, strict=True)
            if record.operation == operation
        )

    def get(self, trace_key: TraceKey) -> TraceRecord | None:
        """The record of a trace key, or `None`."""
        trace_id = self._book.id_of(trace_key)
        return None if trace_id < 0 else self._book.records[trace_id]

    def trace_key_for_program(self, program_key: ProgramKey) -> TraceKey | None:
        """The trace key a program is associated with, or `None`."""
        trace_id = self.find_trace(self.program_compiler.id_of(program_key))
        return None if trace_id < 0 else self._book.keys[trace_id]

    def workspace_for_program(self, program_key: ProgramKey) -> Any:
        """The program's workspace (borrowed; `None` without one or before capture); no alias: `RuntimeError`."""
        return self.workspace_of(self.program_compiler.id_of(program_key), program_key)

    def find_trace(self, program_id: int) -> int:
        """The trace id of a program id, or -1."""
        return -1 if program_id < 0 else self._core.trace_of_program(program_id)

    def trace_key(self, trace_id: int) -> TraceKey:
        """The key of a trace id."""
        return self._book.keys[trace_id]

    def record(self, trace_id: int) -> TraceRecord:
        """The record of a trace id."""
        return self._book.records[trace_id]

    def is_captured(self, program_id: int) -> bool:
        """Whether a program id has a trace that can be replayed."""
        trace_id = self._core.trace_of_program(program_id)
        return trace_id >= 0 and self._core.is_captured(trace_id)

    def captured_record(self, program_id: int) -> TraceRecord | None:
        """The record of the trace that a program id can be replayed with, or `None`; -1 has none."""
        trace_id = self._core.trace_of_program(program_id)
        if trace_id < 0:
            return None
        record = self._book.records[trace_id]
        artifact = record.artifact
        return None if artifact is None or artifact.trace_released else record

    def nearest(self, key: SignatureKey, *, operation: str) -> tuple[int, str, Any, Any] | None:
        """The registered trace of `operation` closest to a signature key: `(id, field, wanted, registered)`."""
        return self._core.nearest(key, operation=operation)

    def workspace_of(self, program_id: int, program_key: ProgramKey | None = None) -> Any:
        """`workspace_for_program` by program id."""
        alias = self._book.aliases.get(program_id)
        if alias is None:
            name = program_id if program_key is None else program_key.digest
            raise RuntimeError(f"program {name} has no trace association")
        return alias.workspace
