# SPDX-License-Identifier: Apache-2.0
"""Sums, products, activations, conversions and the in-place increment against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import numbers, read, rows, tiles


@pytest.mark.parametrize(
    ("op", "formula"),
    [
        (ttnn.add, np.add),
        (ttnn.subtract, np.subtract),
        (ttnn.sub, np.subtract),
        (ttnn.multiply, np.multiply),
        (ttnn.mul, np.multiply),
        (ttnn.minimum, np.minimum),
        (ttnn.maximum, np.maximum),
        (ttnn.eq, np.equal),
    ],
)
@pytest.mark.parametrize("other_shape", [(1, 1, 32, 64), (1, 1, 1, 64), (1, 1, 32, 1), (32, 64)])
def test_binary_op_broadcasts(mesh, op, formula, other_shape):
    a, b = numbers(1, 1, 32, 64), numbers(*other_shape, seed=1)
    result = op(tiles(mesh, a), tiles(mesh, b))
    assert (result.shape, result.dtype, result.layout) == ((1, 1, 32, 64), ttnn.bfloat16, ttnn.TILE_LAYOUT)
    np.testing.assert_array_equal(read(result), formula(a, b))


def test_binary_op_takes_a_number_on_either_side(mesh):
    a = numbers(1, 1, 32, 32)
    np.testing.assert_array_equal(read(ttnn.subtract(2.5, tiles(mesh, a))), np.float32(2.5) - a)
    np.testing.assert_array_equal(read(ttnn.multiply(tiles(mesh, a), 3)), a * np.float32(3))


def test_gated_product_applies_silu_to_the_first_operand_only(mesh):
    gate, up = numbers(1, 1, 32, 64) * 30, numbers(1, 1, 32, 64, seed=1)
    result = ttnn.mul(
        tiles(mesh, gate),
        tiles(mesh, up),
        input_tensor_a_activations=[ttnn.UnaryOpType.SILU],
        dtype=ttnn.bfloat8_b,
    )
    wide = gate.astype(np.float64)
    expected = wide / (1 + np.exp(-wide)) * up
    assert result.dtype is ttnn.bfloat8_b
    np.testing.assert_allclose(read(result), expected, rtol=1e-5, atol=1e-6)


def test_silu_of_very_negative_numbers_is_zero(mesh):
    values = np.full((1, 1, 32, 32), -200.0, np.float32)
    assert (read(ttnn.silu(tiles(mesh, values))) == 0).all()


def test_activations_of_the_second_operand_and_of_the_result(mesh):
    a, b = numbers(1, 1, 32, 32), numbers(1, 1, 32, 32, seed=1)
    result = ttnn.add(
        tiles(mesh, a),
        tiles(mesh, b),
        input_tensor_b_activations=[ttnn.UnaryOpType.RELU],
        activations=[ttnn.UnaryOpType.TANH],
    )
    np.testing.assert_allclose(read(result), np.tanh(a + np.maximum(b, 0)), rtol=1e-6)


def test_binary_op_writes_into_an_output_tensor(mesh):
    a = numbers(1, 1, 32, 32)
    target = tiles(mesh, np.zeros_like(a))
    result = ttnn.add(tiles(mesh, a), 1.0, output_tensor=target)
    assert result.buffer_id == target.buffer_id
    np.testing.assert_array_equal(read(target), a + 1)


def test_result_type_layout_and_place_follow_the_first_operand(mesh):
    a = tiles(mesh, numbers(1, 1, 32, 32), ttnn.float32, ttnn.L1_MEMORY_CONFIG)
    b = rows(mesh, numbers(1, 1, 32, 32))
    mixed = ttnn.add(a, b)
    assert (mixed.dtype, mixed.layout) == (ttnn.float32, ttnn.TILE_LAYOUT)
    assert mixed.memory_config() == ttnn.L1_MEMORY_CONFIG
    assert ttnn.add(b, b).layout is ttnn.ROW_MAJOR_LAYOUT


def test_integers_add_and_wrap(mesh):
    values = np.full((1, 1, 32, 32), 0xFFFFFFFF, np.uint32)
    assert (read(ttnn.add(tiles(mesh, values), tiles(mesh, values))) == 0xFFFFFFFE).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f, i, u: ttnn.add(f(1, 1, 32, 32), f(1, 1, 32, 64)), r"\[1, 1, 32, 32\] and \[1, 1, 32, 64\]"),
        (lambda f, i, u: ttnn.add(f(1, 1, 8, 32), f(1, 1, 32, 32)), "do not broadcast"),
        (lambda f, i, u: ttnn.add(i(32, 32), f(32, 32)), "INT32, BFLOAT16"),
        (lambda f, i, u: ttnn.add(i(32, 32), u(32, 32)), "INT32, UINT32"),
        (lambda f, i, u: ttnn.add(f(32, 32), f(32, 32), dtype=ttnn.int32), "INT32"),
        (lambda f, i, u: ttnn.add(i(32, 32), 2.5), "scalar 2.5"),
        (lambda f, i, u: ttnn.mul(i(32, 32), 2, activations=[ttnn.UnaryOpType.SILU]), "SILU"),
        (lambda f, i, u: ttnn.add(f(32, 32), f(32, 32), output_tensor=f(64, 32)), r"output tensor \[64, 32\]"),
        (lambda f, i, u: ttnn.silu(i(32, 32)), "INT32"),
        (lambda f, i, u: ttnn.mul(f(32, 32), 1, activations=[ttnn.UnaryOpType.GELU]), "GELU"),
    ],
)
def test_operands_that_do_not_fit_are_refused(mesh, make, words):
    def made(dtype):
        return lambda *shape: tiles(mesh, np.zeros(shape, dtype))

    with pytest.raises(RuntimeError, match=words):
        make(made(np.float32), made(np.int32), made(np.uint32))


def test_operands_of_wrong_python_types_are_type_errors(mesh):
    tensor = tiles(mesh, numbers(32, 32))
    for call in (
        lambda: ttnn.add(1, 2),
        lambda: ttnn.add(tensor, numbers(32, 32)),
        lambda: ttnn.mul(tensor, tensor, input_tensor_a_activations=["silu"]),
    ):
        with pytest.raises(TypeError, match=r"add|multiply"):
            call()
    with pytest.raises(RuntimeError, match=r"input_tensor_b.*on the host"):
        ttnn.add(tensor, tensor.cpu())


@pytest.mark.parametrize(
    ("source", "dtype", "expected"),
    [
        (np.array([1.9, -1.9, 3e9, np.nan], np.float32), ttnn.int32, [1, -1, 2**31 - 1, 0]),
        (np.array([1.9, -1.9, 5e9], np.float32), ttnn.uint32, [1, 0, 2**32 - 1]),
        (np.array([1.9, -1.9, 7e4], np.float32), ttnn.uint16, [1, 0, 65535]),
        (np.array([-1, 5], np.int32), ttnn.uint32, [2**32 - 1, 5]),
        (np.array([2**32 - 1, 5], np.uint32), ttnn.int32, [-1, 5]),
        (np.array([65537, 5], np.int32), ttnn.uint16, [1, 5]),
        (np.array([-3, 5], np.int32), ttnn.bfloat16, [-3.0, 5.0]),
    ],
)
def test_typecast(mesh, source, dtype, expected):
    tensor = rows(mesh, source)
    result = ttnn.typecast(tensor, dtype)
    assert result.dtype is dtype
    assert result.buffer_id != tensor.buffer_id
    assert read(result).tolist() == expected


def test_typecast_to_a_block_format_needs_tiles(mesh):
    with pytest.raises(RuntimeError, match="ROW_MAJOR"):
        ttnn.typecast(rows(mesh, numbers(32, 32)), ttnn.bfloat8_b)
    assert ttnn.typecast(tiles(mesh, numbers(32, 32)), ttnn.bfloat8_b).dtype is ttnn.bfloat8_b


def test_plus_one_counts_in_place(mesh):
    positions = rows(mesh, np.array([-1, 0, 7, 2**31 - 1], np.int32))
    result = ttnn.plus_one(positions, skip_negative_entries=True)
    assert result.buffer_id == positions.buffer_id
    assert read(positions).tolist() == [-1, 1, 8, 2**31 - 1]
    ttnn.plus_one(positions)
    assert read(positions).tolist()[:3] == [0, 2, 9]
    unsigned = rows(mesh, np.array([[0, 2**32 - 1]], np.uint32))
    ttnn.plus_one(unsigned)
    assert read(unsigned).tolist() == [[1, 0]]


def test_plus_one_refuses_floats_and_tiles(mesh):
    with pytest.raises(RuntimeError, match="BFLOAT16"):
        ttnn.plus_one(rows(mesh, numbers(4)))
    with pytest.raises(RuntimeError, match="TILE"):
        ttnn.plus_one(tiles(mesh, np.zeros((32, 32), np.int32)))


def test_log_is_the_natural_logarithm(mesh):
    values = np.array([[1.0, 0.5, 0.0], [np.e, 2.0, 10.0]], np.float32)
    tensor = rows(mesh, values, ttnn.float32)
    result = ttnn.log(tensor)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(read(result), np.log(values), rtol=1e-6)
    assert result.layout is tensor.layout
    integers = rows(mesh, np.ones(3, np.int32), ttnn.int32)
    with pytest.raises(RuntimeError, match="log: input_tensor has dtype"):
        ttnn.log(integers)
