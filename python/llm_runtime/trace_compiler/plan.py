# SPDX-License-Identifier: Apache-2.0
"""Values of the trace registry: the plan an operation registers and what becomes of it (chapter 30, 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from llm_runtime._core import RefreshDecision, RefreshPolicy
from llm_runtime.digest import ProgramKey

__all__ = [
    "InputRefreshPolicy",
    "Operation",
    "PersistentInputs",
    "RefreshDecision",
    "TraceAliasRecord",
    "TraceArtifact",
    "TraceCapturePlan",
    "TraceRecord",
    "require_operation",
]

Operation = Literal["prefill", "decode"]

InputRefreshPolicy = RefreshPolicy


def require_operation(operation: Any) -> None:
    """`ValueError` unless `operation` is "prefill" or "decode"."""
    if operation not in get_args(Operation):
        raise ValueError(f"operation must be one of {get_args(Operation)}, got {operation!r}")


@dataclass(eq=False)
class PersistentInputs:
    """Device tensors that a trace reads and that a replay refreshes in place; owned by the trace."""

    values: Any

    def owned_tensor_values(self) -> Any:
        """The tree that a release walks."""
        return self.values


@dataclass(eq=False)
class TraceArtifact:
    """One captured device trace and the tensors whose addresses it holds (all owned).

    `context` is the paged-KV context that the capture wrote through (borrowed): a replay over another one would write
    into memory of somebody else. `recording` says that the capture could not be ended: the device may still record, so
    a release ends it first.
    """

    trace_id: int
    persistent_inputs: PersistentInputs
    outputs: Any
    refresh_policy: RefreshPolicy
    context: Any = None
    trace_released: bool = False
    recording: bool = False
    deallocated_tensor_ids: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class TraceCapturePlan:
    """How to prepare, record and finish one trace for one compiled program; the callables are borrowed.

    * `prepare_inputs()` returns `PersistentInputs`, or raw values to wrap; `capture(persistent)` enqueues the body
      and returns its outputs. Both results become owned by the trace.
    * `prime(persistent)` runs the exact body once without recording, `release_prime_output(output)` releases what it
      returned (also `None`) and returns the failures; both or neither.
    * `prepare_capture(persistent)` puts mutable state where the body expects it, before priming and again before
      recording.
    * `prepare_workspace()` allocates tensors of this program alone, `prime_workspace(persistent, workspace)` runs
      its post-processing once.
    * `schema_fingerprint` must agree between all programs of one trace, `workspace_fingerprint` between repeated
      registrations of one program.

    `ValueError` for an unknown operation, or `prime` without `release_prime_output` (and the reverse).
    """

    program_key: ProgramKey
    trace_signature: Any
    operation: Operation
    prepare_inputs: Callable[[], Any]
    capture: Callable[[PersistentInputs], Any]
    refresh_policy: RefreshPolicy = field(default_factory=RefreshPolicy)
    schema_fingerprint: Any = None
    prepare_workspace: Callable[[], Any] | None = None
    workspace_fingerprint: Any = None
    prime: Callable[[PersistentInputs], Any] | None = None
    release_prime_output: Callable[[Any], list[BaseException]] | None = None
    prepare_capture: Callable[[PersistentInputs], None] | None = None
    prime_workspace: Callable[[PersistentInputs, Any], None] | None = None

    def __post_init__(self) -> None:
        require_operation(self.operation)
        if (self.prime is None) != (self.release_prime_output is None):
            raise ValueError("prime and release_prime_output must be given together")


@dataclass(eq=False)
class TraceRecord:
    """One registered trace; `artifact` is set while device resources of its capture are held."""

    signature: Any
    operation: Operation
    artifact: TraceArtifact | None = None

    @property
    def captured(self) -> bool:
        """Whether the trace can be replayed. An artifact whose trace id is released already only awaits cleanup."""
        return self.artifact is not None and not self.artifact.trace_released


@dataclass(eq=False)
class TraceAliasRecord:
    """The link of one program to its trace, with the workspace that this program alone uses (owned)."""

    trace_key: Any
    workspace_fingerprint: Any
    prepare_workspace: Callable[[], Any] | None = None
    prime_workspace: Callable[[PersistentInputs, Any], None] | None = None
    workspace: Any = None
    deallocated_tensor_ids: set[int] = field(default_factory=set)
