# SPDX-License-Identifier: Apache-2.0
"""Error types that callers of the runtime catch by name, and notes on errors that work on every Python."""

from __future__ import annotations

from typing import Any


def add_error_note(error: BaseException, note: str) -> None:
    """Add one note to `error`; Python 3.10 has no `add_note`, there the attribute is kept by hand."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]


class TraceCoverageError(RuntimeError):
    """An operation selected for tracing has no captured trace for a prepared request; nothing has executed.

    Follows chapter 30, section 4.1. Fields:

    * `operation`, `trace_mode`, `model`: what was asked of whom;
    * `reason`: which link is missing (trace signature, association, or the capture itself);
    * `signature_material`, `digest`, `program_key`, `trace_key`: the identity that missed, digests in
      lower-case hex, `trace_key` "unavailable" without an association;
    * `coverage`: the registered traces of the operation as `(digest, material, captured)`;
    * `nearest`: `(field path, wanted, registered)` against the closest registered trace, or `None`;
    * `lane`: the data-parallel lane, or `None`. A lane group sets it; the message follows.
    """

    def __init__(
        self,
        *,
        operation: str,
        trace_mode: str,
        model: str,
        reason: str,
        signature_material: Any,
        digest: str,
        program_key: str,
        trace_key: str = "unavailable",
        coverage: tuple[tuple[str, Any, bool], ...] = (),
        nearest: tuple[str, Any, Any] | None = None,
        lane: int | None = None,
    ) -> None:
        super().__init__(operation, reason, digest)
        self.operation = operation
        self.trace_mode = trace_mode
        self.model = model
        self.reason = reason
        self.signature_material = signature_material
        self.digest = digest
        self.program_key = program_key
        self.trace_key = trace_key
        self.coverage = coverage
        self.nearest = nearest
        self.lane = lane

    def __str__(self) -> str:
        where = "" if self.lane is None else f" in lane {self.lane}"
        parts = [
            f"required {self.operation} trace is not available{where}: {self.reason}",
            f"operation={self.operation}",
            f"trace mode={self.trace_mode}",
            f"model={self.model}",
            f"signature material={self.signature_material!r}",
            f"signature digest={self.digest}",
            f"program key={self.program_key}",
            f"trace key={self.trace_key}",
        ]
        if self.nearest is not None:
            field, wanted, registered = self.nearest
            parts.append(f"closest registered trace differs in {field}: wanted {wanted!r}, has {registered!r}")
        entries = [
            f"{digest} {'captured' if captured else 'registered, not captured'} {material!r}"
            for digest, material, captured in self.coverage
        ]
        parts.append(f"configured coverage=[{'; '.join(entries)}]")
        parts.append("extend the coverage compiled at construction and warmup, or run with trace mode none")
        return "; ".join(parts)
