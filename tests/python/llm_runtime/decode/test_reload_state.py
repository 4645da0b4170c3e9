# SPDX-License-Identifier: Apache-2.0
"""The explicit reload contract: what stays resident between steps, moves with a remap, or needs a reset."""

from __future__ import annotations

import pytest

from llm_runtime.seed_manager import device_seed
from support.tiny_decode_model import DecodeLane, TinyDecodeModel

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


@pytest.mark.parametrize("between", ["host", "prefill-like", "eager"])
def test_a_resident_step_needs_a_resident_predecessor(served, request_for, topk, greedy, between):
    decode, traced = served.decode, served.traced
    step = request_for(STALE, (1, 1), sampling_params=topk())
    if between == "host":
        traced.decode_forward(**request_for((2, 3), (1, 1)), reload_inputs=True)
        error, match = ValueError, "reload_inputs"
    elif between == "eager":
        call = request_for((2, 3), (1, 1), sampling_params=topk())
        decode.consume(decode.invoke(decode.prepare(**call, reload_inputs=True)))
        error, match = ValueError, "reload_inputs"
    else:
        traced.decode_forward(**request_for((2, 3), (1, 1), sampling_params=greedy()), **FULL)
        error, match = RuntimeError, "resident"
        step = request_for(STALE, (1, 1), sampling_params=topk())
    writes = len(served.mesh.ledger.writes)
    with pytest.raises(error, match=match):
        traced.decode_forward(
            **step, **NOTHING, **({"reload_sampling_params": True} if between == "prefill-like" else {})
        )
    assert len(served.mesh.ledger.writes) == writes
    traced.decode_forward(**request_for((2, 3), (1, 1), sampling_params=topk()), **FULL)


def test_a_host_sampled_step_keeps_dormant_parameters(served, request_for, topk):
    served.traced.decode_forward(**request_for((2, 3), (1, 1)), reload_inputs=True)
    step = request_for((4, 5), (2, 2), sampling_params=topk(top_k=[9, 9]))
    prepared = served.decode.prepare(**step, reload_inputs=True)
    assert prepared.prepared_sampling.top_k[:2] == (1, 1)
    result = served.traced.decode_forward(**step, reload_inputs=True)
    assert tokens_of(result) == [6, 7]


@pytest.mark.covers("D09")
@pytest.mark.parametrize("sampled", [True, False])
def test_a_remap_moves_state_once_on_every_path(served, request_for, topk, sampled):
    state = served.decode._state.seed_state
    path = {"sampling_params": topk()} if sampled else {}
    step = request_for((0, 2), (-1, 1), **path)
    if sampled:
        step["reload_sampling_params"] = False
    served.traced.decode_forward(**step, reload_inputs=True, slot_remap=[0, 0])
    assert state.active[:2] == (False, True)
    assert state.request_seeds[:2] == (None, 5)
    resident = served.decode.prepare(**request_for((0, 3), (-1, 2), sampling_params=topk()), reload_inputs=True)
    assert resident.prepared_sampling.active_mask[:2] == (False, True)
    result = served.traced.decode_forward(**request_for((0, 3), (-1, 2), sampling_params=topk()), reload_inputs=True)
    assert tokens_of(result)[1] == 5
    assert served.model.sampling.config.seeds.current()[1] == device_seed(5, 2)


def test_a_remap_that_empties_the_lane_is_refused(served, request_for, topk):
    state = served.decode._state.seed_state
    call = request_for((1, 0), (1, -1), sampling_params=topk(seed=[5, None]))
    served.traced.decode_forward(**call, **FULL)
    with pytest.raises(ValueError, match="no active slot"):
        served.decode.prepare(
            **request_for((1, 0), (1, -1), sampling_params=topk()), reload_inputs=True, slot_remap=[1, 1]
        )
    assert state.active[:2] == (True, False)


def test_the_active_rows_change_only_with_a_reset(served, request_for, topk):
    step = request_for((3, 0), (1, -1), sampling_params=topk())
    with pytest.raises(ValueError, match=r"\[0, 1\] to \[0\].*reset_sampling_state"):
        served.decode.prepare(**step, reload_inputs=True)
    with pytest.raises(RuntimeError, match=r"slots \[0, 1\].*slots \[0\].*reset_sampling_state"):
        served.traced.decode_forward(**step, reload_inputs=True, reload_sampling_params=True)
    with pytest.raises(ValueError, match="active slot"):
        served.decode.prepare(
            **request_for((3, 0), (-1, -1), sampling_params=topk()), reload_inputs=True, reset_sampling_state=True
        )
    result = served.traced.decode_forward(**step, reload_inputs=True, reset_sampling_state=True)
    assert tokens_of(result)[0] == 4
    assert served.decode._state.seed_state.active[:2] == (True, False)


