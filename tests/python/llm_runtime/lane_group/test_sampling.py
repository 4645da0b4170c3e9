# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters, token histories and slot remaps follow their rows into the lanes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from llm_runtime.prefill.sampling_params import SamplingParams

TABLE = np.zeros((4, 1), np.int32)
GRID = np.arange(4)


def params(**fields):
    return SamplingParams(**{"temperature": 0.0, "top_k": 1, "top_p": 1.0, **fields})


def prefill(group, slots, **call):
    rows = len(slots)
    return group.prefill_forward(10 + np.arange(rows)[:, None], TABLE[:rows], empty_slots=slots, **call)


def decode(group, start_pos=GRID, **call):
    return group.decode_forward(10 + GRID, np.asarray(start_pos), TABLE, **call)


@pytest.mark.covers("LAN-04")
def test_every_field_of_a_full_grid_follows_its_row(recording):
    group, lanes, _ = recording()
    rows = SamplingParams(
        temperature=[0.1, 0.2, 0.3, 0.4],
        top_k=(1, 2, 3, 4),
        top_p=np.array([0.5, 0.6, 0.7, 0.8]),
        presence_penalty=[1.0, 2.0, 3.0, 4.0],
        frequency_penalty=[5.0, 6.0, 7.0, 8.0],
        repetition_penalty=[1.1, 1.2, 1.3, 1.4],
        seed=[100, 101, 102, 103],
        enable_log_probs=[False] * 4,
        num_logprobs=[9, 8, 7, 6],
    )
    decode(group, sampling_params=rows, execution=("target 0", "target 1"))
    for lane, start in ((0, 0), (1, 2)):
        call = lanes[lane].last("decode")
        assert call["execution"] == f"target {lane}"
        for item in dataclasses.fields(rows):
            whole, part = getattr(rows, item.name), getattr(call["sampling_params"], item.name)
            assert type(part) is type(whole)
            assert list(part) == list(whole)[start : start + 2]
    assert lanes[0].last("decode")["sampling_params"].seed == [100, 101]
    assert lanes[1].last("decode")["sampling_params"].seed == [102, 103]


@pytest.mark.covers("LAN-05")
def test_gaps_in_the_grid(recording):
    group, lanes, _ = recording()
    prefill(
        group,
        [1, 3],
        sampling_params=params(temperature=[0.5, 0.6], seed=[101, 103]),
        prompt_tokens=np.array([[20, 21], [30, 31]]),
        output_tokens=[[40, 41], [50]],
    )
    for lane, seed in ((0, 101), (1, 103)):
        call = lanes[lane].last("prefill")
        assert len(call["tokens"]) == 1
        assert call["empty_slots"] == [1]
        assert call["sampling_params"].seed == [seed]
    assert lanes[0].last("prefill")["prompt_tokens"].tolist() == [[-1, -1], [20, 21]]
    assert lanes[1].last("prefill")["prompt_tokens"].tolist() == [[-1, -1], [30, 31]]
    assert lanes[0].last("prefill")["output_tokens"] == [[-1, -1], [40, 41]]
    assert lanes[1].last("prefill")["output_tokens"] == [[-1, -1], [50]]
    tokens, log_probs = group.decode_forward(
        np.array([0, 11, 0, 13]),
        np.array([-1, 2, -1, 4]),
        TABLE,
        sampling_params=params(seed=[None, 101, None, 103]),
    )
    assert tokens.tolist() == [0, 11, 100, 113]
    assert log_probs is None
    assert [lane.last("decode")["sampling_params"].seed for lane in lanes] == [[None, 101], [None, 103]]


@pytest.mark.covers("LAN-06")
def test_singletons_reach_every_lane_of_one_row_unchanged(recording):
    group, lanes, _ = recording(capacity=1)
    one_each = params(temperature=[0.7], top_k=np.array([8]), top_p=(0.4,))
    tokens, _ = prefill(group, [0, 1], sampling_params=one_each)
    assert tokens.tolist() == [10, 111]
    for lane in lanes:
        part = lane.last("prefill")["sampling_params"]
        assert part.temperature == [0.7]
        assert isinstance(part.top_k, np.ndarray) and part.top_k.tolist() == [8]
        assert part.top_p == (0.4,)


