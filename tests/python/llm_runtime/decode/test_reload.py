# SPDX-License-Identifier: Apache-2.0
"""The explicit reload contract: orders are obeyed as given, resident state is used, illegal orders change nothing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from llm_runtime.seed_manager import device_seed
from support.tiny_decode_model import decode_runtime

STALE = (63, 63)
FULL = {"reload_inputs": True, "reload_sampling_params": True, "reset_sampling_state": True}
NOTHING = {"reload_inputs": False}
TABLE_ONLY = {"reload_inputs": False, "reload_page_table": True}


def tokens_of(result):
    return result[0].tolist()


@pytest.fixture
def served(lane, request_for, topk, greedy):
    """A captured lane whose first sampled step has been accepted: both rows are resident."""
    lane.capture(request_for(sampling_params=topk()), request_for(sampling_params=greedy()), request_for())
    lane.traced.decode_forward(**request_for((1, 2), (0, 0), sampling_params=topk(seed=[5, 6])), **FULL)
    return lane


@pytest.mark.parametrize(
    ("commands", "error", "match"),
    [
        ({"reload_inputs": 0}, TypeError, "reload_inputs"),
        ({"reload_inputs": True, "reload_page_table": 1}, TypeError, "reload_page_table"),
        ({"reload_inputs": True, "reset_sampling_state": None}, TypeError, "reset_sampling_state"),
        ({"reload_inputs": True, "reset_batch": 1}, TypeError, "reset_batch"),
        ({"reload_page_table": True}, ValueError, "reload_inputs"),
        ({"reload_sampling_params": True}, ValueError, "reload_inputs"),
        ({"reset_sampling_state": True}, ValueError, "reload_inputs"),
        ({"reload_inputs": True, "reset_batch": True}, ValueError, "reset_batch"),
        ({"reload_inputs": True, "reload_page_table": True}, ValueError, "reload_page_table"),
        ({"reload_inputs": False, "reset_sampling_state": True}, ValueError, "reset_sampling_state"),
        ({"reload_inputs": False, "slot_remap": [0, 1]}, ValueError, "slot_remap"),
    ],
)
def test_illegal_orders_are_refused(served, request_for, topk, commands, error, match):
    with pytest.raises(error, match=match):
        served.decode.prepare(**request_for(sampling_params=topk()), **commands)


@pytest.mark.parametrize("commands", [NOTHING, {**FULL}, {"reload_inputs": True, "reload_sampling_params": True}])
def test_host_sampled_steps_have_no_sampling_orders(served, request_for, commands):
    with pytest.raises(ValueError, match=r"sampling|reload_inputs"):
        served.decode.prepare(**request_for(), **commands)


def test_the_first_sampled_step_must_bring_its_parameters(mesh, runtime, request_for, topk):
    prepared = runtime.prepare(**request_for(sampling_params=topk()), reload_inputs=True)
    calls = mesh.counters.calls.copy()
    for submit in (runtime.validate_submission, runtime.invoke):
        with pytest.raises(RuntimeError, match="reload_sampling_params"):
            submit(prepared)
    assert mesh.counters.calls == calls
    prepared = runtime.prepare(**request_for(sampling_params=topk()), reload_inputs=True, reload_sampling_params=True)
    with pytest.raises(RuntimeError, match="reset_sampling_state"):
        runtime.invoke(prepared)
    tokens, _ = runtime.consume(runtime.invoke(runtime.prepare(**request_for(sampling_params=topk()), **FULL)))
    assert tokens.tolist() == [1, 2]


def test_an_eager_step_needs_all_inputs(lane, request_for, greedy):
    call = request_for(sampling_params=greedy())
    lane.capture(call)
    lane.traced.decode_forward(**call, **FULL)
    prepared = lane.decode.prepare(**call, **NOTHING)
    with pytest.raises(ValueError, match="reload_inputs=False"):
        lane.decode.invoke(prepared)


@pytest.mark.covers("D20")
def test_a_resident_step_ignores_the_host(served, request_for, topk):
    mesh, sequence = served.mesh, []
    for position in range(1, 6):
        before = mesh.counters.calls["copy_host_to_device_tensor"]
        step = request_for(STALE, (250, -1), sampling_params=topk(top_k=[9, 9], seed=[70, 71]))
        sequence.append(tokens_of(served.traced.decode_forward(**step, **NOTHING)))
        # The seeds of the two new positions are all that is copied.
        assert mesh.counters.calls["copy_host_to_device_tensor"] == before + 1
        seeds = served.model.sampling.config.seeds.current()
        assert seeds[:2] == [device_seed(5, position), device_seed(6, position)]
    assert sequence == [[2, 3], [4, 5], [7, 8], [11, 12], [16, 17]]


def test_only_the_page_table_is_copied_when_ordered(served, request_for, topk):
    mesh = served.mesh
    before = mesh.counters.calls["copy_host_to_device_tensor"]
    wide = np.arange(40, 56).reshape(2, 8)
    result = served.traced.decode_forward(
        **request_for(STALE, (9999, 9999), wide, sampling_params=topk()), **TABLE_ONLY
    )
    assert mesh.counters.calls["copy_host_to_device_tensor"] == before + 2
    assert tokens_of(result) == [2, 3]
    assert [(write.block, write.position) for write in list(mesh.ledger.writes)[-2:]] == [(40, 1), (48, 1)]
    served.traced.decode_forward(**request_for(STALE, (9999, 9999), sampling_params=topk()), **NOTHING)
    assert mesh.ledger.writes[-1].block == 48


def test_a_full_reload_checks_positions_against_the_table(served, request_for, topk):
    with pytest.raises(ValueError, match=r"row 0|position 256"):
        served.decode.prepare(**request_for(STALE, (256, 0), sampling_params=topk()), reload_inputs=True)
    with pytest.raises(ValueError, match="row 1"):
        served.decode.prepare(**request_for(STALE, (0, 200), sampling_params=topk()), reload_inputs=True)
    prepared = served.decode.prepare(**request_for(STALE, (0, 0), sampling_params=topk()), reload_inputs=True)
    assert prepared.page_table.tolist() == [[3, 4, 5, 0, 0, 0, 0, 0], [6, 7, 8, 0, 0, 0, 0, 0]]


def test_changed_parameters_count_only_when_ordered(served, request_for, topk):
    changed = topk(top_p=[0.25, 0.5], seed=[5, 6])
    step = request_for(STALE, (1, 1), sampling_params=changed)
    ignored = served.decode.prepare(**step, **NOTHING)
    assert ignored.prepared_sampling.top_p[:2] == (1.0, 1.0)
    before = served.mesh.counters.calls["copy_host_to_device_tensor"]
    served.traced.decode_forward(**step, reload_inputs=False, reload_sampling_params=True)
    assert served.mesh.counters.calls["copy_host_to_device_tensor"] == before + 3 + 1
    assert served.decode.prepare(**step, **NOTHING).prepared_sampling.top_p[:2] == (0.25, 0.5)


def test_ordered_parameters_are_uploaded_even_when_they_are_equal(served, request_for, topk):
    step = request_for(STALE, (1, 1), sampling_params=topk(seed=[5, 6]))
    before = served.mesh.counters.calls["copy_host_to_device_tensor"]
    served.traced.decode_forward(**step, reload_inputs=False, reload_sampling_params=True)
    assert served.mesh.counters.calls["copy_host_to_device_tensor"] == before + 3 + 1


def test_new_parameters_without_inputs_follow_the_resident_rows_not_stale_positions(served, request_for, topk):
    step = request_for(STALE, (-1, -1), sampling_params=topk(top_k=[2, 3]))
    prepared = served.decode.prepare(**step, reload_inputs=False, reload_sampling_params=True)
    assert prepared.prepared_sampling.active_mask[:2] == (True, True)
    assert prepared.prepared_sampling.top_k[:2] == (2, 3)


def test_a_changed_seed_starts_a_new_stream_and_an_equal_one_goes_on(served, request_for, topk):
    served.traced.decode_forward(
        **request_for(STALE, (1, 1), sampling_params=topk(seed=[5, 77])),
        reload_inputs=False,
        reload_sampling_params=True,
    )
    state = served.decode._state.seed_state
    assert state.request_seeds[:2] == (5, 77)
    assert (state.token_counts[0], state.positions[0]) == (2, 1)


def test_seeds_advance_once_per_sampled_step_whatever_the_host_says(served, request_for, topk):
    state = served.decode._state.seed_state
    for expected in (1, 2, 3):
        served.traced.decode_forward(**request_for(STALE, (0, 90), sampling_params=topk()), **NOTHING)
        assert state.positions[:2] == (expected, expected)


def test_seeds_need_a_buffer_under_the_contract(mesh, request_for, topk):
    from support.tiny_decode_model import TinyDecodeModel, TinySampler

    runtime = decode_runtime(TinyDecodeModel(mesh, sampler=TinySampler(mesh, seeds=False)))
    with pytest.raises(TypeError, match="seed buffer"):
        runtime.validate_submission(runtime.prepare(**request_for(sampling_params=topk()), **FULL))


def test_refused_orders_leave_no_trace(served, request_for, topk):
    decode = served.decode
    calls = served.mesh.counters.calls.copy()
    state = decode._state.seed_state
    before = (state.active, state.positions, decode._preparer.resident.sampling, decode._preparer.resident.feedback)
    for inputs, table, params, reset in product((True, False, None), (True, False), (True, False), (True, False)):
        commands = {
            "reload_inputs": inputs,
            "reload_page_table": table,
            "reload_sampling_params": params,
            "reset_sampling_state": reset,
        }
        legal = not (inputs and table) and not (inputs is None and (table or params or reset))
        legal = legal and not (reset and not inputs)
        try:
            decode.prepare(**request_for(sampling_params=topk()), **commands)
        except ValueError:
            assert not legal, commands
        else:
            assert legal, commands
    after = (state.active, state.positions, decode._preparer.resident.sampling, decode._preparer.resident.feedback)
    assert (after, served.mesh.counters.calls) == (before, calls)
