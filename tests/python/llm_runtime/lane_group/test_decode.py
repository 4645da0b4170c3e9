# SPDX-License-Identifier: Apache-2.0
"""Decode over lanes: contiguous slots, commands, idle lanes, and the merged result."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.prefill.sampling_params import SamplingParams

TOKENS = 10 + np.arange(4)
POSITIONS = np.arange(4)
TABLE = np.arange(8, dtype=np.int32).reshape(4, 2)
GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)


def decode(group, positions=POSITIONS, **call):
    return group.decode_forward(TOKENS, np.asarray(positions), TABLE, **call)


@pytest.mark.covers("LAN-02", "D05")
def test_slots_are_cut_into_lanes(recording):
    group, lanes, log = recording()
    sampling = SamplingParams(temperature=[0.1, 0.2, 0.3, 0.4], top_k=1, top_p=0.9)
    tokens, log_probs = decode(group, sampling_params=sampling)
    assert tokens.tolist() == [10, 11, 112, 113]
    assert tokens.dtype == np.int64
    assert log_probs is None
    first, second = (lane.last("decode") for lane in lanes)
    assert first["tokens"].tolist() == [10, 11]
    assert second["tokens"].tolist() == [12, 13]
    assert second["start_pos"].tolist() == [2, 3]
    assert second["page_table"].tolist() == [[4, 5], [6, 7]]
    assert first["sampling_params"].temperature == [0.1, 0.2]
    assert second["sampling_params"].temperature == [0.3, 0.4]
    assert first["sampling_params"].top_p == second["sampling_params"].top_p == 0.9
    assert log == [("decode", 0), ("decode", 1)]


@pytest.mark.covers("LAN-07")
def test_raw_outputs_stay_with_their_lane(recording):
    group, _, _ = recording()
    assert decode(group, read_from_device=False) == ["raw 0", "raw 1"]


@pytest.mark.covers("LAN-31")
def test_commands_reach_every_lane_unchanged(recording):
    group, lanes, _ = recording()
    decode(group, [-1, 0, -1, 0], reset_batch=True)
    for lane in lanes:
        call = lane.last("decode")
        assert call["reset_batch"] is True
        assert "reload_inputs" not in call
    commands = {
        "reload_inputs": True,
        "reload_page_table": False,
        "reload_sampling_params": True,
        "reset_sampling_state": True,
    }
    remap = np.array([1, 0, 2, 3])
    decode(group, sampling_params=GREEDY, slot_remap=remap, **commands)
    for lane in lanes:
        call = lane.last("decode")
        assert {name: call[name] for name in commands} == commands
        assert call["reset_batch"] is False
    assert remap.tolist() == [1, 0, 2, 3]
    decode(group, reload_page_table=True)
    assert lanes[0].last("decode")["reload_inputs"] is None
    assert lanes[0].last("decode")["reload_page_table"] is True


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ({"tokens": TOKENS[:2]}, ValueError, "tokens has 2 rows, the group of 2 lanes has 4"),
        ({"start_pos": np.arange(5)}, ValueError, "start_pos has 5 rows, the group of 2 lanes has 4"),
        ({"page_table": TABLE[:3]}, ValueError, "page_table has 3 rows"),
        ({"tokens": TOKENS.tolist()}, TypeError, "tokens must be a host array"),
        ({"start_pos": None}, TypeError, "start_pos must be a host array"),
        ({"page_table": np.array(0)}, TypeError, "page_table must have a batch dimension"),
        ({"kv_cache": [1, 2, 3]}, ValueError, "kv_cache has 3 entries, the group has 2 lanes"),
        ({"execution": "target"}, TypeError, "execution must be a list or tuple"),
    ],
)
def test_batches_that_are_not_the_whole_group_are_refused(recording, call, error, words):
    group, _, log = recording()
    arguments = {"tokens": TOKENS, "start_pos": POSITIONS, "page_table": TABLE, **call}
    with pytest.raises(error, match=words):
        group.decode_forward(**arguments)
    with pytest.raises(error, match=words):
        group.compile_decode(**arguments)
    assert log == []
    assert not group.terminal


@pytest.mark.covers("LAN-24")
def test_log_probabilities_of_a_lane_end_the_group(recording):
    group, lanes, log = recording()
    lanes[1].log_probs = np.zeros(2, np.float32)
    with pytest.raises(NotImplementedError, match="log probabilities"):
        decode(group, sampling_params=GREEDY)
    assert log == [("decode", 0), ("decode", 1), ("cleanup", 0), ("cleanup", 1)]
    assert group.terminal


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ((np.zeros(2, np.int64), None, None), TypeError, "lane 1 returned 3 values"),
        ("text", TypeError, "lane 1 returned a decode output without rows"),
        (np.array(3), TypeError, "lane 1 returned a decode output without rows: a scalar"),
        (np.zeros(3, np.int64), ValueError, "lane 1 returned 3 rows for its 2 rows"),
    ],
)
def test_results_that_do_not_fit_end_the_group(recording, result, error, words):
    group, lanes, _ = recording()
    lanes[1].results["decode"] = result
    with pytest.raises(error, match=words):
        decode(group)
    assert group.terminal


def test_logits_keep_their_shape(recording):
    group, lanes, _ = recording()
    for lane in lanes:
        lane.results["decode"] = (np.full((2, 1, 3), lane.index, np.float32), None)
    logits, _ = decode(group)
    assert logits.shape == (4, 1, 3)
    assert logits[:, 0, 0].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_a_sampled_step_leaves_idle_lanes_out(recording):
    group, _, log = recording(3)
    table, tokens = np.zeros((6, 1), np.int32), np.arange(6)
    out, _ = group.decode_forward(tokens, np.array([-1, -1, 4, -1, -1, -1]), table, sampling_params=GREEDY)
    assert out.tolist() == [0, 0, 102, 103, 0, 0]
    raw = group.decode_forward(
        tokens, np.array([-1, -1, 5, -1, -1, -1]), table, sampling_params=GREEDY, read_from_device=False
    )
    assert raw == [None, "raw 1", None]
    host, events = group.read_decode_output(raw, async_read=True)
    assert host == [None, "host of raw 1", None]
    assert events == ["event 1"]
    assert group.process_decode_output_host(host, is_tokens=True)[0].tolist() == [0, 0, 2, 3, 0, 0]
    assert {lane for _, lane in log} == {1}


def test_logits_steps_call_idle_lanes_too(recording):
    group, _, log = recording()
    decode(group, [-1, -1, 3, 4])
    assert log == [("decode", 0), ("decode", 1)]


def test_stale_positions_do_not_change_which_lanes_are_idle(recording):
    """While inputs stay on the device, host positions say nothing: what ran before runs on."""
    group, _, log = recording()
    reload = {"reload_inputs": True, "reload_sampling_params": True, "reset_sampling_state": True}
    decode(group, [0, 0, -1, -1], sampling_params=GREEDY, **reload)
    decode(group, [-1, -1, -1, -1], sampling_params=GREEDY, reload_inputs=False)
    decode(group, [0, 0, -1, -1], sampling_params=GREEDY, reload_inputs=False)
    assert log == [("decode", 0)] * 3
    decode(group, [0, 0, 5, -1], sampling_params=GREEDY, **reload)
    decode(group, [1, 0, -1, -1], sampling_params=GREEDY, reload_inputs=False)
    assert log[3:] == [("decode", 0), ("decode", 1)] * 2


def test_without_any_active_slot_every_lane_is_asked(recording, eager_lanes):
    """A single lane refuses to sample nothing; so does the group."""
    group, _, log = recording()
    decode(group, [-1, -1, -1, -1], sampling_params=GREEDY)
    assert log == [("decode", 0), ("decode", 1)]
    with pytest.raises(ValueError, match="at least one active slot") as caught:
        eager_lanes.serving.step({}, {}, sampling_params=GREEDY)
    assert caught.value.lane == 0
    assert not eager_lanes.group.terminal
