# SPDX-License-Identifier: Apache-2.0
"""Host-side preparation of a step: shapes, page tables, positions, signatures, and what it leaves untouched."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

from llm_runtime.decode import DecodeRuntime, PreparedDecode
from support.tiny_decode_model import (
    TinyDecodeModel,
    decode_layout,
    decode_runtime,
    without_feedback,
)


def rows_of(prepared):
    return prepared.page_table.tolist()


@pytest.mark.covers("DEC-54")
def test_call_shapes(runtime, request_for):
    parameters = inspect.signature(DecodeRuntime.prepare).parameters
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    assert [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD] == [
        "self",
        "tokens",
        "start_pos",
        "page_table",
    ]
    assert parameters["reset_batch"].default is False
    assert inspect.signature(DecodeRuntime.read_decode_output).parameters["async_read"].default is False
    assert inspect.signature(DecodeRuntime.process_decode_output_host).parameters["is_tokens"].default is False
    call = request_for()
    with pytest.raises(TypeError):
        runtime.prepare(call["tokens"], call["start_pos"], call["page_table"], None)
    with pytest.raises(TypeError):
        runtime.prepare(**call, greedy_only=True)


@pytest.mark.covers("DEC-39")
def test_a_batch_below_the_lane_capacity_is_refused(runtime, request_for):
    with pytest.raises(ValueError, match=r"1 rows.*must equal lane capacity 2"):
        runtime.prepare(**request_for((1,), (0,), [[3, 4]]))


@pytest.mark.covers("DEC-40", "D11")
@pytest.mark.parametrize(
    "call",
    [
        {"tokens": np.zeros(2, np.int64), "start_pos": np.zeros(1, np.int64), "page_table": np.zeros((2, 3), np.int32)},
        {"tokens": np.zeros(2, np.int64), "start_pos": np.zeros(2, np.int64), "page_table": np.zeros((3, 3), np.int32)},
        {"tokens": np.zeros(1, np.int64), "start_pos": np.zeros(2, np.int64), "page_table": np.zeros((2, 3), np.int32)},
    ],
)
def test_row_counts_must_agree(runtime, call):
    with pytest.raises(ValueError, match="match"):
        runtime.prepare(**call)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", np.zeros((2, 1), np.int64)),
        ("start_pos", np.zeros((2, 1), np.int64)),
        ("page_table", np.zeros(2, np.int32)),
    ],
)
def test_ranks_are_checked(runtime, request_for, name, value):
    with pytest.raises(ValueError, match=f"{name} must have rank"):
        runtime.prepare(**{**request_for(), name: value})


@pytest.mark.parametrize("name", ["tokens", "start_pos", "page_table"])
def test_lists_are_no_host_arrays(runtime, request_for, name):
    with pytest.raises(TypeError, match=name):
        runtime.prepare(**{**request_for(), name: [[1, 2], [3, 4]]})


def test_positions_hold_integers(runtime, request_for):
    with pytest.raises(TypeError, match=r"start_pos.*float64"):
        runtime.prepare(**{**request_for(), "start_pos": np.zeros(2)})


@pytest.mark.parametrize("dtype", [np.int16, np.uint32, np.int64])
def test_other_integer_types_and_strided_tables_are_taken(runtime, request_for, dtype):
    wide = np.array([[3, 0, 4, 0, 5, 0], [6, 0, 7, 0, 8, 0]], dtype)
    prepared = runtime.prepare(**{**request_for(), "start_pos": np.array([40, 0], dtype), "page_table": wide[:, ::2]})
    assert rows_of(prepared) == [[3, 4, 0, 0, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0, 0]]
    assert prepared.page_table.dtype == np.int32


@pytest.mark.covers("DEC-27")
def test_sampling_needs_device_sampling(model, request_for, greedy):
    runtime = decode_runtime(model, device_sampling_enabled=False)
    with pytest.raises(ValueError, match="device sampling is disabled"):
        runtime.prepare(**request_for(sampling_params=greedy()))


@pytest.mark.covers("DEC-28")
def test_greedy_sampling_feeds_back_and_takes_argmax(runtime, request_for, greedy):
    prepared = runtime.prepare(**request_for(sampling_params=greedy()))
    assert (prepared.device_feedback, prepared.sampling_path) == (True, "argmax")


@pytest.mark.covers("DEC-29")
def test_no_feedback_without_position_increment(mesh, request_for, greedy):
    runtime = decode_runtime(without_feedback(TinyDecodeModel(mesh)), force_greedy_top_k=True)
    prepared = runtime.prepare(**request_for(sampling_params=greedy()))
    assert (prepared.device_feedback, prepared.sampling_path) == (False, "topk")


@pytest.mark.covers("DEC-30")
@pytest.mark.parametrize(("forced", "path"), [(True, "topk"), (False, "argmax")])
def test_the_policy_moves_greedy_rows_to_top_k(model, request_for, greedy, forced, path):
    runtime = decode_runtime(model, force_greedy_top_k=forced)
    params = greedy(top_k=[32, 32], top_p=[0.08, 0.08])
    assert runtime.prepare(**request_for(sampling_params=params)).sampling_path == path


@pytest.mark.covers("DEC-33")
def test_signature_material_is_ordered(runtime, request_for, greedy):
    prepared = runtime.prepare(**request_for(sampling_params=greedy()))
    program = runtime.program_signature(prepared)
    assert program.key_material() == (
        ("operation", "decode"),
        ("batch_size", 2),
        ("page_table_width", 8),
        ("sampling_path", "argmax"),
        ("device_feedback", True),
    )
    trace = runtime.trace_signature(prepared)
    assert type(trace) is not type(program)
    assert trace.key_material() == program.key_material()
    assert runtime.program_signature(runtime.prepare(**request_for())).sampling_path == "logits"
    with pytest.raises(TypeError, match="PreparedDecode"):
        runtime.program_signature("prepared")


def test_signatures_ignore_what_is_refreshed(runtime, request_for, topk):
    first = runtime.prepare(**request_for(sampling_params=topk(seed=[1, 2])))
    second = runtime.prepare(**request_for((9, 9), (40, -1), sampling_params=topk(top_k=[5, 9]), reset_batch=True))
    assert runtime.program_signature(first) is runtime.program_signature(second)
    assert runtime.trace_signature(first) is runtime.trace_signature(second)


@pytest.mark.covers("T26")
def test_a_layout_change_changes_the_signature(model, request_for):
    runtime = decode_runtime(model, page_table_layout=decode_layout(raw=16, decode=16))
    wide = runtime.program_signature(runtime.prepare(**request_for()))
    runtime.configure_page_table_layout(decode_layout())
    narrow = runtime.program_signature(runtime.prepare(**request_for()))
    assert (wide.page_table_width, narrow.page_table_width) == (16, 8)
    assert wide != narrow
    assert runtime.config.page_table_layout == decode_layout()


@pytest.mark.covers("DEC-36")
def test_the_normalised_table_is_reused(runtime, request_for):
    call = request_for(positions=(0, -1))
    first = runtime.prepare(**call)
    second = runtime.prepare(**{**call, "start_pos": np.array([1, -1])})
    assert second.page_table is first.page_table
    assert not first.page_table.flags.writeable


@pytest.mark.covers("DEC-37")
def test_an_edit_in_place_is_seen(runtime, request_for):
    call = request_for()
    first = runtime.prepare(**call)
    call["page_table"][0, 0] = 9
    second = runtime.prepare(**call)
    assert (rows_of(first)[0][0], rows_of(second)[0][0]) == (3, 9)


@pytest.mark.covers("DEC-38")
def test_a_row_that_enters_its_next_block_gets_another_table(runtime, request_for):
    first = runtime.prepare(**request_for(positions=(0, 0), table=[[3, 4], [6, 7]]))
    second = runtime.prepare(**request_for(positions=(32, 0), table=[[3, 4], [6, 7]]))
    assert rows_of(first) == [[3, 0, 0, 0, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0, 0]]
    assert rows_of(second) == [[3, 4, 0, 0, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0, 0]]


@pytest.mark.covers("DEC-41", "P11")
def test_a_position_beyond_the_capacity_is_refused(runtime, request_for, mesh):
    table = np.arange(16).reshape(2, 8)
    assert rows_of(runtime.prepare(**request_for(positions=(255, 0), table=table)))[0] == list(range(8))
    before = mesh.counters.calls.copy()
    with pytest.raises(ValueError, match="paged-KV capacity") as error:
        runtime.prepare(**request_for(positions=(0, 256), table=table))
    for datum in ("1", "256"):
        assert datum in str(error.value)
    assert mesh.counters.calls == before


@pytest.mark.covers("DEC-42")
def test_a_table_without_the_positions_block_is_refused(runtime, request_for):
    with pytest.raises(ValueError, match=r"(?s)row 1.*(narrow|columns|width)"):
        runtime.prepare(**request_for(positions=(0, 64), table=[[3, 4], [6, 7]]))


@pytest.mark.covers("DEC-43", "DEC-44", "DEC-45")
def test_changes_are_measured_against_the_submitted_table(runtime, request_for):
    first = runtime.prepare(**request_for(positions=(0, -1), reset_batch=True))
    assert (first.page_table_changed, first.reset_batch) == (True, True)
    again = runtime.prepare(**request_for(positions=(0, -1)))
    assert again.page_table_changed is True
    runtime.note_submitted(again)
    garbage = runtime.prepare(**request_for(positions=(0, -1), table=[[3, 90, 91], [55, 56, 57]]))
    assert (garbage.page_table_changed, garbage.reset_batch) == (False, False)
    moved = runtime.prepare(**request_for(positions=(0, -1), table=[[4, 90, 91], [55, 56, 57]]))
    assert moved.page_table_changed is True


@pytest.mark.parametrize(
    ("position", "columns", "sampled", "used"),
    [
        (31, 3, False, 1),
        (31, 3, True, 2),
        (31, 1, True, 1),
        (30, 3, True, 1),
        (255, 8, True, 8),
        (-1, 3, True, 0),
        (-7, 3, False, 0),
    ],
    ids=["logits", "look-ahead", "table too narrow", "inside", "at capacity", "idle", "far idle"],
)
def test_feedback_needs_the_block_of_the_next_token(runtime, request_for, greedy, position, columns, sampled, used):
    table = np.arange(1, 2 * columns + 1).reshape(2, columns)
    params = {"sampling_params": greedy()} if sampled else {}
    prepared = runtime.prepare(**request_for(positions=(position, 0), table=table, **params))
    row = rows_of(prepared)[0]
    assert row == [*range(1, used + 1), *[0] * (8 - used)]


@pytest.mark.covers("T28")
def test_a_packed_table_is_spread_over_the_canonical_width(runtime, request_for):
    prepared = runtime.prepare(**request_for(positions=(90, 90)))
    assert rows_of(prepared) == [[3, 4, 5, 0, 0, 0, 0, 0], [6, 7, 8, 0, 0, 0, 0, 0]]


def test_an_idle_lane_has_logits_but_no_samples(runtime, request_for, greedy):
    assert rows_of(runtime.prepare(**request_for(positions=(-1, -1)))) == [[0] * 8, [0] * 8]
    with pytest.raises(ValueError, match="active slot"):
        runtime.prepare(**request_for(positions=(-1, -1), sampling_params=greedy()))


def test_a_prepared_step_is_immutable_and_keeps_the_callers_arrays(runtime, request_for):
    call = request_for()
    prepared = runtime.prepare(**call)
    assert prepared.tokens is call["tokens"]
    assert prepared.start_pos is call["start_pos"]
    assert (prepared.sampling_values, prepared.sampling_seeds) == (None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        prepared.reset_batch = True
    with pytest.raises(ValueError, match="read-only"):
        prepared.page_table[0, 0] = 1
    assert dataclasses.replace(prepared, reset_batch=True).reset_batch is True
    assert isinstance(prepared, PreparedDecode)


def test_preparing_changes_nothing_that_a_later_step_sees(runtime, request_for, greedy):
    runtime.note_submitted(runtime.prepare(**request_for()))
    runtime.prepare(**request_for(table=[[9, 9, 9], [9, 9, 9]], sampling_params=greedy()))
    assert runtime.prepare(**request_for()).page_table_changed is False
