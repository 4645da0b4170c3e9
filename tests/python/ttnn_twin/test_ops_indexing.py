# SPDX-License-Identifier: Apache-2.0
"""Embedding lookup and gather."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import numbers, read, rows, tiles


@pytest.mark.parametrize(
    ("shape", "result_shape"),
    [((1, 1, 1, 32), (1, 32, 64)), ((1, 5), (1, 5, 64)), ((2, 32), (2, 32, 64)), ((32,), (32, 64))],
)
@pytest.mark.parametrize("weight_shape", [(1, 1, 100, 64), (100, 64)])
def test_embedding_looks_rows_up(mesh, shape, result_shape, weight_shape):
    ids = np.random.default_rng(3).integers(0, 100, shape).astype(np.uint32)
    weight = numbers(*weight_shape)
    result = ttnn.embedding(rows(mesh, ids), rows(mesh, weight), layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat8_b)
    assert (result.shape, result.layout, result.dtype) == (result_shape, ttnn.TILE_LAYOUT, ttnn.bfloat8_b)
    np.testing.assert_array_equal(read(result), weight.reshape(100, 64)[ids.reshape(result_shape[:-1])])


def test_embedding_is_row_major_by_default_and_gathers_rows_of_hidden_states(mesh):
    hidden = numbers(1, 1, 128, 64)
    index = rows(mesh, np.array([[37]], np.uint32))
    result = ttnn.embedding(index, tiles(mesh, hidden))
    assert result.layout is ttnn.ROW_MAJOR_LAYOUT
    np.testing.assert_array_equal(read(result), hidden[0, :, 37:38])


def test_embedding_index_outside_the_table_names_index_position_and_size(mesh):
    ids = np.zeros((1, 32), np.uint32)
    ids[0, 7] = 100
    with pytest.raises(RuntimeError, match=r"index 100 at position 7 is outside the 100 rows"):
        read(ttnn.embedding(rows(mesh, ids), rows(mesh, numbers(100, 64))))


@pytest.mark.parametrize(
    ("ids", "weight", "words"),
    [
        (np.zeros((1, 32), np.int32), np.zeros((100, 64), np.float32), "INT32; allowed: UINT32"),
        (np.zeros((1, 1, 2, 32), np.uint32), np.zeros((100, 64), np.float32), r"\[1, 1, 2, 32\]"),
        (np.zeros((1, 32), np.uint32), np.zeros((2, 1, 100, 64), np.float32), r"\[2, 1, 100, 64\]"),
        (np.zeros((1, 32), np.uint32), np.zeros((100, 64), np.int32), "INT32; allowed: BFLOAT16"),
    ],
)
def test_embedding_refuses(mesh, ids, weight, words):
    with pytest.raises(RuntimeError, match=words):
        ttnn.embedding(rows(mesh, ids), rows(mesh, weight))


@pytest.mark.parametrize("dim", [-1, 2])
def test_gather(mesh, dim):
    x = numbers(1, 1, 64, 64)
    places = np.random.default_rng(4).integers(0, 64, (1, 1, 32, 32)).astype(np.uint32)
    result = ttnn.gather(tiles(mesh, x), dim, index=tiles(mesh, places))
    window = x[:, :, :32] if dim == -1 else x[:, :, :, :32]
    np.testing.assert_array_equal(read(result), np.take_along_axis(window, places.astype(np.int64), axis=dim))


def test_gather_refuses_places_outside(mesh):
    x = tiles(mesh, numbers(1, 1, 32, 64))
    with pytest.raises(RuntimeError, match="index 64 is outside dimension 3 of size 64"):
        read(ttnn.gather(x, 3, tiles(mesh, np.full((1, 1, 32, 32), 64, np.uint32))))
    with pytest.raises(RuntimeError, match=r"index \[1, 1, 64, 32\]"):
        ttnn.gather(x, 3, tiles(mesh, np.zeros((1, 1, 64, 32), np.uint32)))
    with pytest.raises(RuntimeError, match="index has dtype INT32"):
        ttnn.gather(x, 3, tiles(mesh, np.zeros((1, 1, 32, 32), np.int32)))
