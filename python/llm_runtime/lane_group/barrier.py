# SPDX-License-Identifier: Apache-2.0
"""One capture barrier for all lanes: no lane captures before every lane has compiled.

Follows chapter 30, section 7.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from llm_runtime.lane_group.lifecycle import LaneWork

_BARRIER = ("defer_capture", "activate_pending_capture", "capture_pending", "trace_activated")


def needs_barrier(lanes: Sequence[Any], *, enable_trace: bool) -> bool:
    """Whether a warmup call must hold captures back; `RuntimeError` for a traced call that cannot.

    An eager call may complete the coverage too (decode warmed first, prefill not traced), so captures are held back
    in every call over lanes that can trace.
    """
    without = [lane for lane, executor in enumerate(lanes) if not _has_barrier(executor)]
    if not without:
        return enable_trace or any(_can_trace(executor) for executor in lanes)
    if enable_trace:
        raise RuntimeError(f"every lane must expose the trace activation barrier; lanes {without} do not")
    return False


def defer_captures(lanes: Sequence[Any]) -> ExitStack:
    """Open a deferral on every lane; the caller closes the stack, which ends them in reverse order.

    When one cannot be opened, those before it are closed again and the error propagates.
    """
    with ExitStack() as deferrals:
        for executor in lanes:
            deferrals.enter_context(executor.warmup.defer_capture())
        return deferrals.pop_all()


def activate_together(lanes: Sequence[Any], work: LaneWork) -> None:
    """Capture on every lane, in lane order, once all wait for it; do nothing while none does.

    `RuntimeError` when lanes differ in readiness: captures would then close the gate of some lanes only.
    """
    readiness = [_readiness(executor.warmup) for executor in lanes]
    if len(set(readiness)) > 1:
        states = ", ".join(f"lane {lane} {state}" for lane, state in enumerate(readiness))
        raise RuntimeError(f"lanes differ in trace readiness ({states}); warm every lane alike")
    if readiness[0] == "pending":
        for lane, executor in enumerate(lanes):
            work.call(lane, executor.warmup.activate_pending_capture)


def _readiness(warmup: Any) -> str:
    if warmup.trace_activated:
        return "activated"
    return "pending" if warmup.capture_pending else "incomplete"


def _has_barrier(executor: Any) -> bool:
    warmup = getattr(executor, "warmup", None)
    return all(hasattr(warmup, name) for name in _BARRIER)


def _can_trace(executor: Any) -> bool:
    return executor.traced_prefill_execution is not None or executor.traced_decode_execution is not None
