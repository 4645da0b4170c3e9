# SPDX-License-Identifier: Apache-2.0
"""Checks of one lane's part of a call on the host, before any lane of the group touches its device.

Follows chapter 30, section 7.4, extended to decode, eager targets and compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

Run = Callable[[], Any]

_PREPARED_PREFILL = ("prepare_prefill", "preflight_prefill", "execute_prepared_prefill")


def preflight_call(executor: Any, operation: str, fields: dict[str, Any], *, lane: int, execution: Any) -> Run:
    """Check a lane's call and return what runs it.

    `operation` is the executor's method (`prefill_forward`, `decode_forward`, `compile_prefill`, `compile_decode`),
    `fields` its arguments except `execution`. The executor gets the call with a target that only checks, so that its
    own checks come first; a coverage miss is a `TraceCoverageError`. A target without runtimes cannot be checked that
    way: a prefill is prepared by the target itself, or asked for through the lane's `can_trace_prefill` when the
    caller named the lane's traced target; other calls run unchecked.
    """
    traced = executor.traced_prefill_execution if "prefill" in operation else executor.traced_decode_execution
    target = execution or traced or executor.eager_execution
    if hasattr(getattr(target, "eager_executor", target), "program_compiler"):
        run = getattr(executor, operation)(**fields, execution=_Preflight(target, lane))
        if not isinstance(run, _Checked):
            raise TypeError(f"{type(executor).__name__}.{operation} must return what its execution target returns")
        return run.run
    if operation == "prefill_forward":
        if all(hasattr(target, name) for name in _PREPARED_PREFILL):
            return _prepared_by_target(executor, target, fields, lane)
        if execution is not None and execution is traced:
            _require_traceable(executor, fields)
    return partial(getattr(executor, operation), **fields, execution=execution)


class _Checked:
    """A checked call on its way through the executor."""

    def __init__(self, run: Run) -> None:
        self.run = run


class _Preflight:
    """Stands in for an eager or traced target (borrowed): checks the call, and returns the call itself."""

    def __init__(self, target: Any, lane: int) -> None:
        self._target = target
        self._eager = getattr(target, "eager_executor", target)
        self._lane = lane

    def prefill_forward(self, **fields: Any) -> _Checked:
        target = self._target
        if self._eager is target:
            self._require_ready(self._eager.prefill.prepare(**fields))
            run = partial(target.prefill_forward, **fields)
        else:
            covered = target.preflight_prefill(target.prepare_prefill(**fields))
            run = partial(
                target.execute_prepared_prefill,
                covered,
                batch_size=len(fields["tokens"]),
                sampling_params=fields["sampling_params"],
                lane=self._lane,
            )
        self._eager.decode.ensure_trace_safe()
        return _Checked(run)

    def decode_forward(self, *, read_from_device: bool, **fields: Any) -> _Checked:
        target, decode = self._target, self._eager.decode
        prepared = decode.prepare(**fields)
        signature = decode.program_signature(prepared)
        if self._eager is target:
            self._eager._require_ready((signature,))
        else:
            traces = target.trace_compiler
            program_id = traces.program_compiler.find(signature)
            if program_id < 0 or not traces.is_captured(program_id):
                raise target._miss("decode", decode, signature, decode.trace_signature(prepared))
        decode.ensure_trace_safe()
        decode.validate_submission(prepared)
        return _Checked(partial(target.decode_forward, **fields, read_from_device=read_from_device))

    def compile_prefill(self, **fields: Any) -> _Checked:
        self._require_ready(self._eager.prefill.prepare(**fields))
        return _Checked(partial(self._target.compile_prefill, **fields))

    def compile_decode(self, **fields: Any) -> _Checked:
        decode = self._eager.decode
        self._eager._require_ready((decode.program_signature(decode.prepare(**fields)),))
        return _Checked(partial(self._target.compile_decode, **fields))

    def _require_ready(self, prepared: Iterable[Any]) -> None:
        """While traces exist nothing may compile, so every program of the requests must be there."""
        self._eager._require_ready(signature for request in prepared for signature in request.program_signatures)


def _prepared_by_target(executor: Any, target: Any, fields: dict[str, Any], lane: int) -> Run:
    request = dict(fields)
    kv_cache, sampling_params = request.pop("kv_cache"), request["sampling_params"]
    for name, value in (("_validate_bound_cache", kv_cache), ("_ensure_sampling_for", sampling_params)):
        check = getattr(executor, name, None)
        if callable(check):
            check(value)
    covered = target.preflight_prefill(target.prepare_prefill(**request))
    return partial(
        target.execute_prepared_prefill,
        covered,
        batch_size=len(request["tokens"]),
        sampling_params=sampling_params,
        lane=lane,
    )


def _require_traceable(executor: Any, fields: dict[str, Any]) -> None:
    can_trace = getattr(executor, "can_trace_prefill", None)
    geometry = {name: fields[name] for name in ("tokens", "prompt_lens", "start_pos")}
    if not callable(can_trace) or not can_trace(**geometry):
        raise RuntimeError("the lane cannot trace its part of this prefill; no lane has executed")