def test_singletons_are_repeated_for_the_rows_of_a_lane(recording):
    group, lanes, _ = recording()
    fields = {"temperature": [0.7], "top_k": np.array([8]), "top_p": (0.4,), "seed": None, "presence_penalty": 0.5}
    prefill(group, [3, 0, 2], sampling_params=fields)
    part = lanes[1].last("prefill")["sampling_params"]
    assert type(part) is dict
    assert part["temperature"] == [0.7, 0.7]
    assert part["top_k"].tolist() == [8, 8]
    assert part["top_p"] == (0.4, 0.4)
    assert (part["seed"], part["presence_penalty"]) == (None, 0.5)


@pytest.mark.covers("D12")
def test_interleaved_rows_take_their_parameters_along(recording):
    group, lanes, _ = recording()
    prefill(group, [2, 0, 3, 1], sampling_params=params(temperature=[0.1, 0.2, 0.3, 0.4], top_k=[7]))
    assert lanes[0].last("prefill")["sampling_params"].temperature == [0.2, 0.4]
    assert lanes[1].last("prefill")["sampling_params"].temperature == [0.1, 0.3]
    assert [lane.last("prefill")["sampling_params"].top_k for lane in lanes] == [[7, 7], [7, 7]]


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (params(temperature=[0.1, 0.2, 0.3]), ValueError, "temperature has 3 rows for the 4 rows"),
        (params(seed=[]), ValueError, "sampling field seed is empty"),
        ([0.5], TypeError, "sampling_params must be a dataclass instance or a dict, got list"),
        (SamplingParams, TypeError, "got type"),
    ],
)
@pytest.mark.parametrize("operation", ["prefill", "decode"])
def test_parameters_that_fit_no_row_are_refused(recording, operation, bad, error, words):
    group, _, log = recording()
    with pytest.raises(error, match=words):
        prefill(group, [0, 1, 2, 3], sampling_params=bad) if operation == "prefill" else decode(
            group, sampling_params=bad
        )
    assert log == []
    assert not group.terminal


@pytest.mark.parametrize(
    ("wanted", "row"), [(True, 0), ([False, False, True, False], 2), ((True,), 0), (np.array([0, 0, 0, 1]), 3)]
)
def test_log_probabilities_are_refused_before_any_lane(recording, wanted, row):
    group, _, log = recording()
    with pytest.raises(ValueError, match=f"row {row}: enable_log_probs asks for log-probabilities"):
        prefill(group, [2, 0, 3, 1], sampling_params=params(enable_log_probs=wanted))
    with pytest.raises(ValueError, match=f"slot {row}: enable_log_probs"):
        decode(group, sampling_params=params(enable_log_probs=wanted))
    with pytest.raises(ValueError, match=f"slot {row}: enable_log_probs"):
        group.compile_decode(GRID, GRID, TABLE, sampling_params=params(enable_log_probs=wanted))
    assert log == []
    assert not group.terminal


def test_idle_slots_may_carry_senseless_log_probability_flags(recording):
    group, _, _ = recording()
    decode(group, [0, -1, 0, -1], sampling_params=params(enable_log_probs=[False, True, False, True]))


def test_histories_by_slot_by_row_and_for_all(recording):
    group, lanes, _ = recording()
    by_slot = np.arange(8).reshape(4, 2)
    prefill(group, [3, 0, 2], prompt_tokens=by_slot, output_tokens=((7,),))
    assert lanes[0].last("prefill")["prompt_tokens"].tolist() == [[0, 1], [-1, -1]]
    assert lanes[1].last("prefill")["prompt_tokens"].tolist() == [[4, 5], [6, 7]]
    assert lanes[0].last("prefill")["output_tokens"] == ((7,), (-1,))
    prefill(group, [3, 0, 2], prompt_tokens=np.array([[True], [False], [True]]))
    assert lanes[0].last("prefill")["prompt_tokens"].tolist() == [[False], [False]]
    assert lanes[1].last("prefill")["prompt_tokens"].tolist() == [[True], [True]]
    decode(group, prompt_tokens=by_slot, output_tokens=[[5]])
    assert lanes[1].last("decode")["prompt_tokens"].tolist() == [[4, 5], [6, 7]]
    assert lanes[1].last("decode")["output_tokens"] == [[5]]
    prefill(group, [0])
    assert "prompt_tokens" not in lanes[0].last("prefill")


