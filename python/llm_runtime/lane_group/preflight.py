# SPDX-License-Identifier: Apache-2.0
"""Checks of one lane's part of a call on the host, before any lane of the group touches its device.

Follows chapter 30, section 7.4, extended to decode, eager targets and compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Fields = dict[str, Any]

_PREPARED_PREFILL = ("prepare_prefill", "preflight_prefill", "execute_prepared_prefill")


def preflight_prefill(executor: Any, fields: Fields, *, lane: int, kv_cache: Any, execution: Any) -> Callable[[], Any]:
    """Check a lane's prefill and return the call that runs it.

    A traced target prepares the call and finds its traces here (`TraceCoverageError` otherwise), and the prepared
    work is what runs later. An eager target plans the call and checks its programs. A target that the lane names as
    its traced one but that cannot prepare is asked through the lane's `can_trace_prefill` (`RuntimeError` when it
    declines).
    """
    target = execution or executor.traced_prefill_execution or executor.eager_execution
    if all(callable(getattr(target, name, None)) for name in _PREPARED_PREFILL):
        admitted = _admit(executor, kv_cache, fields)
        covered = target.preflight_prefill(target.prepare_prefill(**admitted))
        _require_trace_safe(getattr(target, "eager_executor", None))
        return lambda: target.execute_prepared_prefill(
            covered,
            batch_size=len(admitted["tokens"]),
            sampling_params=admitted["sampling_params"],
            lane=lane,
        )
    prefill = getattr(target, "prefill", None)
    if prefill is not None:
        prepared = prefill.prepare(**_admit(executor, kv_cache, fields))
        _require_trace_safe(target)
        target._require_ready(signature for request in prepared for signature in request.program_signatures)
    elif execution is not None and execution is executor.traced_prefill_execution:
        _require_traceable(executor, fields)
    return lambda: executor.prefill_forward(**fields, kv_cache=kv_cache, execution=execution)


def preflight_decode(executor: Any, fields: Fields, *, kv_cache: Any, execution: Any) -> None:
    """Check a lane's decode step: its arguments, its programs or traces, and that no output waits to be read."""
    target = execution or executor.traced_decode_execution or executor.eager_execution
    eager = getattr(target, "eager_executor", target)
    decode = getattr(eager, "decode", None)
    if decode is None:
        return
    prepared = decode.prepare(**_admit(executor, kv_cache, fields))
    signature = decode.program_signature(prepared)
    if eager is target:
        eager._require_ready((signature,))
    else:
        traces = target.trace_compiler
        program_id = traces.program_compiler.find(signature)
        if program_id < 0 or not traces.is_captured(program_id):
            raise target._miss("decode", decode, signature, decode.trace_signature(prepared))
    decode.ensure_trace_safe()
    decode.validate_submission(prepared)


def preflight_compile(executor: Any, fields: Fields, *, operation: str, kv_cache: Any, execution: Any) -> None:
    """Check what a lane is asked to compile: its arguments, and that unseen programs may still compile."""
    target = execution or getattr(executor, f"traced_{operation}_execution") or executor.eager_execution
    eager = getattr(target, "eager_executor", target)
    runtime = getattr(eager, operation, None)
    if runtime is None:
        return
    prepared = runtime.prepare(**_admit(executor, kv_cache, fields))
    if operation == "decode":
        eager._require_ready((runtime.program_signature(prepared),))
    else:
        eager._require_ready(signature for request in prepared for signature in request.program_signatures)


def _admit(executor: Any, kv_cache: Any, fields: Fields) -> Fields:
    """The lane's own checks of a call; returns the fields that its execution target takes."""
    admit = getattr(executor, "_admit", None)
    if callable(admit):
        admitted: Fields = admit(kv_cache, **fields)
        return admitted
    for name, value in (("_validate_bound_cache", kv_cache), ("_ensure_sampling_for", fields["sampling_params"])):
        check = getattr(executor, name, None)
        if callable(check):
            check(value)
    return fields


def _require_trace_safe(eager: Any) -> None:
    """RuntimeError while an un-read decode output of the lane could be overwritten."""
    decode = getattr(eager, "decode", None)
    if decode is not None:
        decode.ensure_trace_safe()


def _require_traceable(executor: Any, fields: Fields) -> None:
    can_trace = getattr(executor, "can_trace_prefill", None)
    if not callable(can_trace) or not can_trace(
        tokens=fields["tokens"], prompt_lens=fields["prompt_lens"], start_pos=fields["start_pos"]
    ):
        raise RuntimeError("the lane cannot trace its part of this prefill; no lane has executed")
