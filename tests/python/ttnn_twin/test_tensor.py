# SPDX-License-Identifier: Apache-2.0
"""Tensors and specifications."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (np.float32, ttnn.float32),
        (np.int32, ttnn.int32),
        (np.uint32, ttnn.uint32),
        (np.uint16, ttnn.uint16),
        (np.uint8, ttnn.uint8),
    ],
)
def test_type_follows_the_array_and_comes_back(kind, dtype):
    array = np.array([[1, 2, 3]], kind)
    tensor = ttnn.Tensor(array)
    assert tensor.dtype is dtype
    assert tensor.shape == (1, 3)
    assert tensor.to_numpy().dtype == kind
    np.testing.assert_array_equal(tensor.to_numpy(), array)


def test_host_tensor_describes_itself():
    tensor = ttnn.Tensor(np.zeros((1, 1, 5, 40), np.float32), ttnn.bfloat16)
    assert tensor.storage_type() is ttnn.StorageType.HOST
    assert tensor.is_allocated()
    assert tensor.device() is None
    assert tensor.layout is ttnn.ROW_MAJOR_LAYOUT
    assert tensor.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    assert tensor.spec.memory_config == tensor.memory_config()
    assert tensor.padded_shape == tensor.shape == [1, 1, 5, 40]
    assert tensor.buffer_id is None
    assert tensor.cpu().to_numpy() is tensor.to_numpy()


@pytest.mark.parametrize(
    ("shape", "padded"),
    [((1, 1, 5, 40), (1, 1, 32, 64)), ((2, 5, 3), (2, 32, 32)), ((5,), (32, 32)), ((64, 32), (64, 32))],
)
def test_tile_layout_pads_to_tiles(shape, padded):
    spec = ttnn.TensorSpec(shape, ttnn.bfloat16, ttnn.TILE_LAYOUT)
    assert spec.shape == shape
    assert spec.padded_shape == padded


def test_block_float_is_always_tiled():
    assert ttnn.Tensor(np.ones((2, 3), np.float32), ttnn.bfloat8_b).layout is ttnn.TILE_LAYOUT
    assert ttnn.ones((2, 3), dtype=ttnn.bfloat4_b).layout is ttnn.TILE_LAYOUT


def test_signed_values_wrap_into_unsigned():
    tensor = ttnn.Tensor(np.array([-1, 2], np.int32), ttnn.uint32)
    np.testing.assert_array_equal(tensor.to_numpy(), np.array([2**32 - 1, 2], np.uint32))


def test_matching_array_is_borrowed_and_any_other_is_copied():
    same, other = np.zeros(3, np.int32), np.zeros(3, np.int64)
    borrowed, copied = ttnn.Tensor(same, ttnn.int32), ttnn.Tensor(other, ttnn.int32)
    same[0] = other[0] = 9
    assert borrowed.to_numpy()[0] == 9
    assert copied.to_numpy()[0] == 0


def test_scalar_and_empty_shapes_are_kept():
    assert ttnn.Tensor(np.array(3, np.int32)).shape == ()
    assert ttnn.Tensor(np.zeros((0, 3), np.int32)).shape == (0, 3)


def test_strided_array_keeps_its_values():
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    np.testing.assert_array_equal(ttnn.Tensor(array).to_numpy(), array)


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        ([1, 2], None, "NumPy array"),
        (np.zeros(2, np.float64), None, "float64"),
        (np.zeros(2, np.float64), ttnn.bfloat16, "float64"),
        (np.zeros(2, np.int64), ttnn.bfloat16, "int64"),
    ],
)
def test_elements_the_device_does_not_take_are_refused(array, dtype, message):
    with pytest.raises(TypeError, match=message):
        ttnn.Tensor(array, dtype)


def test_read_only_array_is_refused():
    array = np.zeros(2, np.int32)
    array.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        ttnn.Tensor(array)


def test_specification_is_a_value():
    one = ttnn.TensorSpec([1, 32], ttnn.int32)
    same = ttnn.TensorSpec((1, 32), ttnn.int32, padded_shape=(1, 32))
    assert one == same
    assert hash(one) == hash(same)
    for other in (
        ttnn.TensorSpec((1, 31), ttnn.int32),
        ttnn.TensorSpec((1, 32), ttnn.uint32),
        ttnn.TensorSpec((1, 32), ttnn.int32, ttnn.TILE_LAYOUT),
        ttnn.TensorSpec((1, 32), ttnn.int32, memory_config=ttnn.L1_MEMORY_CONFIG),
        ttnn.TensorSpec((1, 32), ttnn.int32, padded_shape=(32, 32)),
    ):
        assert one != other


@pytest.mark.parametrize(
    ("dtype", "bytes_"),
    [(ttnn.bfloat16, 2048), (ttnn.float32, 4096), (ttnn.bfloat8_b, 1088), (ttnn.bfloat4_b, 576), (ttnn.uint16, 2048)],
)
def test_device_bytes_of_one_tile(dtype, bytes_):
    assert ttnn.TensorSpec((1, 1), dtype, ttnn.TILE_LAYOUT).device_bytes == bytes_


def test_shape_compares_like_a_tuple_or_list():
    shape = ttnn.Shape([1, 2, 3])
    assert shape == (1, 2, 3)
    assert shape == [1, 2, 3]
    assert shape != (1, 2)
    assert shape[-1] == 3
    assert shape.rank == 3
    assert hash(shape) == hash((1, 2, 3))
    assert repr(shape) == "Shape([1, 2, 3])"


def test_to_dtype_converts_on_the_host():
    tensor = ttnn.to_dtype(ttnn.Tensor(np.array([[1.75]], np.float32), ttnn.bfloat8_b), ttnn.int32)
    assert tensor.dtype is ttnn.int32
    assert tensor.layout is ttnn.TILE_LAYOUT
    assert tensor.to_numpy().tolist() == [[1]]


def test_sharded_memory_config_matches_ttnn():
    grid = ttnn.num_cores_to_corerangeset(9, ttnn.CoreCoord(8, 8), True)
    assert grid.num_cores() == 9
    assert [(r.start, r.end) for r in grid.ranges()] == [
        (ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 0)),
        (ttnn.CoreCoord(0, 1), ttnn.CoreCoord(0, 1)),
    ]
    config = ttnn.create_sharded_memory_config(
        (32, 64),
        core_grid=grid,
        strategy=ttnn.ShardStrategy.HEIGHT,
        orientation=ttnn.ShardOrientation.ROW_MAJOR,
        use_height_and_width_as_shard_shape=True,
    )
    assert config.is_sharded()
    assert config.memory_layout is ttnn.TensorMemoryLayout.HEIGHT_SHARDED
    assert config.buffer_type is ttnn.BufferType.L1
    assert config.shard_spec.shape == (32, 64)
    assert config.shard_spec.grid == grid


@pytest.mark.parametrize(
    ("shape", "grid", "strategy", "shard"),
    [
        ((64, 64), (2, 2), ttnn.ShardStrategy.BLOCK, (32, 32)),
        ((1, 1, 64, 64), (1, 2), ttnn.ShardStrategy.HEIGHT, (32, 64)),
        ((1, 2, 64, 64), (1, 2), ttnn.ShardStrategy.WIDTH, (128, 32)),
    ],
)
def test_shards_of_a_whole_tensor(shape, grid, strategy, shard):
    config = ttnn.create_sharded_memory_config(shape, ttnn.CoreGrid(x=grid[0], y=grid[1]), strategy)
    assert config.shard_spec.shape == shard


def test_uneven_shards_and_too_many_cores_are_refused():
    with pytest.raises(RuntimeError, match="65 x 64"):
        ttnn.create_sharded_memory_config((1, 1, 65, 64), ttnn.CoreGrid(x=1, y=2), ttnn.ShardStrategy.HEIGHT)
    with pytest.raises(RuntimeError, match="65 cores asked"):
        ttnn.num_cores_to_corerangeset(65, ttnn.CoreCoord(8, 8), True)


@pytest.mark.parametrize(("count", "boxes"), [(9, [(0, 0, 0, 7), (1, 0, 1, 0)]), (16, [(0, 0, 1, 7)]), (0, [])])
def test_cores_column_by_column(count, boxes):
    ranges = ttnn.num_cores_to_corerangeset(count, ttnn.CoreCoord((8, 8))).ranges()
    assert [(r.start.x, r.start.y, r.end.x, r.end.y) for r in ranges] == boxes
