# SPDX-License-Identifier: Apache-2.0
"""Layout and placement: values stay, metadata changes, and what is so already shares memory."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import height_shards, numbers, read, rows, tiles


def test_untilize_and_tilize(mesh):
    x = numbers(1, 1, 32, 64)
    flat = ttnn.untilize(tiles(mesh, x, ttnn.bfloat8_b), use_multicore=True)
    assert (flat.layout, flat.dtype) == (ttnn.ROW_MAJOR_LAYOUT, ttnn.bfloat16)
    back = ttnn.tilize(flat, dtype=ttnn.bfloat8_b)
    assert (back.layout, back.dtype) == (ttnn.TILE_LAYOUT, ttnn.bfloat8_b)
    np.testing.assert_array_equal(read(back), x)


def test_untilize_drops_the_padding(mesh):
    flat = ttnn.untilize(tiles(mesh, numbers(1, 1, 8, 100)))
    assert flat.padded_shape == flat.shape == (1, 1, 8, 100)


def test_tilize_needs_rows_of_whole_tiles(mesh):
    with pytest.raises(RuntimeError, match=r"\[1, 1, 8, 64\].*multiples of 32"):
        ttnn.tilize(rows(mesh, numbers(1, 1, 8, 64)))
    with pytest.raises(RuntimeError, match="TILE"):
        ttnn.tilize(tiles(mesh, numbers(32, 32)))
    with pytest.raises(RuntimeError, match="ROW_MAJOR"):
        ttnn.untilize(rows(mesh, numbers(32, 32)))
    with pytest.raises(RuntimeError, match="typecast"):
        ttnn.tilize(rows(mesh, np.zeros((32, 32), np.int32)), dtype=ttnn.bfloat16)


def test_to_layout_on_the_device(mesh):
    x = numbers(1, 1, 8, 100)
    tiled = ttnn.to_layout(rows(mesh, x), ttnn.TILE_LAYOUT)
    assert tiled.padded_shape == (1, 1, 32, 128)
    flat = ttnn.to_layout(tiled, ttnn.ROW_MAJOR_LAYOUT)
    np.testing.assert_array_equal(read(flat), x)
    assert ttnn.to_layout(flat, ttnn.ROW_MAJOR_LAYOUT).buffer_id == flat.buffer_id
    with pytest.raises(RuntimeError, match="FLOAT32"):
        ttnn.to_layout(tiled, ttnn.ROW_MAJOR_LAYOUT, dtype=ttnn.float32)


def test_to_layout_on_the_host():
    array = numbers(8, 100)
    host = ttnn.to_layout(ttnn.Tensor(array, ttnn.bfloat16), ttnn.TILE_LAYOUT)
    assert (host.layout, host.padded_shape) == (ttnn.TILE_LAYOUT, (32, 128))
    assert host.storage_type() is ttnn.StorageType.HOST
    np.testing.assert_array_equal(host.to_numpy(), array)
    assert ttnn.to_layout(host, ttnn.TILE_LAYOUT) is host


def test_to_memory_config_moves_and_shares(mesh):
    x = numbers(1, 8, 32, 64)
    dram = tiles(mesh, x)
    l1 = ttnn.to_memory_config(dram, ttnn.L1_MEMORY_CONFIG, dtype=ttnn.bfloat8_b)
    assert (l1.memory_config(), l1.dtype) == (ttnn.L1_MEMORY_CONFIG, ttnn.bfloat8_b)
    np.testing.assert_array_equal(read(l1), x)
    same = ttnn.to_memory_config(dram, ttnn.DRAM_MEMORY_CONFIG, dtype=ttnn.bfloat8_b)
    assert (same.buffer_id, same.dtype) == (dram.buffer_id, ttnn.bfloat16)


def test_sharding_there_and_back(mesh):
    x = numbers(1, 8, 3, 64)
    shards = height_shards((32, 64), 8)
    sharded = ttnn.interleaved_to_sharded(tiles(mesh, x), shards)
    assert sharded.memory_config() == shards
    assert sharded.padded_shape == (1, 8, 32, 64)
    plain = ttnn.sharded_to_interleaved(sharded, ttnn.L1_MEMORY_CONFIG, ttnn.bfloat8_b)
    assert (plain.memory_config(), plain.dtype) == (ttnn.L1_MEMORY_CONFIG, ttnn.bfloat8_b)
    np.testing.assert_array_equal(read(plain), x)
    assert ttnn.sharded_to_interleaved(sharded).memory_config() == ttnn.DRAM_MEMORY_CONFIG
    assert ttnn.sharded_to_interleaved(plain).buffer_id == plain.buffer_id
    assert ttnn.to_memory_config(sharded, shards).buffer_id == sharded.buffer_id


def test_a_padded_shape_survives_the_move(mesh):
    cut = ttnn.reshape(tiles(mesh, numbers(1, 1, 32, 64)), (1, 1, 4, 64), (1, 1, 32, 64))
    moved = ttnn.to_memory_config(cut, ttnn.L1_MEMORY_CONFIG)
    assert (moved.shape, moved.padded_shape) == ((1, 1, 4, 64), (1, 1, 32, 64))


@pytest.mark.parametrize(
    ("shard", "cores", "words"),
    [((32, 64), 4, "8 shards of 32 x 64 on 4 cores"), ((32, 32), 8, "shards are 32 wide, the tensor 64")],
)
def test_shards_that_do_not_fit_are_refused(mesh, shard, cores, words):
    tensor = tiles(mesh, numbers(1, 8, 32, 64))
    for call in (ttnn.interleaved_to_sharded, ttnn.to_memory_config):
        with pytest.raises(RuntimeError, match=words):
            call(tensor, height_shards(shard, cores))


def test_placement_ops_refuse_the_wrong_side(mesh):
    tensor, shards = tiles(mesh, numbers(1, 8, 32, 64)), height_shards((32, 64), 8)
    with pytest.raises(RuntimeError, match="must be sharded"):
        ttnn.interleaved_to_sharded(tensor, ttnn.L1_MEMORY_CONFIG)
    sharded = ttnn.interleaved_to_sharded(tensor, shards)
    with pytest.raises(RuntimeError, match="HEIGHT_SHARDED"):
        ttnn.interleaved_to_sharded(sharded, shards)
    with pytest.raises(RuntimeError, match="interleaved"):
        ttnn.sharded_to_interleaved(sharded, shards)
    with pytest.raises(RuntimeError, match="shard shape"):
        ttnn.to_memory_config(tensor, ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG)
