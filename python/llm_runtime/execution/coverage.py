# SPDX-License-Identifier: Apache-2.0
"""Why a request has no trace: turns a miss into the `TraceCoverageError` that names everything involved."""

from __future__ import annotations

from typing import Any

from llm_runtime.digest import TraceKey, key_material, signature_key
from llm_runtime.errors import TraceCoverageError
from llm_runtime.trace_compiler import TraceCompiler

_NO_SIGNATURE = "the request is not trace-eligible, it has no trace signature"
_NO_PROGRAM = "its program was never compiled for tracing"
_NO_ASSOCIATION = "its program has no trace association"
_NOT_CAPTURED = "its trace is registered but not captured, the activation barrier was not reached"


def model_identity(runtime: Any) -> str:
    """`module.qualname` of the runtime's model class, or the runtime's class name when there is no model."""
    model = getattr(getattr(runtime, "config", None), "model", None)
    if model is None:
        return type(runtime).__name__
    return f"{type(model).__module__}.{type(model).__qualname__}"


def coverage_error(
    traces: TraceCompiler,
    *,
    operation: str,
    trace_mode: str,
    runtime: Any,
    program_signature: Any,
    trace_signature: Any,
) -> TraceCoverageError:
    """The error for one miss; `trace_signature` may be `None` when the request is not eligible."""
    programs = traces.program_compiler
    program_key = programs.key_for(program_signature)
    trace_key = traces.trace_key_for_program(program_key)
    missed = program_signature if trace_signature is None else trace_signature
    return TraceCoverageError(
        operation=operation,
        trace_mode=trace_mode,
        model=model_identity(runtime),
        reason=_reason(traces, program_key, trace_key, trace_signature),
        signature_material=key_material(missed),
        digest=program_key.digest if trace_signature is None else TraceKey.from_signature(missed).digest,
        program_key=program_key.digest,
        trace_key="unavailable" if trace_key is None else trace_key.digest,
        coverage=_coverage(traces, operation),
        nearest=_nearest(traces, operation, trace_signature),
    )


def _reason(traces: TraceCompiler, program_key: Any, trace_key: TraceKey | None, trace_signature: Any) -> str:
    if trace_signature is None:
        return _NO_SIGNATURE
    if traces.program_compiler.id_of(program_key) < 0:
        return _NO_PROGRAM
    return _NO_ASSOCIATION if trace_key is None else _NOT_CAPTURED


def _coverage(traces: TraceCompiler, operation: str) -> tuple[tuple[str, Any, bool], ...]:
    entries = []
    for key, signature in traces.registered_coverage(operation):
        record = traces.get(key)
        entries.append((key.digest, key_material(signature), record is not None and record.captured))
    return tuple(entries)


def _nearest(traces: TraceCompiler, operation: str, trace_signature: Any) -> tuple[str, Any, Any] | None:
    if trace_signature is None:
        return None
    found = traces.nearest(signature_key(trace_signature), operation=operation)
    return None if found is None else found[1:]
