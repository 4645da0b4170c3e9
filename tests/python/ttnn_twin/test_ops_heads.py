# SPDX-License-Identifier: Apache-2.0
"""Splitting projections into heads, joining them, and rotating pairs."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import height_shards, numbers, read, rows, tiles

HEADS, KV_HEADS, SIZE = 9, 3, 64
WIDTH = (HEADS + 2 * KV_HEADS) * SIZE


@pytest.mark.parametrize(("batch", "length"), [(1, 128), (4, 128), (1, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_prefill_heads(mesh, batch, length, transposed):
    fused = numbers(batch, 1, length, WIDTH)
    query, key, value = ttnn.experimental.nlp_create_qkv_heads(
        tiles(mesh, fused), num_heads=HEADS, num_kv_heads=KV_HEADS, transpose_k_heads=transposed
    )
    parts = fused.reshape(batch, length, -1, SIZE).transpose(0, 2, 1, 3)
    expected_key = parts[:, HEADS : HEADS + KV_HEADS]
    np.testing.assert_array_equal(read(query), parts[:, :HEADS])
    np.testing.assert_array_equal(read(key), expected_key.swapaxes(2, 3) if transposed else expected_key)
    np.testing.assert_array_equal(read(value), parts[:, HEADS + KV_HEADS :])


@pytest.mark.parametrize("count", [1, 5, 32])
def test_decode_heads_come_in_one_shard_per_row(mesh, count):
    fused = numbers(1, 1, 32, WIDTH)
    cut = ttnn.reshape(tiles(mesh, fused), (1, 1, count, WIDTH), (1, 1, 32, WIDTH))
    made = ttnn.experimental.nlp_create_qkv_heads_decode(cut, num_heads=HEADS, num_kv_heads=KV_HEADS)
    parts = fused[0, 0, :count].reshape(count, -1, SIZE)
    bounds = ((0, HEADS), (HEADS, HEADS + KV_HEADS), (HEADS + KV_HEADS, HEADS + 2 * KV_HEADS))
    for tensor, (first, last) in zip(made, bounds, strict=True):
        assert tensor.shape == (1, count, last - first, SIZE)
        assert tensor.memory_config() == height_shards((32, SIZE), count)
        np.testing.assert_array_equal(read(tensor)[0], parts[:, first:last])


@pytest.mark.parametrize("batch", [1, 3])
def test_joined_prefill_heads(mesh, batch):
    heads = numbers(batch, HEADS, 128, SIZE)
    joined = ttnn.experimental.nlp_concat_heads(tiles(mesh, heads))
    assert joined.shape == (batch, 1, 128, HEADS * SIZE)
    np.testing.assert_array_equal(read(joined)[:, 0], heads.transpose(0, 2, 1, 3).reshape(batch, 128, -1))


@pytest.mark.parametrize("count", [1, 5, 32])
def test_joined_decode_heads_fill_a_tile(mesh, count):
    heads = numbers(1, count, HEADS, SIZE)
    sharded = tiles(mesh, heads, memory=height_shards((32, SIZE), count))
    joined = ttnn.experimental.nlp_concat_heads_decode(sharded, num_heads=HEADS)
    assert joined.shape == (1, 1, 32, HEADS * SIZE)
    assert joined.memory_config().memory_layout is ttnn.TensorMemoryLayout.WIDTH_SHARDED
    np.testing.assert_array_equal(read(joined)[0, 0, :count], heads[0].reshape(count, -1))
    assert (read(joined)[0, 0, count:] == 0).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e, t, r: e.nlp_create_qkv_heads(t(1, 1, 32, WIDTH), num_heads=8, num_kv_heads=3), "8 \\+ 2 \\* 3"),
        (lambda e, t, r: e.nlp_create_qkv_heads(t(1, 2, 32, WIDTH), num_heads=9, num_kv_heads=3), "dimension 1"),
        (lambda e, t, r: e.nlp_create_qkv_heads(r(1, 1, 32, WIDTH), num_heads=9, num_kv_heads=3), "ROW_MAJOR"),
        (lambda e, t, r: e.nlp_create_qkv_heads_decode(t(1, 1, 64, WIDTH), num_heads=15), "of 1 to 32"),
        (lambda e, t, r: e.nlp_create_qkv_heads_decode(t(1, 1, 32, 100), num_heads=9), "width 100"),
        (lambda e, t, r: e.nlp_concat_heads(t(32, 64)), "rank 4"),
        (lambda e, t, r: e.nlp_concat_heads_decode(t(1, 4, 9, 64), num_heads=9), "INTERLEAVED"),
    ],
)
def test_heads_that_do_not_fit_are_refused(mesh, call, words):
    with pytest.raises(RuntimeError, match=words):
        call(
            ttnn.experimental,
            lambda *shape: tiles(mesh, np.zeros(shape, np.float32)),
            lambda *shape: rows(mesh, np.zeros(shape, np.float32)),
        )


def test_joining_more_heads_than_there_are_is_refused(mesh):
    sharded = tiles(mesh, numbers(1, 4, HEADS, SIZE), memory=height_shards((32, SIZE), 4))
    with pytest.raises(RuntimeError, match="num_heads=10 for an input of 9"):
        ttnn.experimental.nlp_concat_heads_decode(sharded, num_heads=10)


def pair_swap():
    matrix = np.zeros((1, 1, 32, 32), np.float32)
    even = np.arange(0, 32, 2)
    matrix[0, 0, even + 1, even], matrix[0, 0, even, even + 1] = -1, 1
    return matrix


def tables(positions):
    frequency = 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    angles = np.repeat(np.asarray(positions)[:, None] * frequency, 2, axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(x, cos, sin):
    """Rotate the pairs of ``x`` as complex numbers."""
    pairs = x[..., 0::2].astype(np.float64) + 1j * x[..., 1::2]
    turned = pairs * (cos[..., 0::2] + 1j * sin[..., 0::2])
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("table_rows", [128, 256])
def test_rotary_prefill(mesh, batch, table_rows):
    x = numbers(batch, HEADS, 128, SIZE)
    cos, sin = tables(np.arange(table_rows))
    result = ttnn.experimental.rotary_embedding_llama(
        tiles(mesh, x), tiles(mesh, cos[None, None]), tiles(mesh, sin[None, None]), tiles(mesh, pair_swap())
    )
    np.testing.assert_allclose(read(result), rotated(x, cos[:128], sin[:128]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("table_rows", [1, 32])
def test_rotary_decode_uses_a_position_per_row(mesh, table_rows):
    positions, count = np.array([0, 7, 300, 8191]), 4
    x = numbers(1, count, HEADS, SIZE)
    cos, sin = tables(positions)
    shards = height_shards((32, SIZE), count)

    def table(values):
        tall = np.full((1, count, table_rows, SIZE), 99, np.float32)
        tall[0, :, 0] = values
        return tiles(mesh, tall, memory=shards)

    swap = tiles(mesh, np.tile(pair_swap(), (1, 1, count, 1)), memory=height_shards((32, 32), count))
    result = ttnn.experimental.rotary_embedding_llama(
        tiles(mesh, x, memory=shards), table(cos), table(sin), swap, is_decode_mode=True
    )
    assert result.memory_config() == shards
    np.testing.assert_allclose(read(result)[0], rotated(x[0], cos[:, None], sin[:, None]), rtol=1e-5, atol=1e-5)


def test_rotary_refusals(mesh):
    x, swap = tiles(mesh, numbers(1, HEADS, 128, SIZE)), tiles(mesh, pair_swap())

    def table(*shape, dtype=ttnn.bfloat16):
        return tiles(mesh, np.zeros(shape, np.float32), dtype)

    good = table(1, 1, 128, SIZE)
    for cos, sin, trans, words in (
        (table(1, 1, 64, SIZE), table(1, 1, 64, SIZE), swap, "does not cover"),
        (table(4, 1, 128, SIZE), table(4, 1, 128, SIZE), swap, r"\[1, .., .., 64\]"),
        (table(1, 3, 128, SIZE), table(1, 3, 128, SIZE), swap, "does not cover"),
        (good, table(1, 1, 256, SIZE), swap, "differ"),
        (good, good, table(1, 1, 64, 64), r"trans_mat \[1, 1, 64, 64\]"),
        (table(1, 1, 128, SIZE, dtype=ttnn.float32), good, swap, "cos_cache has dtype FLOAT32"),
    ):
        with pytest.raises(RuntimeError, match=words):
            ttnn.experimental.rotary_embedding_llama(x, cos, sin, trans)
    with pytest.raises(RuntimeError, match="INTERLEAVED; HEIGHT_SHARDED"):
        ttnn.experimental.rotary_embedding_llama(x, good, good, swap, is_decode_mode=True)
    with pytest.raises(RuntimeError, match="head size 48"):
        small = table(1, 1, 32, 48)
        ttnn.experimental.rotary_embedding_llama(small, small, small, swap)
