# SPDX-License-Identifier: Apache-2.0
"""What decode asks of a sampling-state controller, in which order, and which refusals come before device work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llm_runtime.decode import DecodeRuntime
from support.recording_controller import RecordingController
from support.tiny_decode_model import decode_config

FULL = {"reload_inputs": True, "reload_sampling_params": True, "reset_sampling_state": True}


@pytest.fixture
def controller(model):
    return RecordingController(model.sampling)


@pytest.fixture
def state(controller):
    return controller.create_state()


@pytest.fixture
def controlled(model, controller, state):
    return DecodeRuntime(decode_config(model, sampling_state_controller=controller, sampling_state=state))


def step(runtime, call, **commands):
    return runtime.consume(runtime.invoke(runtime.prepare(**call, **commands)))


def names(controller):
    return [entry[0] for entry in controller.log]


def test_an_inferred_step_synchronises_and_refreshes_through_the_controller(controlled, controller, request_for, topk):
    params = topk(presence_penalty=[0.5, 0.0])
    tokens, _ = step(controlled, request_for((3, 5), (4, 9), sampling_params=params), reset_batch=True)
    assert tokens.tolist() == [7, 14]
    assert controller.log == [
        ("synchronize_decode", True),
        ("refresh_dynamic_inputs", [4, 9]),
        ("decode_forward", True, False, False, None),
    ]


def test_a_host_sampled_step_restores_default_seeds_only(controlled, controller, model, request_for):
    model.sampling.config.seeds.update(model.sampling.config.seeds.source + 5)
    step(controlled, request_for())
    assert controller.log == []
    assert model.sampling.config.seeds.current() == list(range(1, 33))


def test_a_compile_only_step_resets_before_and_after(controlled, controller, request_for, topk):
    controlled.invoke(controlled.prepare(**request_for(sampling_params=topk())), count_tokens=False)
    assert controller.log == [("reset", True), ("decode_forward", True, False, False, None), ("reset", False)]


def test_the_reload_contract_in_order(controlled, controller, request_for, topk):
    call = request_for((3, 5), (4, 9), sampling_params=topk())
    step(controlled, call, **FULL)
    assert names(controller) == [
        "validate_prepared",
        "validate_prepared_history",
        "reset_decode_state",
        "decode_forward",
    ]
    controller.log.clear()
    step(controlled, request_for((7, 14), (5, 10), sampling_params=topk()), reload_inputs=True, slot_remap=[1, 0])
    assert controller.log == [
        ("validate_prepared", None),
        ("remap_slots", [1, 0]),
        ("configure_decode", False),
        ("decode_forward", True, False, False, None),
    ]
    controller.log.clear()
    step(controlled, call, reload_inputs=True, reload_sampling_params=True)
    assert ("validate_decode_history", None) in controller.log
    assert ("configure_decode", True) in controller.log


def test_a_remap_on_a_host_sampled_step_reaches_the_controller_once(controlled, controller, request_for, topk):
    step(controlled, request_for(sampling_params=topk()), **FULL)
    controller.log.clear()
    step(controlled, request_for(), reload_inputs=True, slot_remap=[1, 0])
    assert controller.log == [("remap_slots", [1, 0])]


@pytest.mark.parametrize(
    ("failure", "error", "match"),
    [
        ("busy", RuntimeError, "busy"),
        ("history", ValueError, "incomplete"),
        ("identity", RuntimeError, "reload_sampling"),
    ],
)
def test_refusals_come_before_device_work(
    mesh, controlled, controller, state, request_for, topk, failure, error, match
):
    step(controlled, request_for(sampling_params=topk()), **FULL)
    commands = {"reload_inputs": True}
    if failure == "busy":
        controller.idle = False
    elif failure == "history":
        controller.history_error, commands = ValueError("incomplete history"), FULL
    else:
        state.static_identity = ("another",)
    prepared = controlled.prepare(**request_for(sampling_params=topk()), **commands)
    calls = mesh.counters.calls.copy()
    with pytest.raises(error, match=match):
        controlled.invoke(prepared)
    assert mesh.counters.calls == calls


def test_an_unestablished_identity_needs_a_reset(controlled, state, request_for, topk):
    step(controlled, request_for(sampling_params=topk()), **FULL)
    state.penalty_history_valid = False
    with pytest.raises(RuntimeError, match="reset_sampling_state"):
        step(controlled, request_for(sampling_params=topk()), reload_inputs=True)


def test_capture_points_the_state_at_its_request(controlled, controller, state, request_for, topk):
    prepared = controlled.prepare(**request_for(positions=(0, -1), sampling_params=topk()))
    plan = controlled.capture_plan(prepared)
    persistent = plan.prepare_inputs()
    plan.prepare_capture(persistent)
    assert controller.log == [("reset", True)]
    assert state.static_identity == (False, "topk")
    assert state.active_mask[:2] == (True, False)


def test_a_narrow_seed_state_is_refused(model, controller):
    state = controller.create_state()
    state.seed_state = SimpleNamespace(capacity=1)
    with pytest.raises(ValueError, match=r"1 slots.*2"):
        DecodeRuntime(decode_config(model, sampling_state_controller=controller, sampling_state=state))
