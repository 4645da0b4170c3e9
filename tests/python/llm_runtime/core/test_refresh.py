# SPDX-License-Identifier: Apache-2.0
"""What a replay copies to the device (chapter 30, section 3.5; chapter 20, section 5.7)."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest

from llm_runtime._core import RefreshDecision, RefreshPolicy, decide_refresh

STEADY: dict[str, Any] = {
    "switched": False,
    "reset_batch": False,
    "device_feedback_enabled": True,
    "feedback_compatible": True,
    "page_table_changed": False,
    "reload_inputs": None,
    "reload_page_table": False,
    "reload_sampling_params": False,
}
DECODE = RefreshPolicy(every_replay=("sampling",))
FLAGS = (
    "full_on_batch_reset",
    "full_on_graph_switch",
    "full_without_device_feedback",
    "refresh_page_table_on_change",
)


def decide(policy: RefreshPolicy = DECODE, **changes: Any) -> RefreshDecision:
    return decide_refresh(policy, **{**STEADY, **changes})


# reset, switched, feedback, table changed -> full, page_table: the written table of what is copied.
TABLE = [
    (reset, switched, feedback, changed, reset or switched or not feedback, changed)
    for reset, switched, feedback, changed in itertools.product([False, True], repeat=4)
]


@pytest.mark.covers("D07")
@pytest.mark.parametrize(("reset", "switched", "feedback", "changed", "full", "page_table"), TABLE)
def test_default_policy(
    reset: bool, switched: bool, feedback: bool, changed: bool, full: bool, page_table: bool
) -> None:
    decision = decide(
        reset_batch=reset, switched=switched, feedback_compatible=feedback, page_table_changed=changed
    )
    assert decision == RefreshDecision(full=full, page_table=page_table, fields=("sampling",))


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=4)))
def test_each_flag_gates_its_own_leg(flags: tuple[bool, ...]) -> None:
    named: dict[str, Any] = dict(zip(FLAGS, flags, strict=True))
    policy = RefreshPolicy(**named)
    on_reset, on_switch, on_feedback, on_table = flags
    for reset, switched, enabled, compatible, changed in itertools.product([False, True], repeat=5):
        decision = decide(
            policy,
            reset_batch=reset,
            switched=switched,
            device_feedback_enabled=enabled,
            feedback_compatible=compatible,
            page_table_changed=changed,
        )
        wanted = [on_reset and reset, on_switch and switched, on_feedback and not (enabled and compatible)]
        assert decision.full == any(wanted)
        assert decision.page_table == (on_table and changed)
        assert decision.fields == ()


@pytest.mark.covers("TRC-14", "TRC-15")
def test_reset_or_incompatible_feedback_on_the_same_trace_is_a_full_refresh() -> None:
    assert decide(reset_batch=True).full
    assert decide(feedback_compatible=False).full
    assert decide(device_feedback_enabled=False).full
    assert not decide().full


def test_explicit_commands_replace_the_policy() -> None:
    noisy: dict[str, Any] = {"reset_batch": True, "page_table_changed": True}
    assert decide(reload_inputs=True, switched=True, **noisy) == RefreshDecision(True, False, ())
    assert decide(reload_inputs=False, **noisy) == RefreshDecision(False, False, ())
    assert decide(reload_inputs=False, reload_page_table=True) == RefreshDecision(False, True, ())
    decision = decide(reload_inputs=False, reload_sampling_params=True)
    assert decision.fields == ("sampling",)


def test_resident_inputs_need_the_same_trace_and_feedback() -> None:
    for change in ("switched", "device_feedback_enabled", "feedback_compatible"):
        changes: dict[str, Any] = {change: not STEADY[change]}
        with pytest.raises(RuntimeError, match="reload_inputs=False"):
            decide(reload_inputs=False, **changes)


def test_contradicting_commands_are_refused() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        decide(reload_inputs=True, reload_page_table=True)
    with pytest.raises(ValueError, match="reload_page_table"):
        decide(reload_page_table=True)


def test_policy_and_decision_are_frozen_values() -> None:
    policy = RefreshPolicy(every_replay=("position", "sampling"), full_on_graph_switch=False)
    decision = RefreshDecision(full=True, page_table=False, fields=("sampling",))
    for value, other in [(policy, RefreshPolicy()), (decision, RefreshDecision(True, False, ()))]:
        twin = pickle.loads(pickle.dumps(value))
        assert twin == value == copy.copy(value)
        assert hash(twin) == hash(value)
        assert value != other
        assert value != "foreign"
        assert value.__eq__("foreign") is NotImplemented
    assert repr(decision) == "RefreshDecision(full=True, page_table=False, fields=('sampling',))"
    assert policy.every_replay == ("position", "sampling")
    bare: Any = policy.__replace__(every_replay=())
    assert bare == RefreshPolicy(full_on_graph_switch=False)
    with pytest.raises(AttributeError):
        policy.full_on_graph_switch = True  # type: ignore[misc]
    for names in ("sampling", ["sampling"], (1,)):
        with pytest.raises(TypeError):
            RefreshPolicy(every_replay=names)  # type: ignore[arg-type]
