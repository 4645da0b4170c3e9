# SPDX-License-Identifier: Apache-2.0
"""Attention against the textbook formula: causal, over chunks of a paged cache, and one query per row."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import height_shards, numbers, plain_attention, read, rows, tiles

HEADS, KV_HEADS, SIZE, BLOCK = 9, 3, 64, 32
SCALE = SIZE**-0.5
attention = ttnn.transformer.scaled_dot_product_attention
chunked = ttnn.transformer.chunked_scaled_dot_product_attention
decode = ttnn.transformer.paged_scaled_dot_product_attention_decode


@pytest.mark.parametrize("length", [1, 100, 256, 257, 700])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
def test_causal_attention(mesh, length, heads):
    query, kv_heads = numbers(1, heads[0], length, SIZE), heads[1]
    key, value = numbers(1, kv_heads, length, SIZE, seed=1), numbers(1, kv_heads, length, SIZE, seed=2)
    result = attention(tiles(mesh, query), tiles(mesh, key), tiles(mesh, value), is_causal=True)
    assert (result.shape, result.dtype) == (query.shape, ttnn.bfloat16)
    expected = plain_attention(query[0], key[0], value[0], SCALE, 0)
    np.testing.assert_allclose(read(result)[0], expected, rtol=1e-5, atol=1e-5)


def test_rows_of_a_wave_do_not_mix(mesh):
    query, key = numbers(4, HEADS, 128, SIZE), numbers(4, KV_HEADS, 128, SIZE, seed=1)
    value = numbers(4, KV_HEADS, 128, SIZE, seed=2)
    together = read(attention(tiles(mesh, query), tiles(mesh, key), tiles(mesh, value)))
    for row in range(4):
        one = [tiles(mesh, side[row : row + 1]) for side in (query, key, value)]
        np.testing.assert_array_equal(read(attention(*one))[0], together[row])


def test_attention_without_a_mask_and_with_a_scale(mesh):
    query, key = numbers(1, HEADS, 40, SIZE), numbers(1, KV_HEADS, 300, SIZE, seed=1)
    value = numbers(1, KV_HEADS, 300, SIZE, seed=2)
    result = attention(tiles(mesh, query), tiles(mesh, key), tiles(mesh, value), is_causal=False, scale=0.3)
    expected = plain_attention(query[0], key[0], value[0], 0.3, None)
    np.testing.assert_allclose(read(result)[0], expected, rtol=1e-5, atol=1e-5)


def test_large_scores_do_not_overflow(mesh):
    query, key = numbers(1, 1, 64, SIZE) * 1e3, numbers(1, 1, 64, SIZE, seed=1) * 1e3
    value = numbers(1, 1, 64, SIZE, seed=2)
    result = read(attention(tiles(mesh, query), tiles(mesh, key), tiles(mesh, value)))[0]
    np.testing.assert_allclose(result, plain_attention(query[0], key[0], value[0], SCALE, 0), rtol=1e-3, atol=1e-3)


def test_what_is_not_finite_reaches_only_rows_that_see_it(mesh):
    query = numbers(1, HEADS, 128, SIZE)
    key, value = numbers(1, KV_HEADS, 128, SIZE, seed=1), numbers(1, KV_HEADS, 128, SIZE, seed=2)
    clean = read(attention(tiles(mesh, query), tiles(mesh, key), tiles(mesh, value)))
    key[0, 0, 100:], value[0, 1, 120] = np.nan, np.inf
    query[0, 8, 5] = np.nan
    spoiled = read(attention(tiles(mesh, query), tiles(mesh, key), tiles(mesh, value)))
    bad = np.zeros((HEADS, 128), bool)
    bad[:3, 100:] = bad[3:6, 120:] = bad[8, 5] = True
    assert np.isnan(spoiled[0][bad]).all()
    np.testing.assert_allclose(spoiled[0][~bad], clean[0][~bad], rtol=1e-6, atol=1e-6)


class Paged:
    """A cache whose blocks are scattered, and the rows they hold in order."""

    def __init__(self, mesh, tables, num_blocks=40, block=BLOCK, dtype=ttnn.bfloat16):
        self.block, self.tables = block, np.asarray(tables, np.int32)
        self.key, self.value = (numbers(num_blocks, KV_HEADS, block, SIZE, seed=seed) for seed in (5, 6))
        self.caches = tiles(mesh, self.key, dtype), tiles(mesh, self.value, dtype)
        self.table = rows(mesh, self.tables)

    def sides(self, row, length):
        blocks = self.tables[row, : -(-length // self.block)]
        joined = [side[blocks].transpose(1, 0, 2, 3).reshape(KV_HEADS, -1, SIZE) for side in (self.key, self.value)]
        return [side[:, :length] for side in joined]


@pytest.mark.parametrize("start", [0, 32, 96, 128])
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("block", [32, 64])
def test_a_chunk_sees_everything_before_it(mesh, start, as_tensor, block):
    paged = Paged(mesh, [[7, 30, 2, 11, 5, 9, 0, 1, 22, 23]], block=block)
    query = numbers(1, HEADS, 128, SIZE)
    where = rows(mesh, np.array([start], np.int32))
    position = {"chunk_start_idx_tensor": where} if as_tensor else {"chunk_start_idx": start}
    result = chunked(tiles(mesh, query), *paged.caches, paged.table, **position)
    expected = plain_attention(query[0], *paged.sides(0, start + 128), SCALE, start)
    np.testing.assert_allclose(read(result)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_chunk_per_row_of_a_batch(mesh):
    paged = Paged(mesh, [[7, 30, 2, 11, 5], [9, 0, 1, 22, 23]])
    query = numbers(2, HEADS, 64, SIZE)
    result = read(chunked(tiles(mesh, query), *paged.caches, paged.table, 96, scale=0.2))
    for row in range(2):
        expected = plain_attention(query[row], *paged.sides(row, 160), 0.2, 96)
        np.testing.assert_allclose(result[row], expected, rtol=1e-5, atol=1e-5)


def test_a_chunk_reads_only_the_blocks_it_needs(mesh):
    paged = Paged(mesh, [[7, 30, 2, 11, -1, 99]])
    query = numbers(1, HEADS, 64, SIZE)
    expected = plain_attention(query[0], *paged.sides(0, 128), SCALE, 64)
    result = read(chunked(tiles(mesh, query), *paged.caches, paged.table, 64))
    np.testing.assert_allclose(result[0], expected, rtol=1e-5, atol=1e-5)


def test_queries_after_the_prefix_read_filler_blocks_and_stay_finite(mesh):
    paged = Paged(mesh, [[7, 30, 0, 0, 0, 0]])
    result = read(chunked(tiles(mesh, numbers(1, HEADS, 128, SIZE)), *paged.caches, paged.table, 32))
    assert np.isfinite(result).all()


def test_queries_beyond_the_table_see_all_of_it(mesh):
    paged = Paged(mesh, [[7, 30, 2, 11]])
    start = rows(mesh, np.array([96], np.int32))
    query = numbers(1, HEADS, 128, SIZE)
    result = read(chunked(tiles(mesh, query), *paged.caches, paged.table, chunk_start_idx_tensor=start))
    expected = plain_attention(query[0], *paged.sides(0, 128), SCALE, 96)
    np.testing.assert_allclose(result[0], expected, rtol=1e-5, atol=1e-5)


def test_a_poisoned_filler_block_spoils_padding_queries_only(mesh):
    paged = Paged(mesh, [[7, 30, 0, 0, 0]])
    query = numbers(1, HEADS, 128, SIZE)
    expected = plain_attention(query[0], *paged.sides(0, 160), SCALE, 32)
    mesh.ledger.poison([0], caches=paged.caches)
    result = read(chunked(tiles(mesh, query), *paged.caches, paged.table, 32))[0]
    np.testing.assert_allclose(result[:, :32], expected[:, :32], rtol=1e-5, atol=1e-5)
    assert np.isnan(result[:, 32:]).all()


@pytest.mark.parametrize(
    ("line", "start", "words"),
    [
        ([7, 30, -1, 2, 3], 32, "row 0, column 2: block -1"),
        ([7, 30, 40, 2, 3], 32, r"row 0, column 2: block 40 is outside \[0, 39\]"),
        ([7, 30, 1, 2, 3], -32, "start -32 is negative"),
        ([7, 30, 1, 2, 3], 33, "start 33 is no multiple of q_chunk_size 32"),
    ],
)
def test_chunks_with_wrong_data_are_refused_when_they_run(mesh, line, start, words):
    paged = Paged(mesh, [line])
    config = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(8, 8), q_chunk_size=32, k_chunk_size=32)
    where = rows(mesh, np.array([start], np.int32))
    query = tiles(mesh, numbers(1, HEADS, 128, SIZE))
    with pytest.raises(RuntimeError, match=words):
        read(chunked(query, *paged.caches, paged.table, chunk_start_idx_tensor=where, program_config=config))


def test_chunks_that_do_not_fit_are_refused(mesh):
    paged, query = Paged(mesh, [[0, 1, 2, 3, 4]]), tiles(mesh, numbers(1, HEADS, 128, SIZE))
    config = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(8, 8), q_chunk_size=64, k_chunk_size=64)
    for options, words in (
        ({"chunk_start_idx": 64}, "128 queries from position 64; the page table reaches 160"),
        ({"chunk_start_idx": -32}, "negative"),
        ({"chunk_start_idx": 32, "program_config": config}, "no multiple of q_chunk_size 64"),
        ({}, "chunk_start_idx or"),
        ({"chunk_start_idx_tensor": rows(mesh, np.zeros(2, np.int32))}, r"\[2\]; \[1\] is needed"),
        ({"chunk_start_idx_tensor": rows(mesh, np.zeros(1, np.uint32))}, "UINT32"),
    ):
        with pytest.raises(RuntimeError, match=words):
            chunked(query, *paged.caches, paged.table, **options)
    with pytest.raises(RuntimeError, match="2 rows, input_tensor_q 1"):
        chunked(query, *paged.caches, rows(mesh, np.zeros((2, 8), np.int32)), 0)


@pytest.mark.parametrize("dtype", [ttnn.bfloat16, ttnn.bfloat8_b])
def test_decode_attention_of_ragged_rows(mesh, dtype):
    lines = [[7, 30, 2, 11], [5, -1, 99, -7], [-1] * 4, [9, 12, 13, 14], [3, 4, -1, -1]]
    paged = Paged(mesh, lines, dtype=dtype)
    positions = [127, 31, -1, 64, 0]
    query = numbers(1, 5, HEADS, SIZE)
    result = decode(
        tiles(mesh, query, memory=height_shards((32, SIZE), 5)),
        *paged.caches,
        page_table_tensor=paged.table,
        cur_pos_tensor=rows(mesh, np.array(positions, np.int32)),
        scale=SCALE,
    )
    assert result.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    out = read(result)[0]
    for row, position in enumerate(positions):
        if position < 0:
            assert (out[row] == 0).all()
            continue
        expected = plain_attention(query[0, row][:, None], *paged.sides(row, position + 1), SCALE, position)
        np.testing.assert_allclose(out[row], expected[:, 0], rtol=1e-5, atol=1e-5)


def test_a_decode_row_does_not_depend_on_the_others(mesh):
    paged = Paged(mesh, [[7, 30], [5, 8], [9, 2]])
    query = numbers(1, 3, HEADS, SIZE)
    together = read(
        decode(tiles(mesh, query), *paged.caches, paged.table, cur_pos_tensor=rows(mesh, np.array([40, 3, 63])))
    )
    alone = Paged(mesh, [[5, 8]])
    single = decode(
        tiles(mesh, query[:, 1:2]), *alone.caches, alone.table, cur_pos_tensor=rows(mesh, np.array([3], np.int32))
    )
    np.testing.assert_array_equal(read(single)[0, 0], together[0, 1])


def test_decode_does_not_see_what_follows_its_position(mesh):
    paged = Paged(mesh, [[7, 30]])
    query, position = tiles(mesh, numbers(1, 1, HEADS, SIZE)), rows(mesh, np.array([10], np.int32))
    before = read(decode(query, *paged.caches, paged.table, cur_pos_tensor=position))
    mesh.ledger.poison([30], caches=paged.caches)
    paged.key[7, :, 11:] = np.nan
    caches = tiles(mesh, paged.key), paged.caches[1]
    np.testing.assert_array_equal(read(decode(query, *caches, paged.table, cur_pos_tensor=position)), before)


@pytest.mark.parametrize(
    ("position", "line", "words"),
    [
        (64, [0, 1], "row 0: position 64 is beyond the 64 positions"),
        (40, [0, -1], "row 0, column 1: block -1"),
        (40, [0, 40], "row 0, column 1: block 40"),
    ],
)
def test_decode_outside_its_table_is_refused_when_it_runs(mesh, position, line, words):
    paged = Paged(mesh, [line])
    where = rows(mesh, np.array([position], np.int32))
    with pytest.raises(RuntimeError, match=words):
        read(decode(tiles(mesh, numbers(1, 1, HEADS, SIZE)), *paged.caches, paged.table, cur_pos_tensor=where))


@pytest.mark.parametrize(
    ("q_shape", "k_shape", "words"),
    [
        ((1, 9, 128, 64), (1, 4, 128, 64), "9 query heads are no multiple of 4"),
        ((1, 9, 128, 64), (1, 3, 256, 64), "128 queries over 256 keys"),
        ((4, 9, 128, 64), (1, 3, 128, 64), "batch 4"),
        ((1, 9, 128, 64), (1, 3, 128, 32), "head size 64"),
        ((9, 128, 64), (3, 128, 64), "rank 4"),
    ],
)
def test_attention_that_does_not_fit_is_refused(mesh, q_shape, k_shape, words):
    key = tiles(mesh, np.zeros(k_shape, np.float32))
    with pytest.raises(RuntimeError, match=words):
        attention(tiles(mesh, np.zeros(q_shape, np.float32)), key, key)


def test_decode_arguments_that_do_not_fit_are_refused(mesh):
    paged = Paged(mesh, [[0, 1]] * 4)
    query, positions = tiles(mesh, numbers(1, 4, HEADS, SIZE)), rows(mesh, np.zeros(4, np.int32))

    def call(q=query, table=paged.table, where=positions, **options):
        decode(q, *paged.caches, table, cur_pos_tensor=where, **options)

    for changes, words in (
        ({"q": tiles(mesh, numbers(1, 4, HEADS, SIZE), ttnn.bfloat8_b)}, "BFLOAT8_B; allowed: BFLOAT16"),
        ({"q": tiles(mesh, numbers(1, 4, 8, SIZE))}, "8 query heads"),
        ({"where": rows(mesh, np.zeros(4, np.uint32))}, "cur_pos_tensor has dtype UINT32"),
        ({"where": rows(mesh, np.zeros(5, np.int32))}, r"cur_pos_tensor \[5\]"),
        ({"table": rows(mesh, np.zeros((5, 2), np.int32))}, r"page_table_tensor \[5, 2\]"),
        ({"memory_config": height_shards((32, SIZE), 4)}, "sharded result"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call(**changes)
    with pytest.raises(TypeError, match="cur_pos_tensor"):
        decode(query, *paged.caches, paged.table)
