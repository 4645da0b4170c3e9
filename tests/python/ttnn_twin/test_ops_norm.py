# SPDX-License-Identifier: Apache-2.0
"""Norms against float64."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import numbers, read, rows, tiles


def normalised(x, epsilon):
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + epsilon)


@pytest.mark.parametrize("count", [1, 32, 128])
def test_rms_norm_with_a_row_major_weight(mesh, count):
    x, weight = numbers(1, 1, count, 576), numbers(1, 1, 18, 32, seed=1)
    result = ttnn.rms_norm(tiles(mesh, x), epsilon=1e-5, weight=rows(mesh, weight))
    assert result.shape == x.shape
    np.testing.assert_allclose(read(result), normalised(x, 1e-5) * weight.reshape(576), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weight_rows", [1, 32])
def test_rms_norm_with_a_tile_weight_uses_its_first_row(mesh, weight_rows):
    x, weight = numbers(1, 1, 32, 576), numbers(1, 1, weight_rows, 576, seed=1)
    result = ttnn.rms_norm(tiles(mesh, x), epsilon=1e-5, weight=tiles(mesh, weight))
    np.testing.assert_allclose(read(result), normalised(x, 1e-5) * weight[0, 0, 0], rtol=1e-5, atol=1e-6)


def test_rms_norm_adds_the_residual_first_and_keeps_the_place(mesh):
    x, residual = numbers(1, 1, 32, 64), numbers(1, 1, 32, 64, seed=1)
    result = ttnn.rms_norm(
        tiles(mesh, x, memory=ttnn.L1_MEMORY_CONFIG), epsilon=1e-6, residual_input_tensor=tiles(mesh, residual)
    )
    assert result.memory_config() == ttnn.L1_MEMORY_CONFIG
    np.testing.assert_allclose(read(result), normalised(x + residual, 1e-6), rtol=1e-5, atol=1e-6)


def test_rms_norm_of_zeros_is_zero(mesh):
    assert (read(ttnn.rms_norm(tiles(mesh, np.zeros((1, 1, 32, 64), np.float32)))) == 0).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t, r: ttnn.rms_norm(r(1, 1, 32, 64)), "input_tensor has layout ROW_MAJOR"),
        (lambda t, r: ttnn.rms_norm(t(1, 1, 32, 64), weight=r(1, 1, 3, 32)), r"\[1, 1, 2, 32\] is needed"),
        (lambda t, r: ttnn.rms_norm(t(1, 1, 32, 64), weight=r(1, 1, 1, 64)), r"\[1, 1, 1, 64\]"),
        (lambda t, r: ttnn.rms_norm(t(1, 1, 32, 64), weight=t(1, 1, 1, 96)), "must be 64"),
        (lambda t, r: ttnn.rms_norm(t(32, 64), residual_input_tensor=t(64, 64)), r"residual \[64, 64\]"),
        (lambda t, r: ttnn.rms_norm(t(32, 64, dtype=np.int32)), "INT32"),
        (lambda t, r: ttnn.softmax(t(32, 64), dim=2), "dimension 2"),
        (lambda t, r: ttnn.softmax(t(32, 64, dtype=np.int32)), "INT32"),
    ],
)
def test_norms_that_do_not_fit_are_refused(mesh, call, words):
    def tiled(*shape, dtype=np.float32):
        return tiles(mesh, np.zeros(shape, dtype))

    with pytest.raises(RuntimeError, match=words):
        call(tiled, lambda *shape: rows(mesh, np.zeros(shape, np.float32)))


@pytest.mark.parametrize("dim", [-1, 2])
def test_softmax(mesh, dim):
    x = numbers(1, 1, 32, 64) * 100
    wide = np.exp(x.astype(np.float64) - x.max(axis=dim, keepdims=True))
    result = read(ttnn.softmax(tiles(mesh, x), dim=dim))
    np.testing.assert_allclose(result, wide / wide.sum(axis=dim, keepdims=True), rtol=1e-5, atol=1e-7)
