# SPDX-License-Identifier: Apache-2.0
"""Fills and updates of paged caches: what is written, what is not, and what the ledger says."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import height_shards, numbers, read, rows, tiles

BLOCKS, KV_HEADS, BLOCK, SIZE = 12, 3, 32, 64
fill, update = ttnn.experimental.paged_fill_cache, ttnn.experimental.paged_update_cache


@pytest.fixture
def cache(mesh):
    """A cache that holds -5 everywhere."""
    return tiles(mesh, np.full((BLOCKS, KV_HEADS, BLOCK, SIZE), -5, np.float32))


def table(mesh, *lines):
    return rows(mesh, np.array(lines, np.int32))


def untouched(contents, *written):
    rest = np.delete(contents, written, axis=0)
    return (rest == -5).all()


def test_fill_writes_the_blocks_of_its_row(mesh, cache):
    x = numbers(1, KV_HEADS, 128, SIZE)
    result = fill(cache, tiles(mesh, x), table(mesh, [0, 1, 2, 3], [7, 2, 11, 4]), batch_idx=1)
    assert result.buffer_id == cache.buffer_id
    contents = read(cache)
    for column, block in enumerate((7, 2, 11, 4)):
        np.testing.assert_array_equal(contents[block], x[0, :, column * BLOCK : (column + 1) * BLOCK])
    assert untouched(contents, 7, 2, 11, 4)


@pytest.mark.covers("P33")
def test_fill_skips_entries_of_minus_one(mesh, cache):
    x = numbers(1, KV_HEADS, 128, SIZE)
    fill(cache, tiles(mesh, x), table(mesh, [4, -1, 6, -1]))
    contents = read(cache)
    np.testing.assert_array_equal(contents[4], x[0, :, :32])
    np.testing.assert_array_equal(contents[6], x[0, :, 64:96])
    assert untouched(contents, 4, 6)
    assert {write.block for write in mesh.ledger.writes} == {4, 6}


def test_fill_of_skipped_entries_only_writes_nothing(mesh, cache):
    fill(cache, tiles(mesh, numbers(1, KV_HEADS, 128, SIZE)), table(mesh, [-1] * 4))
    assert untouched(read(cache))
    assert mesh.ledger.writes == []


@pytest.mark.parametrize(("length", "block_size"), [(40, 32), (32, 64), (8, 32), (96, 16)])
def test_fill_of_part_of_a_block_leaves_the_rest(mesh, length, block_size):
    before = np.full((BLOCKS, KV_HEADS, block_size, SIZE), -5, np.float32)
    cache, x = tiles(mesh, before), numbers(1, KV_HEADS, length, SIZE)
    order = [9, 3, 5, 1, 0, 8, 2, 4]
    fill(cache, tiles(mesh, x), table(mesh, order))
    for position in range(length):
        before[order[position // block_size], :, position % block_size] = x[0, :, position]
    np.testing.assert_array_equal(read(cache), before)
    assert [write.position for write in mesh.ledger.writes] == list(range(length))


def test_fill_of_a_wave_with_row_numbers_in_a_tensor(mesh, cache):
    x = numbers(2, KV_HEADS, 64, SIZE)
    lines = table(mesh, [0, 1], [2, 3], [4, 5])
    fill(cache, tiles(mesh, x), lines, batch_idx_tensor=rows(mesh, np.array([2, 0], np.int32)))
    contents = read(cache)
    for row, blocks in ((0, (4, 5)), (1, (0, 1))):
        for column, block in enumerate(blocks):
            np.testing.assert_array_equal(contents[block], x[row, :, column * BLOCK : (column + 1) * BLOCK])
    assert untouched(contents, 0, 1, 4, 5)


def test_fill_is_recorded_slot_by_slot(mesh, cache):
    mesh.ledger.label(cache, "layer 0 key")
    mesh.ledger.own(7, "request a")
    fill(cache, tiles(mesh, numbers(1, KV_HEADS, 64, SIZE)), table(mesh, [7, 2]))
    ttnn.synchronize_device(mesh)
    writes = mesh.ledger.writes
    assert [(write.block, write.offset) for write in writes] == [(7, i) for i in range(32)] + [
        (2, i) for i in range(32)
    ]
    assert [write.position for write in writes] == list(range(64))
    assert {(write.kind, write.label, write.buffer_id) for write in writes} == {
        ("fill", "layer 0 key", cache.buffer_id)
    }
    assert [write.owner for write in writes] == ["request a"] * 32 + [None] * 32


def test_fill_into_a_poisoned_block_is_kept_apart(mesh, cache):
    mesh.ledger.poison([2], caches=[cache])
    fill(cache, tiles(mesh, numbers(1, KV_HEADS, 64, SIZE)), table(mesh, [7, 2]))
    ttnn.synchronize_device(mesh)
    assert {write.block for write in mesh.ledger.poisoned_writes()} == {2}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([0, -2, 2, 3], "row 0, column 1: block -2"),
        ([0, 1, 2, BLOCKS], rf"row 0, column 3: block {BLOCKS} is outside \[0, {BLOCKS - 1}\]"),
        ([5, 1, 5, 3], "row 0: columns 0 and 2 both name block 5"),
    ],
)
def test_fill_through_a_wrong_table_is_refused_when_it_runs(mesh, cache, line, words):
    lines = table(mesh, line)
    with pytest.raises(RuntimeError, match=words):
        read(fill(cache, tiles(mesh, numbers(1, KV_HEADS, 128, SIZE)), lines))
    assert untouched(read(cache))


def test_fill_ignores_entries_after_the_input(mesh, cache):
    fill(cache, tiles(mesh, numbers(1, KV_HEADS, 64, SIZE)), table(mesh, [0, 1, 1, 99]))
    assert untouched(read(cache), 0, 1)


def test_fill_refuses_arguments_that_do_not_fit(mesh, cache):
    x, lines = tiles(mesh, numbers(1, KV_HEADS, 128, SIZE)), table(mesh, [0, 1, 2, 3])

    def zeros(*shape, dtype=None):
        return tiles(mesh, np.zeros(shape, np.float32), dtype)

    for arguments, options, words in (
        ((zeros(1, KV_HEADS, 160, SIZE), lines), {}, "160 tokens; the page table covers 128"),
        ((zeros(2, KV_HEADS, 128, SIZE), lines), {}, "has 2 rows"),
        ((x, lines), {"batch_idx": 1}, "batch_idx 1 for a page table of 1 rows"),
        ((x, lines), {"batch_idx": -1}, "batch_idx -1"),
        ((zeros(1, 4, 128, SIZE), lines), {}, r"\[1, 4, 128, 64\] for a cache"),
        ((zeros(1, KV_HEADS, 128, 32), lines), {}, r"\[1, 3, 128, 32\] for a cache"),
        ((zeros(1, KV_HEADS, 128, SIZE, dtype=ttnn.bfloat8_b), lines), {}, "BFLOAT8_B; allowed: BFLOAT16"),
        ((x, rows(mesh, np.zeros((1, 4), np.uint32))), {}, "page_table has dtype UINT32"),
        ((x, rows(mesh, np.zeros(4, np.int32))), {}, "rank 2"),
    ):
        with pytest.raises(RuntimeError, match=words):
            fill(cache, *arguments, **options)
    with pytest.raises(RuntimeError, match="batch index 1 for a page table of 1 rows"):
        read(fill(cache, x, lines, batch_idx_tensor=rows(mesh, np.array([1], np.int32))))


def step(mesh, x, *, heads=KV_HEADS):
    count = x.shape[1]
    padded = np.full((1, count, heads, SIZE), 77, np.float32)
    padded[:, :, :KV_HEADS] = x
    return tiles(mesh, padded, memory=height_shards((32, SIZE), count))


@pytest.mark.parametrize("heads", [KV_HEADS, 32])
def test_update_writes_one_token_per_active_row(mesh, cache, heads):
    x = numbers(1, 4, KV_HEADS, SIZE)
    positions = rows(mesh, np.array([0, 63, -1, 32], np.int32))
    lines = table(mesh, [3, 1], [5, 8], [0, 0], [2, 6])
    result = update(cache, step(mesh, x, heads=heads), update_idxs_tensor=positions, page_table=lines)
    assert result.buffer_id == cache.buffer_id
    expected = np.full((BLOCKS, KV_HEADS, BLOCK, SIZE), -5, np.float32)
    for row, block, offset in ((0, 3, 0), (1, 8, 31), (3, 6, 0)):
        expected[block, :, offset] = x[0, row]
    np.testing.assert_array_equal(read(cache), expected)
    noted = [(w.block, w.offset, w.position, w.kind) for w in mesh.ledger.writes]
    assert noted == [(3, 0, 0, "update"), (8, 31, 63, "update"), (6, 0, 32, "update")]


def test_update_of_inactive_rows_only_writes_nothing(mesh, cache):
    positions = rows(mesh, np.array([-1, -1], np.int32))
    update(
        cache,
        step(mesh, numbers(1, 2, KV_HEADS, SIZE)),
        update_idxs_tensor=positions,
        page_table=table(mesh, [0], [0]),
    )
    assert untouched(read(cache))
    assert mesh.ledger.writes == []


@pytest.mark.covers("T29")
def test_replayed_updates_cross_into_the_next_block_of_a_refreshed_table(mesh, cache):
    x = numbers(1, 1, KV_HEADS, SIZE)
    token, positions, lines = step(mesh, x), rows(mesh, np.array([30], np.int32)), table(mesh, [5, 0])
    update(cache, token, update_idxs_tensor=positions, page_table=lines)
    trace = ttnn.begin_trace_capture(mesh)
    update(cache, token, update_idxs_tensor=positions, page_table=lines)
    ttnn.end_trace_capture(mesh, trace)
    for position in range(30, 35):
        ttnn.copy_host_to_device_tensor(ttnn.Tensor(np.array([position], np.int32), ttnn.int32), positions)
        if position == 32:
            ttnn.copy_host_to_device_tensor(ttnn.Tensor(np.array([[5, 6]], np.int32), ttnn.int32), lines)
        ttnn.execute_trace(mesh, trace)
    written = [(w.block, w.offset) for w in mesh.ledger.writes[1:]]
    assert written == [(5, 30), (5, 31), (6, 0), (6, 1), (6, 2)]


@pytest.mark.parametrize(
    ("positions", "lines", "words"),
    [
        ([0, 64], [[0, 1], [2, 3]], "row 1: position 64 is beyond the 64 positions"),
        ([0, 40], [[0, 1], [2, -1]], "row 1, column 1, position 40: block -1"),
        ([0, 40], [[0, 1], [2, BLOCKS]], f"row 1, column 1, position 40: block {BLOCKS}"),
    ],
)
def test_update_outside_its_table_is_refused_when_it_runs(mesh, cache, positions, lines, words):
    arguments = {"update_idxs_tensor": rows(mesh, np.array(positions, np.int32)), "page_table": table(mesh, *lines)}
    token = step(mesh, numbers(1, 2, KV_HEADS, SIZE))
    with pytest.raises(RuntimeError, match=words):
        read(update(cache, token, **arguments))
    assert untouched(read(cache))


def test_update_refuses_arguments_that_do_not_fit(mesh, cache):
    token = step(mesh, numbers(1, 4, KV_HEADS, SIZE))
    positions, lines = rows(mesh, np.zeros(4, np.int32)), table(mesh, *[[0, 1]] * 4)

    def call(new=token, **changes):
        update(cache, new, **{"update_idxs_tensor": positions, "page_table": lines, **changes})

    for words, changes in (
        ("INTERLEAVED", {"new": tiles(mesh, numbers(1, 4, KV_HEADS, SIZE))}),
        ("for a cache", {"new": tiles(mesh, numbers(1, 4, 5, SIZE), memory=height_shards((32, SIZE), 4))}),
        ("UINT32", {"update_idxs_tensor": rows(mesh, np.zeros(4, np.uint32))}),
        (r"\[5\] for 4 rows", {"update_idxs_tensor": rows(mesh, np.zeros(5, np.int32))}),
        ("page_table has 3 rows, input_tensor 4", {"page_table": table(mesh, *[[0, 1]] * 3)}),
    ):
        with pytest.raises(RuntimeError, match=words):
            call(**changes)
    with pytest.raises(TypeError, match="page_table"):
        update(cache, token, update_idxs_tensor=positions)


def test_ops_do_not_keep_a_cache_alive(mesh):
    cache = tiles(mesh, np.zeros((BLOCKS, KV_HEADS, BLOCK, SIZE), np.float32))
    x, lines = tiles(mesh, numbers(1, KV_HEADS, 32, SIZE)), table(mesh, [0])
    fill(cache, x, lines)
    trace = ttnn.begin_trace_capture(mesh)
    fill(cache, x, lines)
    ttnn.end_trace_capture(mesh, trace)
    ttnn.synchronize_device(mesh)
    number = cache.buffer_id
    del cache
    assert number not in {live.buffer_id for live in mesh.live_tensors()}
    with pytest.raises(RuntimeError, match="freed"):
        ttnn.execute_trace(mesh, trace)
