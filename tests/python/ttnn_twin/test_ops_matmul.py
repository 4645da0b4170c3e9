# SPDX-License-Identifier: Apache-2.0
"""Matrix products against float64."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import numbers, read, rows, tiles


def product(a, b):
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("count", [1, 3, 8, 32, 200])
@pytest.mark.parametrize("weight_shape", [(1, 1, 576, 96), (576, 96)])
def test_linear_of_row_counts(mesh, count, weight_shape):
    x, w = numbers(1, 1, count, 576), numbers(*weight_shape, seed=1)
    result = ttnn.linear(tiles(mesh, x), tiles(mesh, w, ttnn.bfloat8_b))
    assert (result.shape, result.dtype) == ((1, 1, count, 96), ttnn.bfloat16)
    assert result.padded_shape == (1, 1, -(-count // 32) * 32, 96)
    np.testing.assert_allclose(read(result), product(x, w), rtol=1e-5, atol=1e-4)


def test_a_row_does_not_depend_on_the_other_rows_of_a_small_batch(mesh):
    x, w = numbers(1, 1, 4, 576), tiles(mesh, numbers(1, 1, 576, 96, seed=1))
    together = read(ttnn.linear(tiles(mesh, x), w))
    for row in range(4):
        alone = read(ttnn.linear(tiles(mesh, x[:, :, row : row + 1]), w))
        np.testing.assert_array_equal(alone[0, 0, 0], together[0, 0, row])


def test_linear_bias_activation_and_place(mesh):
    x, w, bias = numbers(1, 1, 32, 64), numbers(64, 32, seed=1), numbers(1, 1, 1, 32, seed=2)
    result = ttnn.linear(
        tiles(mesh, x),
        tiles(mesh, w),
        bias=tiles(mesh, bias),
        activation="silu",
        dtype=ttnn.float32,
        memory_config=ttnn.L1_MEMORY_CONFIG,
    )
    y = product(x, w) + bias
    assert (result.dtype, result.memory_config()) == (ttnn.float32, ttnn.L1_MEMORY_CONFIG)
    np.testing.assert_allclose(read(result), y / (1 + np.exp(-y)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((2, 3, 32, 64), (2, 3, 64, 32)),
        ((2, 3, 32, 64), (1, 1, 64, 32)),
        ((1, 1, 32, 64), (2, 3, 64, 32)),
        ((4, 1, 128, 64), (64, 32)),
        ((32, 64), (1, 1, 64, 32)),
        ((1, 32, 64), (1, 1, 64, 32)),
    ],
)
def test_matmul_of_batches(mesh, a_shape, b_shape):
    a, b = numbers(*a_shape), numbers(*b_shape, seed=1)
    result = ttnn.matmul(tiles(mesh, a), tiles(mesh, b))
    assert result.shape == product(a, b).shape
    np.testing.assert_allclose(read(result), product(a, b), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul_of_transposed_operands(mesh, transpose_a, transpose_b):
    a, b = numbers(1, 1, 32, 96), numbers(1, 1, 96, 64, seed=1)
    left = a.swapaxes(2, 3) if transpose_a else a
    right = b.swapaxes(2, 3) if transpose_b else b
    result = ttnn.matmul(tiles(mesh, left), tiles(mesh, right), transpose_a=transpose_a, transpose_b=transpose_b)
    np.testing.assert_allclose(read(result), product(a, b), rtol=1e-5, atol=1e-4)


def test_selector_picks_rows_of_a_wave(mesh):
    hidden = numbers(1, 1, 256, 64)
    selector = np.zeros((1, 1, 32, 256), np.float32)
    selector[0, 0, 0, 37] = selector[0, 0, 1, 128 + 90] = 1
    picked = read(ttnn.matmul(tiles(mesh, selector), tiles(mesh, hidden)))
    np.testing.assert_array_equal(picked[0, 0, :3], [hidden[0, 0, 37], hidden[0, 0, 218], np.zeros(64)])


def test_result_goes_into_an_output_tensor(mesh):
    x, w = numbers(1, 1, 32, 64), numbers(64, 32, seed=1)
    target = tiles(mesh, np.zeros((1, 1, 32, 32), np.float32), ttnn.float32)
    result = ttnn.linear(tiles(mesh, x), tiles(mesh, w), optional_output_tensor=target)
    assert result.buffer_id == target.buffer_id
    np.testing.assert_allclose(read(target), product(x, w), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t, r: ttnn.linear(t(32, 64), t(96, 32)), "width 64.*height 96"),
        (lambda t, r: ttnn.linear(r(32, 64), t(64, 32)), "input_tensor_a has layout ROW_MAJOR"),
        (lambda t, r: ttnn.linear(t(32, 64), r(64, 32)), "input_tensor_b has layout ROW_MAJOR"),
        (lambda t, r: ttnn.linear(t(32, 64, dtype=np.int32), t(64, 32)), "INT32"),
        (lambda t, r: ttnn.linear(t(32, 64), t(64, 32), bias=t(1, 64)), r"bias \[1, 64\]"),
        (lambda t, r: ttnn.linear(t(32, 64), t(64, 32), activation="nope"), "nope"),
        (lambda t, r: ttnn.matmul(t(2, 3, 32, 64), t(1, 3, 64, 32)), "batch dimensions"),
        (lambda t, r: ttnn.matmul(t(32, 64), t(64, 32), dtype=ttnn.uint32), "UINT32"),
    ],
)
def test_products_that_do_not_fit_are_refused(mesh, call, words):
    def tiled(*shape, dtype=np.float32):
        return tiles(mesh, np.zeros(shape, dtype))

    with pytest.raises(RuntimeError, match=words):
        call(tiled, lambda *shape: rows(mesh, np.zeros(shape, np.float32)))
