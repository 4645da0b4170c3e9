# SPDX-License-Identifier: Apache-2.0
"""Decode page tables: normalisation, object identity, change detection (chapter 20, section 4.3)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime._core import DecodeBatch, DecodeTables
from oracle.decode_oracle import DecodeOracle, Layout

BLOCK = 32


def tables(lane_capacity: int = 2, *, raw: int = 8, width: int = 8) -> DecodeTables:
    return DecodeTables(
        lane_capacity=lane_capacity, block_size=BLOCK, raw_capacity_width=raw, decode_width=width
    )


def prepare(owner: DecodeTables, start_pos: Any, page_table: Any, **commands: Any) -> DecodeBatch:
    given_commands = {"device_feedback": False, "reload_inputs": None, "reload_page_table": False, **commands}
    return owner.prepare(
        start_pos=np.asarray(start_pos, dtype=np.int32),
        page_table=page_table if isinstance(page_table, np.ndarray) else np.array(page_table, dtype=np.int32),
        **given_commands,
    )


def test_table_is_a_read_only_int32_array_of_decode_width() -> None:
    batch = prepare(tables(), [33, -1], [[3, 4], [6, 7]])
    assert batch.page_table.dtype == np.int32
    assert batch.page_table.tolist() == [[3, 4, 0, 0, 0, 0, 0, 0], [0] * 8]
    assert not batch.page_table.flags.writeable
    assert batch.active_slots == (0,)
    with pytest.raises(ValueError, match="read-only"):
        batch.page_table[0, 0] = 1
    with pytest.raises(AttributeError):
        batch.page_table_changed = False  # type: ignore[misc]


@pytest.mark.covers("DEC-36")
def test_position_inside_the_same_block_reuses_the_table_object() -> None:
    owner = tables()
    source = np.array([[3, 4], [6, 7]], dtype=np.int32)
    first = prepare(owner, [0, -1], source)
    second = prepare(owner, [1, -1], source)
    assert second.page_table is first.page_table
    assert second is first


@pytest.mark.covers("DEC-37")
def test_edit_in_place_is_seen_and_does_not_reach_the_old_table() -> None:
    owner = tables()
    source = np.array([[3, 4], [6, 7]], dtype=np.int32)
    first = prepare(owner, [0, -1], source)
    source[0, 0] = 9
    second = prepare(owner, [0, -1], source)
    assert second.page_table is not first.page_table
    assert second.page_table[0, 0] == 9
    assert first.page_table[0, 0] == 3


@pytest.mark.covers("DEC-38")
def test_second_block_makes_another_table() -> None:
    owner = tables()
    one = prepare(owner, [0, -1], [[3, 4], [6, 7]])
    two = prepare(owner, [32, -1], [[3, 4], [6, 7]])
    assert one.page_table[0].tolist() == [3, 0, 0, 0, 0, 0, 0, 0]
    assert two.page_table[0].tolist() == [3, 4, 0, 0, 0, 0, 0, 0]


@pytest.mark.covers("T29")
def test_next_block_appears_at_its_first_position_in_one_table_object_per_block() -> None:
    owner = tables(1)
    steps = [prepare(owner, [p], [[5]] if p < 32 else [[5, 6]]).page_table for p in range(30, 35)]
    assert [step[0, :2].tolist() for step in steps] == [[5, 0], [5, 0], [5, 6], [5, 6], [5, 6]]
    assert steps[0] is steps[1]
    assert steps[2] is steps[3] is steps[4]


def test_feedback_looks_one_block_ahead_at_a_block_end() -> None:
    row = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]  # wider than the capacity
    for position, feedback, blocks in [
        (30, True, 1),
        (31, False, 1),
        (31, True, 2),
        (32, True, 2),
        (255, True, 8),  # at full capacity: clamped
    ]:
        batch = prepare(tables(1, width=16), [position], row, device_feedback=feedback)
        assert np.count_nonzero(batch.page_table) == blocks, (position, feedback)
    narrow = prepare(tables(1), [31], [[5]], device_feedback=True)
    assert np.count_nonzero(narrow.page_table) == 1


@pytest.mark.parametrize("idle", [-1, -7])
def test_negative_position_is_an_all_zero_row_whatever_the_table_says(idle: int) -> None:
    batch = prepare(tables(), [idle, idle], [[-1, 2**31 - 1], [-5, 4]])
    assert not batch.page_table.any()
    assert batch.active_slots == ()


@pytest.mark.covers("DEC-39")
def test_batch_must_equal_the_lane_capacity() -> None:
    with pytest.raises(ValueError, match="must equal lane capacity 2"):
        prepare(tables(2), [0], [[1]])


@pytest.mark.covers("DEC-40")
def test_rows_of_positions_and_table_must_match() -> None:
    with pytest.raises(ValueError, match="must match"):
        prepare(tables(2), [0], [[1], [2]])


@pytest.mark.covers("DEC-41", "P11")
def test_position_beyond_capacity_names_row_position_and_capacity() -> None:
    wide = np.ones((2, 9), dtype=np.int32)
    assert prepare(tables(), [-1, 255], wide).page_table[1].all()
    with pytest.raises(ValueError, match=r"row 1: position 256 .*paged-KV capacity of 8 blocks of 32"):
        prepare(tables(), [-1, 256], wide)


@pytest.mark.covers("DEC-42")
def test_table_narrower_than_the_position_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 0: position 64 needs 3 blocks.*too narrow.*2 columns"):
        prepare(tables(), [64, -1], [[1, 2], [3, 4]])


@pytest.mark.covers("DEC-44", "DEC-45")
def test_changed_compares_used_prefixes_with_the_noted_submission() -> None:
    owner = tables()
    first = prepare(owner, [0, -1], [[3, 4, 5], [6, 7, 8]])
    assert first.page_table_changed
    assert prepare(owner, [0, -1], [[3, 4, 5], [6, 7, 8]]).page_table_changed, "nothing was submitted yet"
    owner.note_submitted(first)
    garbage = prepare(owner, [0, -1], [[3, 90, 91], [-7, 99, 98]])
    assert not garbage.page_table_changed
    assert garbage.page_table is first.page_table
    assert prepare(owner, [0, -1], [[4, 90, 91], [6, 7, 8]]).page_table_changed
    assert prepare(owner, [0, -1], [[4, 90, 91], [6, 7, 8]]).page_table_changed, "still not submitted"
    assert not prepare(owner, [0, -1], [[3, 4, 5], [6, 7, 8]]).page_table_changed
    owner.reset()
    assert prepare(owner, [0, -1], [[3, 4, 5], [6, 7, 8]]).page_table_changed


def test_int64_gives_the_same_object_as_int32_and_refuses_ids_that_do_not_fit() -> None:
    owner = tables(1)
    commands: dict[str, Any] = {"device_feedback": False, "reload_inputs": None, "reload_page_table": False}
    wanted = prepare(owner, [33], [[3, 4]]).page_table
    for position_type in (np.int32, np.int64):
        start_pos = np.array([33], dtype=position_type)
        same = owner.prepare(start_pos=start_pos, page_table=np.array([[3, 4, 2**40]]), **commands)
        assert same.page_table is wanted
    with pytest.raises(ValueError, match=r"row 0, column 1: block id 1099511627776"):
        owner.prepare(start_pos=np.array([33]), page_table=np.array([[3, 2**40]]), **commands)


def test_arrays_of_other_kinds_are_refused_without_a_copy() -> None:
    owner = tables(1)
    rest: dict[str, Any] = {"device_feedback": False, "reload_inputs": None, "reload_page_table": False}
    position: Any = np.zeros(1, np.int32)
    table: Any = np.ones((1, 2), np.int32)
    rows: Any = [[1, 2]]
    with pytest.raises(TypeError, match="page_table must hold int32 or int64"):
        owner.prepare(start_pos=position, page_table=table.astype(np.float32), **rest)
    with pytest.raises(TypeError, match="start_pos must hold int32 or int64"):
        owner.prepare(start_pos=position.astype(np.uint32), page_table=table, **rest)
    with pytest.raises(TypeError):
        owner.prepare(start_pos=position, page_table=rows, **rest)
    with pytest.raises(ValueError, match="page_table must lie side by side"):
        owner.prepare(start_pos=position, page_table=np.ones((2, 4), np.int32)[::2, ::2], **rest)
    with pytest.raises(ValueError, match="page_table must have rank 2"):
        owner.prepare(start_pos=position, page_table=table[0], **rest)
    with pytest.raises(ValueError, match="start_pos must have rank 1"):
        owner.prepare(start_pos=table, page_table=table, **rest)


def test_a_sliced_table_is_read_in_place() -> None:
    wide = np.arange(1, 33, dtype=np.int32).reshape(4, 8)
    batch = prepare(tables(), [33, 64], wide[1:3, 2:5])
    assert batch.page_table[:, :3].tolist() == [[11, 12, 0], [19, 20, 21]]
    read_only = wide[:2, :3]
    read_only.setflags(write=False)
    assert prepare(tables(), [0, 0], read_only).page_table[:, 0].tolist() == [1, 9]


def test_full_reload_copies_whole_rows_and_a_table_reload_ignores_positions() -> None:
    owner = tables(1, raw=4)
    full = prepare(owner, [0], [[1, 2, 3, 4, 5]], reload_inputs=True)
    assert full.page_table.tolist() == [[1, 2, 3, 4, 0, 0, 0, 0]]
    assert prepare(owner, [0], [[1, 2, 3, 4, 9]], reload_inputs=True).page_table is full.page_table
    with pytest.raises(ValueError, match="capacity"):
        prepare(owner, [128], [[1, 2, 3, 4, 5]], reload_inputs=True)
    with pytest.raises(ValueError, match="too narrow"):
        prepare(owner, [64], [[1, 2]], reload_inputs=True)
    stale = prepare(owner, [4000], [[1, 2]], reload_inputs=False, reload_page_table=True)
    assert stale.page_table.tolist() == [[1, 2, 0, 0, 0, 0, 0, 0]]


def test_resident_step_reuses_the_submitted_table() -> None:
    owner = tables(1)
    with pytest.raises(RuntimeError, match="no step was submitted"):
        prepare(owner, [0], [[1]], reload_inputs=False)
    submitted = prepare(owner, [0], [[1]])
    owner.note_submitted(submitted)
    prepare(owner, [0], [[2]])
    prepared = prepare(owner, [0], [[3]])
    resident = prepare(owner, [9999], [[7]], reload_inputs=False)
    assert resident.page_table is submitted.page_table
    assert not resident.page_table_changed
    assert prepare(owner, [0], [[3]]).page_table is prepared.page_table


def test_layouts_and_lanes_are_checked() -> None:
    for lanes, raw, width in [(0, 8, 8), (33, 8, 8), (2, 0, 8), (2, 9, 8)]:
        with pytest.raises(ValueError, match=r"lane_capacity|raw_capacity_width"):
            tables(lanes, raw=raw, width=width)
    owner = tables(1)
    before = prepare(owner, [0], [[1]])
    owner.note_submitted(before)
    owner.configure(block_size=BLOCK, raw_capacity_width=4, decode_width=16)
    assert prepare(owner, [0], [[1]]).page_table.shape == (1, 16)
    with pytest.raises(ValueError, match="1 x 8 entries"):
        owner.note_submitted(before)
    with pytest.raises(TypeError):
        owner.note_submitted(object())  # type: ignore[arg-type]


def test_a_table_outlives_its_owner(run_python: Callable[[str], str]) -> None:
    code = """
