# SPDX-License-Identifier: Apache-2.0
"""Rows to lanes by slot: order inside a lane, what each lane gets, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.lane_group.routing import per_lane, route_rows, row_values
from support.lanes_model import prompts_of


@given(st.integers(1, 5), st.integers(1, 8), st.data())
def test_every_row_reaches_its_slot_once_and_keeps_its_order(lane_count, capacity, data):
    slots = data.draw(st.permutations(range(lane_count * capacity)))[: data.draw(st.integers(0, lane_count * capacity))]
    routed = route_rows(slots, row_count=len(slots), lane_count=lane_count, lane_capacity=capacity)
    assert [part.lane for part in routed] == sorted({slot // capacity for slot in slots})
    assert sorted(row for part in routed for row in part.rows) == list(range(len(slots)))
    for part in routed:
        assert part.rows == sorted(part.rows)
        assert [part.lane * capacity + slot for slot in part.slots] == [slots[row] for row in part.rows]


def test_rows_take_the_first_slots_when_none_are_named():
    routed = route_rows(None, row_count=3, lane_count=2, lane_capacity=2)
    assert [(part.lane, part.rows, part.slots) for part in routed] == [(0, [0, 1], [0, 1]), (1, [2], [0])]


@pytest.mark.covers("P17")
def test_slots_of_two_lanes_reach_their_own_lane(recording):
    group, lanes, _ = recording(capacity=8)
    group.prefill_forward(np.array([[10], [11]]), np.array([[1], [2]], np.int32), empty_slots=[5, 9])
    assert lanes[0].last("prefill")["empty_slots"] == [5]
    assert lanes[0].last("prefill")["page_table"].tolist() == [[1]]
    assert lanes[1].last("prefill")["empty_slots"] == [1]
    assert lanes[1].last("prefill")["page_table"].tolist() == [[2]]


@pytest.mark.covers("D11")
@pytest.mark.parametrize(
    ("slots", "error", "words"),
    [
        ([0, 0], ValueError, "rows 0 and 1 both name slot 0"),
        ([1, 9], ValueError, r"row 1: slot 9 is outside the group's slots \[0, 4\)"),
        ([-1, 0], ValueError, r"row 0: slot -1 is outside"),
        ([0, 4], ValueError, "row 1: slot 4 is outside"),
        ([0], ValueError, "empty_slots has 1 entries for 2 rows"),
        ([0, 1, 2], ValueError, "empty_slots has 3 entries for 2 rows"),
        ([0.0, 1.0], TypeError, "empty_slots must hold integers"),
        ([True, 2], TypeError, "empty_slots must hold integers"),
        ("01", TypeError, "empty_slots"),
    ],
)
def test_bad_slots_are_refused_and_the_group_goes_on(recording, slots, error, words):
    group, _, log = recording()
    tokens, table = np.array([[10], [11]]), np.zeros((2, 1), np.int32)
    with pytest.raises(error, match=words):
        group.prefill_forward(tokens, table, empty_slots=slots)
    assert log == []
    assert not group.terminal
    assert group.prefill_forward(tokens, table, empty_slots=[2, 0])[0].tolist() == [110, 11]


@pytest.mark.covers("D11")
def test_more_rows_than_slots_are_refused(recording):
    group, _, log = recording(capacity=4)
    with pytest.raises(ValueError, match=r"row 8: slot 8 is outside the group's slots \[0, 8\) \(2 lanes of 4\)"):
        group.prefill_forward(np.zeros((9, 1), np.int64), np.zeros((9, 1), np.int32))
    assert log == []


def test_slots_as_an_array(recording):
    group, lanes, _ = recording()
    tokens, table = np.array([[10], [11]]), np.zeros((2, 1), np.int32)
    assert group.prefill_forward(tokens, table, empty_slots=np.array([2, 0]))[0].tolist() == [110, 11]
    assert lanes[1].last("prefill")["empty_slots"] == [0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ({"tokens": [[1], [2]]}, TypeError, "tokens must be a host array"),
        ({"tokens": np.array(1)}, TypeError, "tokens must have a batch dimension"),
        ({"page_table": [[1], [2]]}, TypeError, "page_table must be a host array"),
        ({"page_table": np.zeros((3, 1), np.int32)}, ValueError, "page_table has 3 rows, tokens has 2"),
        ({"prompt_lens": np.array([1])}, ValueError, "prompt_lens has 1 entries for 2 rows"),
        ({"start_pos": [0, 0, 0]}, ValueError, "start_pos has 3 entries for 2 rows"),
        ({"start_pos": np.array(0)}, ValueError, "start_pos has 1 entries for 2 rows"),
        ({"prompt_lens": {0: 1}}, TypeError, "prompt_lens must be a host array"),
        ({"kv_cache": ["one"]}, ValueError, "kv_cache has 1 entries, the group has 2 lanes"),
        ({"kv_cache": "ab"}, TypeError, "kv_cache must be a list or tuple with one entry per lane, got str"),
        ({"execution": object()}, TypeError, "execution must be a list or tuple"),
        ({"execution": (None,) * 3}, ValueError, "execution has 3 entries"),
    ],
)
def test_bad_arguments_are_refused_before_any_lane(recording, call, error, words):
    group, _, log = recording()
    with pytest.raises(error, match=words):
        group.prefill_forward(**{"tokens": np.array([[1], [2]]), "page_table": np.zeros((2, 1), np.int32), **call})
    assert log == []
    assert not group.terminal


def test_values_per_row_keep_their_container(recording):
    group, lanes, _ = recording()
    tokens, table = np.array([[10, 0], [11, 0]]), np.zeros((2, 1), np.int32)
    group.prefill_forward(tokens, table, empty_slots=[3, 1], prompt_lens=[1, 2], start_pos=np.array([0, 5]))
    assert lanes[0].last("prefill")["prompt_lens"] == [2]
    assert lanes[1].last("prefill")["prompt_lens"] == [1]
    assert lanes[0].last("prefill")["start_pos"].tolist() == [5]


def test_a_scalar_array_serves_a_call_of_one_row():
    assert row_values(np.array(7), 1, name="start_pos").tolist() == [7]


def test_none_means_none_for_every_lane():
    assert list(per_lane(None, 3, name="kv_cache")) == [None, None, None]


@pytest.mark.covers("P15", "P16")
def test_results_follow_rows_and_writes_follow_table_rows(eager_lanes, one_lane):
    """Slots permuted over both lanes: row 0 comes back first and fills the blocks of its own table row."""
    prompts = prompts_of([33, 5, 20, 64], seed=7)
    for mesh in eager_lanes.meshes:
        mesh.ledger.clear()
    logits = eager_lanes.serving.prefill(prompts, [3, 1, 0, 2])
    np.testing.assert_allclose(logits, one_lane.serving.prefill(prompts, [0, 1, 2, 3]), atol=1e-4)
    table = eager_lanes.serving.table
    wanted = [
        {(table[1][0], offset) for offset in range(5)} | {(table[0][0], offset) for offset in range(20)},
        {(table[3][position // 32], position % 32) for position in range(33)}
        | {(table[2][position // 32], position % 32) for position in range(64)},
    ]
    for mesh, expected in zip(eager_lanes.meshes, wanted, strict=True):
        written = {(write.block, write.offset) for write in mesh.ledger.writes}
        assert expected <= written
        assert {block for block, _ in written} == {block for block, _ in expected}
