# SPDX-License-Identifier: Apache-2.0
"""Slices with host and device bounds, split, concat and pad."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import numbers, read, rows, tiles


def bounds(mesh, start, end, dtype=np.uint32):
    return rows(mesh, np.asarray(start, dtype)), rows(mesh, np.asarray(end, dtype))


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        ((0, 0, 0, 0), (1, 1, 8, 96), None),
        ((0, 0, 3, 5), (1, 1, 8, 96), None),
        ((0, 0, -32, 0), (1, 1, 64, -32), None),
        ((0, 0, 0, 0), (1, 1, 64, 96), (1, 1, 2, 3)),
    ],
)
@pytest.mark.parametrize("make", [rows, tiles])
def test_slice_with_host_bounds(mesh, make, start, end, step):
    x = numbers(1, 1, 64, 96)
    expected = x[tuple(slice(*cut) for cut in zip(start, end, step or (1,) * 4, strict=True))]
    result = ttnn.slice(make(mesh, x), start, end, step)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(read(result), expected)


def test_slice_by_every_keyword(mesh):
    x = numbers(1, 1, 64, 64)
    tensor = tiles(mesh, x)
    by_start = ttnn.slice(tensor, starts=(0, 0, 32, 0), ends=(1, 1, 64, 64), steps=(1, 1, 1, 1))
    by_slice_start = ttnn.slice(tensor, slice_start=(0, 0, 32, 0), slice_end=(1, 1, 64, 64))
    for result in (by_start, by_slice_start):
        np.testing.assert_array_equal(read(result), x[:, :, 32:])


def test_slice_of_everything_shares_memory_and_another_place_copies(mesh):
    tensor = tiles(mesh, numbers(1, 1, 32, 64))
    assert ttnn.slice(tensor, (0, 0, 0, 0), (1, 1, 32, 64)).buffer_id == tensor.buffer_id
    moved = ttnn.slice(tensor, (0, 0, 0, 0), (1, 1, 32, 64), memory_config=ttnn.L1_MEMORY_CONFIG)
    assert moved.buffer_id != tensor.buffer_id


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ((0, 0, 0, 0), (1, 1, 65, 64)),
        ((0, 0, 64, 0), (1, 1, 64, 64)),
        ((0, 0, 16, 0), (1, 1, 8, 64)),
    ],
)
def test_slice_outside_the_tensor_names_dimension_and_bounds(mesh, start, end):
    with pytest.raises(RuntimeError, match="dimension 2 of size 64"):
        ttnn.slice(tiles(mesh, numbers(1, 1, 64, 64)), start, end)


def test_slice_with_bounds_of_another_rank_is_refused(mesh):
    with pytest.raises(RuntimeError, match="rank 4"):
        ttnn.slice(tiles(mesh, numbers(1, 1, 64, 64)), (0, 0, 0), (1, 1, 64))


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_slice_with_device_bounds_reads_them_when_it_runs(mesh, dtype):
    x = numbers(1, 1, 128, 64)
    start, end = bounds(mesh, (0, 0, 32, 0), (1, 1, 64, 64), dtype)
    result = ttnn.slice(tiles(mesh, x), start, end, slice_dim=2, num_devices=4)
    np.testing.assert_array_equal(read(result), x[:, :, 32:64])


def test_a_replay_slices_at_the_refreshed_bounds(mesh):
    x = numbers(1, 1, 128, 64)
    hidden = tiles(mesh, x)
    start, end = bounds(mesh, (0, 0, 0, 0), (1, 1, 32, 64))
    ttnn.slice(hidden, start, end, slice_dim=2, num_devices=4).deallocate()
    trace = ttnn.begin_trace_capture(mesh)
    tile = ttnn.slice(hidden, start, end, slice_dim=2, num_devices=4)
    ttnn.end_trace_capture(mesh, trace)
    for first in (96, 32):
        ttnn.copy_host_to_device_tensor(ttnn.Tensor(np.array([0, 0, first, 0], np.uint32), ttnn.uint32), start)
        ttnn.copy_host_to_device_tensor(ttnn.Tensor(np.array([1, 1, first + 32, 64], np.uint32), ttnn.uint32), end)
        ttnn.execute_trace(mesh, trace)
        np.testing.assert_array_equal(read(tile), x[:, :, first : first + 32])


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ((0, 0, 112, 0), (1, 1, 144, 64), "dimension 2 of size 128: 112 to 144"),
        ((0, 0, 5, 0), (1, 1, 37, 64), "multiple of 32"),
        ((0, 0, 32, 0), (1, 1, 96, 64), "32 elements"),
        ((0, 0, 32, 8), (1, 1, 64, 64), "dimension 3 of size 64: 8 to 64; everything"),
    ],
)
def test_wrong_device_bounds_are_refused_when_the_op_runs(mesh, start, end, words):
    tensors = bounds(mesh, start, end)
    with pytest.raises(RuntimeError, match=words):
        read(ttnn.slice(tiles(mesh, numbers(1, 1, 128, 64)), *tensors, slice_dim=2, num_devices=4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slice_dim": 2}, "num_devices"),
        ({"slice_dim": 2, "num_devices": 3}, "does not divide by num_devices=3"),
        ({"slice_dim": 2, "num_devices": 8}, "whole tiles"),
    ],
)
def test_device_bounds_need_parts_of_whole_tiles(mesh, options, words):
    start, end = bounds(mesh, (0, 0, 0, 0), (1, 1, 32, 64))
    with pytest.raises(RuntimeError, match=words):
        ttnn.slice(tiles(mesh, numbers(1, 1, 128, 64)), start, end, **options)
    with pytest.raises(TypeError, match="slice_dim=-2"):
        ttnn.slice(tiles(mesh, numbers(1, 1, 128, 64)), start, end, slice_dim=-2, num_devices=4)


@pytest.mark.parametrize(
    ("size", "dim", "widths"), [(64, 3, [64, 64]), (48, -1, [48, 48, 32]), ([32, 96], 3, [32, 96])]
)
def test_split(mesh, size, dim, widths):
    x = numbers(1, 1, 32, 128)
    parts = ttnn.split(tiles(mesh, x), size, dim=dim)
    assert [part.shape[3] for part in parts] == widths
    np.testing.assert_array_equal(np.concatenate([read(part) for part in parts], axis=3), x)


@pytest.mark.parametrize(("size", "words"), [(0, "at least 1"), ([32, 32], "add up to 128"), ([128, 0], "positive")])
def test_split_into_wrong_parts_is_refused(mesh, size, words):
    with pytest.raises(RuntimeError, match=words):
        ttnn.split(tiles(mesh, numbers(1, 1, 32, 128)), size, dim=3)


def test_split_into_one_part_shares_memory(mesh):
    tensor = tiles(mesh, numbers(1, 1, 32, 128))
    assert [part.buffer_id for part in ttnn.split(tensor, 200, dim=3)] == [tensor.buffer_id]


@pytest.mark.parametrize("dim", [0, 2, -1])
def test_concat(mesh, dim):
    a, b = numbers(1, 1, 32, 64), numbers(1, 1, 32, 64, seed=1)
    result = ttnn.concat([tiles(mesh, a, memory=ttnn.L1_MEMORY_CONFIG), tiles(mesh, b)], dim=dim)
    assert result.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    np.testing.assert_array_equal(read(result), np.concatenate([a, b], axis=dim))


def test_concat_of_other_shapes_or_types_is_refused(mesh):
    a = tiles(mesh, numbers(1, 1, 32, 64))
    for other, words in (
        (tiles(mesh, numbers(1, 1, 64, 64)), r"tensors\[1\] \[1, 1, 64, 64\]"),
        (tiles(mesh, numbers(32, 64)), r"tensors\[1\] \[32, 64\]"),
        (tiles(mesh, numbers(1, 1, 32, 64), ttnn.float32), "FLOAT32"),
    ):
        with pytest.raises(RuntimeError, match=words):
            ttnn.concat([a, other], dim=-1)
    with pytest.raises(RuntimeError, match="empty"):
        ttnn.concat([])


def test_pad_around_rows_and_after_tiles(mesh):
    x = numbers(1, 1, 32, 64)
    pairs = ((0, 0), (0, 0), (3, 0), (0, 5))
    np.testing.assert_array_equal(read(ttnn.pad(rows(mesh, x), pairs, -7.0)), np.pad(x, pairs, constant_values=-7))
    short = ttnn.pad(tiles(mesh, x), ((0, 32), (0, 0)), value=1.0)
    np.testing.assert_array_equal(read(short), np.pad(x, ((0, 0), (0, 0), (0, 32), (0, 0)), constant_values=1))


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (((0, 0), (0, 0), (32, 0), (0, 0)), "row-major"),
        (((0, 0), (0, -1)), "negative"),
        (((0, 0),) * 5, "rank 4"),
    ],
)
def test_pad_refuses(mesh, pairs, words):
    with pytest.raises(RuntimeError, match=words):
        ttnn.pad(tiles(mesh, numbers(1, 1, 32, 64)), pairs, 0.0)


def test_pad_with_nothing_shares_memory(mesh):
    tensor = tiles(mesh, numbers(1, 1, 32, 64))
    assert ttnn.pad(tensor, ((0, 0),) * 4, 0.0).buffer_id == tensor.buffer_id
