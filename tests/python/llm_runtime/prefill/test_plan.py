# SPDX-License-Identifier: Apache-2.0
"""The planner's Python front: host arrays of every kind, defaults, and the outcome of its main rules."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.prefill.plan import (
    _max_prefill_chunk_size,
    _padded_prefill_length,
    _plan_prefill_requests,
    integer_array,
    last_token_offset,
    prefill_bucket_ladder,
)


def plan(lengths, *, starts=None, slots=None, table_width=256, **changes):
    width = max([*lengths, 1])
    rows = len(lengths)
    options = {
        "tokens": np.arange(rows * width).reshape(rows, width),
        "page_table": np.arange(rows * table_width, dtype=np.int32).reshape(rows, table_width),
        "prompt_lens": np.array(lengths),
        "start_pos": None if starts is None else np.array(starts),
        "empty_slots": slots,
        "block_size": 32,
        "max_batch_size": 32,
        "max_prefill_chunk_size": 2048,
        "supports_batched_prefill": True,
        "max_prefill_batch_size": 8,
        "max_actual_page_table_width": 256,
        "canonical_page_table_width": 264,
    }
    return _plan_prefill_requests(**{**options, **changes})


def test_batching_is_off_unless_declared():
    requests = _plan_prefill_requests(
        tokens=np.zeros((2, 80), np.int64),
        page_table=np.zeros((2, 3), np.int32),
        block_size=32,
        max_batch_size=32,
        max_prefill_chunk_size=2048,
    )
    assert [request.kind for request in requests] == ["single", "single"]
    assert requests[0].prompt_lengths == (80,)
    assert requests[0].slots == (0,)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.int16, ">i8"])
def test_every_integer_type_is_planned_alike(dtype):
    tokens = np.arange(160).reshape(2, 80)
    table = np.arange(6).reshape(2, 3)
    expected = plan([80, 80], tokens=tokens, page_table=table)[0]
    request = plan([80, 80], tokens=tokens.astype(dtype), page_table=table.astype(dtype))[0]
    assert request.tokens.dtype == np.int64
    assert request.page_table.dtype == np.int32
    assert np.array_equal(request.tokens, expected.tokens)
    assert np.array_equal(request.page_table, expected.page_table)


def test_views_and_foreign_memory_order_are_accepted():
    tokens = np.asfortranarray(np.arange(160).reshape(2, 80))
    wide = np.arange(40, dtype=np.int64).reshape(2, 20)
    request = plan([80, 80], tokens=tokens, page_table=wide[:, ::4], prompt_lens=np.array([80, 0, 80, 0])[::2])[0]
    assert request.tokens[1, :80].tolist() == list(range(80, 160))
    assert request.page_table[:2, :3].tolist() == [[0, 4, 8], [20, 24, 28]]


def test_planned_arrays_are_read_only_and_inputs_untouched():
    tokens = np.arange(80).reshape(1, 80)
    table = np.arange(3, dtype=np.int32).reshape(1, 3)
    request = plan([80], tokens=tokens, page_table=table)[0]
    for array in (request.tokens, request.page_table):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    table[0, 0] = 99
    assert request.page_table[0, 0] == 0
    assert tokens.tolist() == [list(range(80))]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokens": [[1, 2]]}, TypeError, "tokens"),
        ({"page_table": "table"}, TypeError, "page_table"),
        ({"tokens": np.zeros((1, 80), np.float32)}, ValueError, "tokens must hold integers"),
        ({"tokens": np.zeros(80, np.int64)}, ValueError, "tokens"),
        ({"page_table": np.zeros((1, 1, 3), np.int32)}, ValueError, "page_table"),
    ],
)
def test_arguments_that_are_no_planes_of_integers_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        plan([80], **changes)


@pytest.mark.covers("P23")
def test_an_empty_prompt_names_its_row():
    with pytest.raises(ValueError, match="row 1"):
        plan([5, 0, 7])


@pytest.mark.covers("P06")
def test_a_start_inside_a_block_names_row_start_and_block():
    with pytest.raises(ValueError, match=r"row 1.*40.*32"):
        plan([80, 80], starts=[0, 40])


@pytest.mark.covers("P22")
def test_a_fully_cached_prompt_computes_its_last_block():
    (request,) = plan([64], starts=[64])
    assert request.cached_tokens == (32,)
    assert request.tokens[0, :32].tolist() == list(range(32, 64))
    assert request.uses_chunked_prefill
    assert last_token_offset(request) == 31


def test_a_coarser_alignment_rounds_the_start_down():
    (request,) = plan([200], starts=[96], start_alignment=64)
    assert request.cached_tokens == (64,)
    assert request.tokens[0, :136].tolist() == list(range(64, 200))


@pytest.mark.covers("P24", "P03")
def test_cached_row_keeps_absolute_and_relative_positions_apart():
    (request,) = plan([160], starts=[128], page_table=np.array([[3, 4, 5, 6, 9]], np.int32))
    assert request.page_table[0, :5].tolist() == [3, 4, 5, 6, 9]
    assert request.page_table.min() == 0
    chunk = request.chunks[0]
    assert chunk.chunk_page_table.tolist() == [[9, -1, -1, -1]]
    assert chunk.chunk_start_idx == 128
    assert request.last_token_indices == (159,)
    assert last_token_offset(request) == 31


@pytest.mark.covers("P25")
@pytest.mark.parametrize(("length", "chunk", "offset"), [(2048, 0, 2047), (2049, 1, 0), (4096, 1, 2047)])
def test_last_token_is_found_in_its_chunk(length, chunk, offset):
    (request,) = plan([length])
    marks = [item.contains_last_token for item in request.chunks]
    assert marks.index(True) == chunk and marks.count(True) == 1
    assert last_token_offset(request) == offset


@pytest.mark.covers("P15", "P16")
def test_rows_follow_the_call_and_slots_follow_rows():
    (request,) = plan([80, 80], slots=np.array([1, 0]), page_table=np.array([[10, 11, 12], [20, 21, 22]], np.int32))
    assert request.source_rows == (0, 1)
    assert request.slots == (1, 0)
    assert request.page_table[:, :3].tolist() == [[10, 11, 12], [20, 21, 22]]


@pytest.mark.covers("D11")
@pytest.mark.parametrize("slots", [[0, 0], [9, 32], [-1, 0], [0]])
def test_bad_slots_are_refused(slots):
    with pytest.raises(ValueError, match="slot"):
        plan([80, 80], slots=slots)


@pytest.mark.covers("PLAN-13", "PLAN-14", "PLAN-15")
def test_one_chunk_flag_tells_regular_from_chunked():
    regular, cached, long = plan([128])[0], plan([160], starts=[32])[0], plan([4096])[0]
    assert (regular.uses_chunked_prefill, len(regular.chunks)) == (False, 1)
    assert regular.chunks[0].chunk_page_table is None
    assert (cached.uses_chunked_prefill, len(cached.chunks)) == (True, 1)
    assert cached.chunks[0].chunk_page_table.shape == (1, 4)
    assert (long.uses_chunked_prefill, len(long.chunks)) == (True, 2)
    assert all(chunk.chunk_page_table.shape == (1, 64) for chunk in long.chunks)


@pytest.mark.covers("P35", "PLAN-33", "PLAN-45")
def test_padding_rows_of_a_wave_are_inert():
    (request,) = plan([128] * 5)
    assert request.kind == "batched"
    assert request.padded_batch_size == 8
    assert request.source_rows == (0, 1, 2, 3, 4)
    assert not request.tokens[5:].any()
    assert (request.page_table[5:] == -1).all()


def test_length_functions():
    assert [_padded_prefill_length(n) for n in (1, 128, 129, 1024, 1025, 2049, 131072)] == [
        128,
        128,
        1024,
        1024,
        2048,
        4096,
        131072,
    ]
    assert _max_prefill_chunk_size(8192, 6144) == 4096
    assert _max_prefill_chunk_size(2048, 1024) == 1024
    assert _max_prefill_chunk_size(1024, 512) == 512
    assert prefill_bucket_ladder(4096, 8192) == (128, 1024, 2048, 4096)
    assert prefill_bucket_ladder(64, 100) == (64,)


def test_integer_array_copies_only_when_it_must():
    for dtype in (np.int32, np.int64):
        array = np.zeros((2, 3), dtype)
        assert integer_array(array, "x") is array
    assert integer_array(np.zeros((2, 3), np.uint8), "x").dtype == np.int64
