# SPDX-License-Identifier: Apache-2.0
"""topk and argmax: order, ties, types."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import numbers, read, rows, tiles


def best(x, k):
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, axis=-1), order


@pytest.mark.parametrize(("width", "k"), [(24576, 32), (1000, 32), (64, 64), (33, 1), (4096, 64)])
def test_topk_is_sorted_falling(mesh, width, k):
    x = numbers(1, 1, 5, width)
    values, indices = ttnn.topk(tiles(mesh, x), k=k, dim=-1)
    expected, order = best(x, k)
    assert (values.dtype, indices.dtype) == (ttnn.bfloat16, ttnn.uint16)
    np.testing.assert_array_equal(read(values), expected)
    np.testing.assert_array_equal(read(indices), order)


@pytest.mark.parametrize("width", [64, 8192])
def test_equal_values_come_by_index(mesh, width):
    x = np.random.default_rng(5).integers(0, 4, (1, 1, 32, width)).astype(np.float32)
    _, indices = ttnn.topk(tiles(mesh, x), 32, stable=True)
    np.testing.assert_array_equal(read(indices), best(x, 32)[1])


def test_topk_of_rows_that_are_not_finite(mesh):
    x = np.full((1, 1, 3, 4096), -np.inf, np.float32)
    x[0, 0, 0] = np.nan
    x[0, 0, 1, 9] = 1.0
    _, indices = ttnn.topk(tiles(mesh, x), 2)
    assert read(indices)[0, 0, 1:].tolist() == [[9, 0], [0, 1]]


def test_topk_index_type_follows_width_and_value_type(mesh):
    assert ttnn.topk(tiles(mesh, np.zeros((1, 1, 1, 65536), np.float32)))[1].dtype is ttnn.uint16
    assert ttnn.topk(tiles(mesh, np.zeros((1, 1, 1, 65537), np.float32)))[1].dtype is ttnn.uint32
    assert ttnn.topk(tiles(mesh, np.zeros((1, 1, 1, 64), np.float32), ttnn.float32))[1].dtype is ttnn.uint32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t, r, i: ttnn.topk(r), "ROW_MAJOR"),
        (lambda t, r, i: ttnn.topk(i), "INT32"),
        (lambda t, r, i: ttnn.topk(t, 65), r"k=65 is outside \[1, 64\]"),
        (lambda t, r, i: ttnn.topk(t, 0), "k=0"),
        (lambda t, r, i: ttnn.topk(t, 8, dim=2), "dim=2"),
        (lambda t, r, i: ttnn.argmax(t), "needs dim"),
        (lambda t, r, i: ttnn.argmax(i, dim=-1), "INT32"),
        (lambda t, r, i: ttnn.argmax(r, dim=4), "dimension 4"),
        (lambda t, r, i: ttnn.argmax(r, dim=-1, output_tensor=t), "BFLOAT16"),
    ],
)
def test_refusals(mesh, call, words):
    x = numbers(1, 1, 32, 64)
    with pytest.raises(RuntimeError, match=words):
        call(tiles(mesh, x), rows(mesh, x), tiles(mesh, np.zeros((1, 1, 32, 64), np.int32)))


@pytest.mark.parametrize(
    ("dim", "keepdim", "shape"),
    [(-1, False, (1, 1, 32)), (3, True, (1, 1, 32, 1)), (2, False, (1, 1, 100)), (None, False, ())],
)
def test_argmax(mesh, dim, keepdim, shape):
    x = numbers(1, 1, 32, 100)
    result = ttnn.argmax(rows(mesh, x), dim=dim, keepdim=keepdim)
    assert (result.shape, result.dtype, result.layout) == (shape, ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)
    np.testing.assert_array_equal(read(result).reshape(-1), np.argmax(x, axis=dim).reshape(-1))


def test_argmax_takes_the_lowest_index_among_equals(mesh):
    x = np.zeros((1, 1, 2, 64), np.float32)
    x[0, 0, 1, [9, 30]] = 2.0
    assert read(ttnn.argmax(rows(mesh, x), dim=-1)).tolist() == [[[0, 9]]]


def test_argmax_into_an_output_tensor_of_another_rank(mesh):
    x = numbers(1, 1, 32, 64)
    target = rows(mesh, np.zeros((1, 1, 1, 32), np.uint32))
    result = ttnn.argmax(tiles(mesh, x), dim=-1, output_tensor=target)
    assert result.buffer_id == target.buffer_id
    np.testing.assert_array_equal(read(target).reshape(-1), x.argmax(axis=3).reshape(-1))
    with pytest.raises(RuntimeError, match=r"output_tensor \[31\]"):
        ttnn.argmax(tiles(mesh, x), dim=-1, output_tensor=rows(mesh, np.zeros(31, np.uint32)))