import numpy as np
from llm_runtime._core import DecodeTables
owner = DecodeTables(lane_capacity=1, block_size=32, raw_capacity_width=8, decode_width=8)
batch = owner.prepare(start_pos=np.array([40]), page_table=np.array([[5, 6]]), device_feedback=False,
                      reload_inputs=None, reload_page_table=False)
table = batch.page_table
del owner, batch
print(table.tolist())
"""
    assert run_python(code).strip() == "[[5, 6, 0, 0, 0, 0, 0, 0]]"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_agrees_with_the_oracle_over_a_history_of_steps(data: st.DataObject) -> None:
    lanes = data.draw(st.integers(1, 4), label="lanes")
    raw = data.draw(st.integers(1, 5), label="raw capacity")
    layout = Layout(block_size=4, raw_capacity_width=raw, decode_width=8)
    owner = DecodeTables(lane_capacity=lanes, block_size=4, raw_capacity_width=raw, decode_width=8)
    oracle = DecodeOracle(layout)
    rng = random.Random(data.draw(st.integers(0, 2**32), label="seed"))
    previous: tuple[list[list[int]], np.ndarray] | None = None
    for _ in range(data.draw(st.integers(1, 12), label="steps")):
        width = rng.choice([1, raw, raw, raw + 2])
        start_pos = [rng.choice([-1, *range(4 * raw), 4 * raw]) for _ in range(lanes)]
        page_table = [[rng.choice([0, 1, 2]) for _ in range(width)] for _ in range(lanes)]
        reload_inputs = rng.choice([None, None, None, True, False])
        call: dict[str, Any] = {
            "device_feedback": rng.random() < 0.5,
            "reload_inputs": reload_inputs,
            "reload_page_table": reload_inputs is False and rng.random() < 0.5,
        }
        arrays: dict[str, Any] = {
            "start_pos": np.array(start_pos, dtype=rng.choice([np.int32, np.int64])),
            "page_table": np.array(page_table, dtype=rng.choice([np.int32, np.int64])),
        }
        try:
            rows, changed, active = oracle.prepare(start_pos=start_pos, page_table=page_table, **call)
        except (ValueError, RuntimeError) as refused:
            with pytest.raises(type(refused)):
                owner.prepare(**arrays, **call)
            continue
        batch = owner.prepare(**arrays, **call)
        assert batch.page_table.tolist() == rows
        assert (batch.page_table_changed, batch.active_slots) == (changed, active)
        if previous is not None and previous[0] == rows and reload_inputs is not False:
            assert batch.page_table is previous[1]
        if reload_inputs is not False or call["reload_page_table"]:
            previous = (rows, batch.page_table)
        if rng.random() < 0.5:
            owner.note_submitted(batch)
            oracle.submitted = rows