@pytest.mark.parametrize(
    ("history", "error", "words"),
    [
        (np.zeros((3, 1)), ValueError, "prompt_tokens has 3 rows; expected 1, the 2 rows of the call, or the 4 slots"),
        ({0: [1]}, TypeError, "prompt_tokens must be an array"),
        (np.array(3), ValueError, "prompt_tokens must have a row dimension"),
    ],
)
def test_histories_that_fit_no_rows_are_refused(recording, history, error, words):
    group, _, log = recording()
    with pytest.raises(error, match=words):
        prefill(group, [0, 3], prompt_tokens=history)
    with pytest.raises(ValueError, match="output_tokens has 3 rows; expected 1, or the 4 slots of the group"):
        decode(group, output_tokens=[[1], [2], [3]])
    assert log == []


@pytest.mark.covers("LAN-03")
def test_a_remap_of_the_group_is_cut_by_lane(recording):
    group, lanes, _ = recording()
    for remap in ((1, 0, 3, 2), [1, 0, 3, 2], np.array([1, 0, 3, 2], np.int32)):
        decode(
            group,
            slot_remap=remap,
            reset_batch=True,
            prompt_tokens=[[100], [101], [102], [103]],
            output_tokens=[[200], [201], [202], [203]],
        )
        for lane, first in ((lanes[0], 0), (lanes[1], 2)):
            call = lane.last("decode")
            assert type(call["slot_remap"]) is type(remap)
            assert list(call["slot_remap"]) == [1, 0]
            assert call["reset_batch"] is True
            assert call["prompt_tokens"] == [[100 + first], [101 + first]]
            assert call["output_tokens"] == [[200 + first], [201 + first]]
        assert list(remap) == [1, 0, 3, 2]


def test_a_remap_of_one_lane_serves_every_lane(recording):
    group, lanes, _ = recording()
    prefill(group, [0, 2], slot_remap=[1, 0])
    assert [lane.last("prefill")["slot_remap"] for lane in lanes] == [[1, 0], [1, 0]]


@pytest.mark.covers("L02")
@pytest.mark.parametrize(
    ("remap", "error", "words"),
    [
        ([0, 1, 2, 1], ValueError, r"slot_remap\[3\] = 1 is outside the slots \[2, 4\) of its lane; a request changes"),
        ([0, 4, 2, 3], ValueError, r"slot_remap\[1\] = 4 is outside the slots \[0, 2\)"),
        ([0, 2], ValueError, r"slot_remap\[1\] = 2 is outside the slots \[0, 2\)"),
        ((-1, 0), ValueError, r"slot_remap\[0\] = -1"),
        ([0, 1, 2], ValueError, "slot_remap has 3 entries; expected the 2 slots of a lane or the 4 slots"),
        (np.array(1), ValueError, "slot_remap must have one entry per slot"),
        ([0.0, 1.0], TypeError, "slot_remap must hold integers"),
        ([True, False], TypeError, "slot_remap must hold integers"),
        ("01", TypeError, "slot_remap must be a host array"),
    ],
)
def test_remaps_that_leave_a_lane_are_refused(recording, remap, error, words):
    group, _, log = recording()
    with pytest.raises(error, match=words):
        decode(group, slot_remap=remap)
    with pytest.raises(error, match=words):
        prefill(group, [0, 1], slot_remap=remap)
    assert log == []
    assert not group.terminal


@pytest.mark.torch
def test_torch_fields_stay_torch(recording):
    torch = pytest.importorskip("torch")
    group, lanes, _ = recording()
    rows = params(temperature=torch.tensor([0.1, 0.2, 0.3, 0.4]), top_k=torch.tensor([8]), seed=torch.tensor(5))
    tokens, _ = group.decode_forward(
        torch.arange(4),
        torch.arange(4),
        torch.zeros((4, 1), dtype=torch.int32),
        sampling_params=rows,
        slot_remap=torch.tensor([1, 0, 3, 2]),
        prompt_tokens=torch.arange(8).reshape(4, 2),
    )
    assert isinstance(tokens, torch.Tensor)
    assert tokens.tolist() == [0, 1, 102, 103]
    call = lanes[1].last("decode")
    for value, wanted in (
        (call["tokens"], [2, 3]),
        (call["slot_remap"], [1, 0]),
        (call["prompt_tokens"], [[4, 5], [6, 7]]),
        (call["sampling_params"].top_k, [8, 8]),
        (call["sampling_params"].seed, 5),
    ):
        assert isinstance(value, torch.Tensor)
        assert value.tolist() == wanted
