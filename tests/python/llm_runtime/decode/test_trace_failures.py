# SPDX-License-Identifier: Apache-2.0
"""Replays and captures that are refused or fail: what is noticed before device work, and what ends the runtime."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llm_runtime.decode import DecodePersistentInputs
from llm_runtime.decode.trace import persistent_inputs_of
from llm_runtime.errors import TraceCoverageError
from llm_runtime.trace_compiler import RefreshDecision

STALE = (63, 63)


def tokens_of(result):
    return result[0].tolist()


def test_a_replaced_seed_buffer_is_noticed(lane, model, request_for, topk):
    call = request_for(sampling_params=topk())
    lane.capture(call)
    seeds = model.sampling.config.seeds
    original, seeds.device = seeds.device, lane.model.rope_setup._rows
    with pytest.raises(RuntimeError, match="seed buffer"):
        lane.traced.decode_forward(**call, reset_batch=True)
    seeds.device = original
    with pytest.raises(RuntimeError, match="rebuild the executor"):
        lane.decode.prepare(**call)


@pytest.mark.parametrize("captured", ["topk", "argmax"])
def test_a_step_of_another_path_is_refused_before_anything_moves(runtime, model, request_for, greedy, topk, captured):
    own, other = (topk(), greedy()) if captured == "topk" else (greedy(), topk())
    persistent = runtime.capture_plan(runtime.prepare(**request_for(sampling_params=own))).prepare_inputs()
    prepared = runtime.prepare(**request_for(sampling_params=other, reset_batch=True))
    updates = list(model.sampling.config.seeds.updates)
    with pytest.raises(RuntimeError, match="sampling path changed"):
        runtime.refresh_trace(persistent, prepared, RefreshDecision(True, False, ()))
    assert model.sampling.config.seeds.updates == updates


def test_persistent_inputs_are_found_in_every_wrapper(runtime, request_for, greedy):
    persistent = runtime.capture_plan(runtime.prepare(**request_for(sampling_params=greedy()))).prepare_inputs()
    fields = {
        "device_inputs": persistent.device_inputs.values(),
        "kpt": None,
        "kpt_signature": None,
        "seed_buffer": persistent.seed_buffer,
    }
    wrapper = SimpleNamespace(values=persistent)
    assert persistent_inputs_of(persistent) is persistent
    assert persistent_inputs_of(wrapper) is persistent
    assert persistent_inputs_of(SimpleNamespace(persistent_inputs=wrapper)) is persistent
    found = persistent_inputs_of(SimpleNamespace(values=fields))
    assert isinstance(found, DecodePersistentInputs)
    assert found.device_inputs.tokens is persistent.device_inputs.tokens
    for bad in (fields, SimpleNamespace(values={"kpt": None}), SimpleNamespace(values=3), None):
        with pytest.raises(TypeError):
            persistent_inputs_of(bad)
    with pytest.raises(TypeError, match="four tensors"):
        persistent_inputs_of(SimpleNamespace(values={**fields, "device_inputs": (1, 2)}))


def test_a_miss_costs_nothing_and_leaves_the_runtime_usable(lane, request_for, greedy, topk):
    lane.capture(request_for(sampling_params=greedy()))
    calls = lane.mesh.counters.calls.copy()
    with pytest.raises(TraceCoverageError):
        lane.traced.decode_forward(**request_for(sampling_params=topk()), reset_batch=True)
    assert lane.mesh.counters.calls == calls
    tokens = lane.traced.decode_forward(**request_for((3, 5), (2, 2), sampling_params=greedy()), reset_batch=True)
    assert tokens_of(tokens) == [5, 7]


@pytest.mark.parametrize("token", [-3, 1 << 33])
def test_a_bad_token_is_refused_before_a_trace_is_touched(lane, request_for, greedy, token):
    call = request_for(sampling_params=greedy())
    lane.capture(call)
    updates = lane.mesh.counters.calls.copy()
    with pytest.raises(ValueError, match=str(token)):
        lane.traced.decode_forward(**request_for((1, token), sampling_params=greedy()), reset_batch=True)
    assert lane.mesh.counters.calls == updates
    assert tokens_of(lane.traced.decode_forward(**call, reset_batch=True)) == [1, 2]


@pytest.mark.parametrize("op", ["copy_host_to_device_tensor", "execute_trace"])
def test_a_replay_that_fails_after_its_refresh_began_ends_the_runtime(lane, request_for, greedy, op):
    call = request_for(sampling_params=greedy())
    lane.capture(call)
    lane.traced.decode_forward(**call, reset_batch=True)
    lane.mesh.faults.fail(op)
    with pytest.raises(RuntimeError, match=f"injected fault: {op}"):
        lane.traced.decode_forward(**call, reset_batch=True)
    for refused in (lambda: lane.decode.prepare(**call), lane.decode.ensure_trace_safe):
        with pytest.raises(RuntimeError, match="rebuild the executor"):
            refused()
    lane.decode.cleanup_transients()


@pytest.mark.parametrize("at", [1, 4, 6, 7])
def test_a_failing_capture_leaves_no_tensor_and_can_be_repeated(lane, request_for, topk, at):
    call = request_for(sampling_params=topk())
    lane.traced.compile_decode(**call)
    before = sorted(tensor.name for tensor in lane.mesh.live_tensors())
    lane.mesh.faults.fail("to_device", at=at)
    with pytest.raises(RuntimeError, match="injected fault"):
        lane.traces.capture_all()
    assert sorted(tensor.name for tensor in lane.mesh.live_tensors()) == before
    lane.traces.capture_all()
    assert tokens_of(lane.traced.decode_forward(**call, reset_batch=True)) == [1, 2]
