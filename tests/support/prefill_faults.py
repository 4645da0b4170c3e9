# SPDX-License-Identifier: Apache-2.0
"""Faults at every device call of a prefill, and what must be true after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.prefill_model import EchoLane, names


def device_calls(mesh: Any, run: Callable[[], Any]) -> list[str]:
    """The device functions that ``run`` calls, in order."""
    calls: list[str] = []
    mesh.faults.check, mesh.faults.active = calls.append, True
    try:
        run()
    finally:
        del mesh.faults.check
        mesh.faults.active = False
    return calls


def each_failing_once(lane: EchoLane, run: Callable[[], Any], check: Callable[[], Any]) -> None:
    """Let each device call of ``run`` fail once, alone and with the first release of the cleanup.

    After each: the error that came out is the injected one; nothing leaked; the runtime refuses until its cleanup
    where a release failed, and else goes on; ``check`` passes.
    """
    calls = device_calls(lane.mesh, run)
    assert "deallocate" in calls
    alive = names(lane.mesh)
    for injected in _faults(calls):
        errors = [RuntimeError(f"{op} call {at}") for op, at in injected]
        for (op, at), error in zip(injected, errors, strict=True):
            lane.mesh.faults.fail(op, at=at, error=error)
        with pytest.raises(RuntimeError) as caught:
            run()
        lane.mesh.faults.clear()
        raised, attached = caught.value, getattr(caught.value, "cleanup_failures", ())
        del caught
        _check_errors(raised, attached, errors, injected)
        for error in errors:  # the frames of a traceback hold what an op returned just before the failing one
            error.__traceback__ = error.__context__ = None
        # What a failed release left is kept for the next attempt.
        assert lane.runtime.transient_orphan_count or not attached, injected
        if lane.runtime.transient_orphan_count:
            with pytest.raises(RuntimeError, match="cleanup"):
                lane.runtime.prepare(**lane.prompt([80]))
            lane.runtime.cleanup()
            assert lane.runtime.transient_orphan_count == 0
        assert names(lane.mesh) == alive, injected
        check()


def _faults(calls: list[str]) -> Iterator[list[tuple[str, int]]]:
    for index, op in enumerate(calls):
        fault = (op, calls[: index + 1].count(op))
        yield [fault]
        if op != "deallocate":
            yield [fault, ("deallocate", calls[:index].count("deallocate") + 1)]


def _check_errors(
    raised: BaseException, attached: tuple[BaseException, ...], errors: list[RuntimeError], injected: Any
) -> None:
    primary, *secondary = errors
    if raised is not primary:
        # The model's own `finally` met the second fault; the runtime hands on what the model raised.
        assert raised in secondary and raised.__context__ is primary, injected
        return
    # A tensor that is freed twice would attach another failure.
    assert set(attached) <= set(secondary), (injected, attached)
