# SPDX-License-Identifier: Apache-2.0
"""Reshape with and without padding, unsqueeze, transpose and permute."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import height_shards, numbers, read, rows, tiles


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((1, 1, 256, 96), (2, 1, 128, 96)),
        ((1, 1, 4096, 32), (1, 2, 2048, 32)),
        ((1, 1, 32, 64), (1, 32, 1, -1)),
        ((1, 1, 8, 64), (1, 8, 1, 64)),
        ((1, 1, 32, 64), (2048,)),
    ],
)
def test_reshape_keeps_the_order_of_elements(mesh, shape, target):
    x = numbers(*shape)
    result = ttnn.reshape(tiles(mesh, x), target)
    assert result.shape == x.reshape(target).shape
    np.testing.assert_array_equal(read(result), x.reshape(target))


def test_reshape_of_token_ids(mesh):
    ids = rows(mesh, np.arange(32, dtype=np.uint32).reshape(1, 1, 32))
    assert read(ttnn.reshape(ids, (1, 1, 1, 32))).tolist() == [[[list(range(32))]]]


def test_padded_reshape_takes_the_first_rows(mesh):
    x = numbers(1, 1, 32, 96)
    result = ttnn.reshape(tiles(mesh, x), (1, 1, 3, 96), (1, 1, 32, 96))
    assert (result.shape, result.padded_shape) == ((1, 1, 3, 96), (1, 1, 32, 96))
    np.testing.assert_array_equal(read(result), x[:, :, :3])


def test_padded_reshape_takes_the_first_row_of_each_group(mesh):
    x = numbers(1, 8, 32, 64)
    result = ttnn.reshape(tiles(mesh, x), (1, 8, 1, 64), (1, 8, 32, 64))
    np.testing.assert_array_equal(read(result), x[:, :, :1])


def test_padded_reshape_back_to_the_whole_tile_leaves_zeros_in_the_padding(mesh):
    x = numbers(1, 1, 3, 64)
    result = read(ttnn.reshape(tiles(mesh, x), (1, 1, 32, 64), (1, 1, 32, 64)))
    np.testing.assert_array_equal(result[:, :, :3], x)
    assert (result[:, :, 3:] == 0).all()


def test_padded_reshape_between_ranks(mesh):
    x = numbers(1, 1, 32, 64)
    np.testing.assert_array_equal(read(ttnn.reshape(tiles(mesh, x), (8, 64), (32, 64))), x[0, 0, :8])


def test_reshape_to_the_same_shape_shares_memory(mesh):
    tensor = tiles(mesh, numbers(1, 1, 32, 64))
    same = ttnn.reshape(tensor, (1, 1, 32, 64))
    assert same is not tensor
    assert same.buffer_id == tensor.buffer_id
    same.deallocate()
    assert not tensor.is_allocated()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((1, 1, 31, 64),), "2048 elements.*1984"),
        (((1, 1, -1, 63),), "2048 elements"),
        (((1, 1, 8, 64), (1, 1, 64, 64)), "another volume"),
        (((1, 1, 64, 64), (1, 1, 32, 64)), "smaller"),
        (((1, 1, 8, 64), (1, 1, 16, 128)), "multiples of 32"),
        (((1, 1, 8, 32), (1, 1, 64, 32)), "width of the input is 64"),
    ],
)
def test_reshape_to_another_volume_is_refused(mesh, arguments, words):
    with pytest.raises(RuntimeError, match=words):
        ttnn.reshape(tiles(mesh, numbers(1, 1, 32, 64)), *arguments)


@pytest.mark.parametrize("shape", [(8,), (32, 64), (1, 64, 32), (2, 3, 32, 32)])
def test_unsqueeze_to_four_dimensions(mesh, shape):
    x = numbers(*shape)
    result = ttnn.unsqueeze_to_4D(rows(mesh, x))
    assert result.shape == (*(1,) * (4 - len(shape)), *shape)
    np.testing.assert_array_equal(read(result).reshape(shape), x)


def test_unsqueeze_refuses_five_dimensions(mesh):
    with pytest.raises(RuntimeError, match="rank 5"):
        ttnn.unsqueeze_to_4D(rows(mesh, numbers(1, 1, 1, 2, 2)))


def test_rotary_rows_of_a_decode_step(mesh):
    """Table lookup to one height shard per slot, as a decode step makes it."""
    table, positions = numbers(1, 1, 128, 64), np.arange(32, dtype=np.uint32)[None] * 3
    looked_up = ttnn.unsqueeze_to_4D(ttnn.embedding(rows(mesh, positions), rows(mesh, table), layout=ttnn.TILE_LAYOUT))
    by_slot = ttnn.slice(ttnn.transpose(looked_up, 1, 2), (0, 0, 0, 0), (1, 8, 1, 64))
    sharded = ttnn.interleaved_to_sharded(by_slot, height_shards((32, 64), 8))
    assert (sharded.shape, sharded.padded_shape) == ((1, 8, 1, 64), (1, 8, 32, 64))
    np.testing.assert_array_equal(read(sharded)[0, :, 0], table[0, 0, positions[0, :8]])


def test_transpose_and_permute(mesh):
    x = numbers(2, 3, 32, 64)
    tensor = tiles(mesh, x)
    np.testing.assert_array_equal(read(ttnn.transpose(tensor, -2, -1)), x.swapaxes(2, 3))
    np.testing.assert_array_equal(read(ttnn.transpose(tensor, 1, 2)), x.swapaxes(1, 2))
    np.testing.assert_array_equal(read(ttnn.permute(tensor, (3, 0, -2, 1))), x.transpose(3, 0, 2, 1))


def test_exchanging_dimensions_of_size_one_shares_memory(mesh):
    tensor = tiles(mesh, numbers(1, 1, 32, 64))
    assert ttnn.transpose(tensor, 0, 1).buffer_id == tensor.buffer_id
    assert ttnn.permute(tensor, (0, 1, 2, 3)).buffer_id == tensor.buffer_id
    square = tiles(mesh, numbers(1, 1, 32, 32))
    assert ttnn.transpose(square, 2, 3).buffer_id != square.buffer_id


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ttnn.transpose(x, 0, 4),
        lambda x: ttnn.permute(x, (0, 2, 2, 3)),
        lambda x: ttnn.permute(x, (0, 2, 1)),
    ],
)
def test_wrong_dimensions_are_refused(mesh, call):
    with pytest.raises(RuntimeError, match="dimension"):
        call(tiles(mesh, numbers(1, 1, 32, 64)))