def test_a_reset_takes_the_callers_history_as_it_is(served, request_for, topk):
    history = [[1], [2], [3]]
    prepared = served.decode.prepare(
        **request_for(sampling_params=topk()),
        reload_inputs=True,
        reset_sampling_state=True,
        prompt_tokens=history,
        output_tokens=None,
    )
    assert prepared.prepared_sampling.prompt_tokens is history
    assert prepared.prepared_sampling.output_tokens is None


def test_argmax_restores_default_seeds_only_when_parameters_change(served, request_for, greedy, topk):
    seeds = served.model.sampling.config.seeds
    assert seeds.current()[:2] == [device_seed(5, 0), device_seed(6, 0)]
    served.traced.decode_forward(**request_for((1, 2), (1, 1), sampling_params=greedy()), **FULL)
    assert seeds.current() == list(range(1, 33))
    updates = len(seeds.updates)
    served.traced.decode_forward(**request_for(STALE, (1, 1), sampling_params=greedy()), **NOTHING)
    assert len(seeds.updates) == updates


@pytest.mark.covers("D06")
@pytest.mark.parametrize("order", [FULL, {"reload_inputs": True}, {"reset_batch": True}])
def test_the_host_takes_over_only_after_every_result_was_processed(deferred_lane, request_for, topk, order):
    lane, params = deferred_lane, topk(seed=[5, 6])
    lane.capture(request_for(sampling_params=params))
    lane.traced.decode_forward(**request_for((1, 2), (0, 0), sampling_params=params), **FULL)
    steady = request_for(STALE, (1, 1), sampling_params=params)
    host, _ = lane.decode.read_decode_output(
        lane.traced.decode_forward(**steady, **NOTHING, read_from_device=False), async_read=True
    )
    syncs = lane.mesh.counters.syncs
    after = lane.traced.decode_forward(**steady, **NOTHING, read_from_device=False)
    assert lane.mesh.counters.syncs == syncs
    with pytest.raises(RuntimeError, match="not complete"):
        host[0].to_numpy()
    second, _ = lane.decode.read_decode_output(after, async_read=True)
    take_over = {**request_for((8, 9), (2, 2), sampling_params=params), **order, "read_from_device": False}
    for outstanding, (value, tokens) in zip((2, 1), ((second, [4, 5]), (host, [2, 3])), strict=True):
        calls = lane.mesh.counters.calls.copy()
        with pytest.raises(RuntimeError, match=f"{outstanding} decode output.* have not been processed"):
            lane.traced.decode_forward(**take_over)
        assert lane.mesh.counters.calls == calls
        assert tokens_of(lane.decode.process_decode_output_host(value, is_tokens=True)) == tokens
    raw = lane.traced.decode_forward(**take_over)
    assert tokens_of(lane.decode.process_decode_output_host(raw, is_tokens=True)) == [10, 11]


@pytest.mark.covers("D03")
@pytest.mark.parametrize("commands", [{"reset_batch": True}, FULL])
def test_a_row_that_joins_takes_its_host_token_and_no_row_repeats_one(deferred_mesh, request_for, topk, commands):
    lane = DecodeLane(TinyDecodeModel(deferred_mesh, lane_capacity=4))
    params, table = topk(4), [[1], [2], [3], [4]]
    first = request_for((1, 2, 3, 0), (0, 0, 0, -1), table, sampling_params=params)
    lane.capture(first)
    one = lane.traced.decode_forward(**first, **commands)[0].tolist()
    follow = request_for((*one[:3], 0), (1, 1, 1, -1), table, sampling_params=params)
    steady = {} if "reset_batch" in commands else NOTHING
    raw = lane.traced.decode_forward(**follow, **steady, read_from_device=False)
    host, _ = lane.decode.read_decode_output(raw, async_read=True)
    # The scheduler has not seen what that step sampled, and would give the three old rows their old tokens again.
    joined = request_for((*one[:3], 7), (2, 2, 2, 0), table, sampling_params=params)
    with pytest.raises(RuntimeError, match="process or drain"):
        lane.traced.decode_forward(**joined, **commands)
    two = tokens_of(lane.decode.process_decode_output_host(host, is_tokens=True))
    joined["tokens"][:3] = two[:3]
    three = tokens_of(lane.traced.decode_forward(**joined, **commands))
    assert (one[:3], two[:3], three) == ([1, 2, 3], [2, 3, 4], [4, 5, 6, 7])
    lane.close()
