# SPDX-License-Identifier: Apache-2.0
"""The compile gate's states, refusals and counter (chapter 30, sections 2.4 and 2.5)."""

from __future__ import annotations

import pytest

from llm_runtime._core import CompileGate


def test_states_and_their_flags() -> None:
    gate = CompileGate()
    assert (gate.state, gate.trace_capture_in_progress, gate.trace_active, gate.released) == (
        "open",
        False,
        False,
        False,
    )
    gate.set_capture_in_progress(True)
    assert (gate.state, gate.trace_capture_in_progress) == ("capturing", True)
    gate.set_capture_in_progress(False)
    gate.set_trace_active(True)
    assert (gate.state, gate.trace_active) == ("active", True)
    gate.set_trace_active(False)
    assert gate.state == "open"


def test_capture_under_active_traces_and_activation_under_capture_are_refused() -> None:
    gate = CompileGate()
    gate.set_trace_active(True)
    with pytest.raises(RuntimeError, match="active"):
        gate.set_capture_in_progress(True)
    gate.set_capture_in_progress(False)
    assert gate.trace_active
    gate.set_trace_active(False)
    gate.set_capture_in_progress(True)
    with pytest.raises(RuntimeError, match="capture is in progress"):
        gate.set_trace_active(True)
    gate.set_trace_active(False)
    assert gate.trace_capture_in_progress


@pytest.mark.covers("PGM-13")
def test_compile_during_capture_is_refused_and_not_counted() -> None:
    gate = CompileGate()
    gate.admit_compile("decode B=32")
    gate.set_capture_in_progress(True)
    with pytest.raises(RuntimeError, match=r"decode B=32.*capture is in progress"):
        gate.admit_compile("decode B=32")
    assert gate.rejections == 0


@pytest.mark.covers("PGM-14")
def test_compile_after_activation_is_refused_and_counted() -> None:
    gate = CompileGate()
    gate.set_trace_active(True)
    for count in (1, 2):
        with pytest.raises(RuntimeError, match=r"decode B=32.*after trace activation"):
            gate.admit_compile("decode B=32")
        assert gate.rejections == count


def test_release_is_terminal_and_repeatable() -> None:
    gate = CompileGate()
    gate.set_trace_active(True)
    gate.require_live()
    gate.release()
    gate.release()
    assert (gate.state, gate.released, gate.trace_active) == ("released", True, False)
    for call in (
        gate.require_live,
        lambda: gate.admit_compile("decode"),
        lambda: gate.set_trace_active(False),
        lambda: gate.set_capture_in_progress(False),
    ):
        with pytest.raises(RuntimeError, match="released"):
            call()
    assert gate.rejections == 0


def test_only_a_bool_moves_the_gate() -> None:
    gate = CompileGate()
    for value in (1, 0, None, "yes"):
        with pytest.raises(TypeError):
            gate.set_trace_active(value)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            gate.set_capture_in_progress(value)  # type: ignore[arg-type]
    assert gate.state == "open"
