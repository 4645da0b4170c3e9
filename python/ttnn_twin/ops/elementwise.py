# SPDX-License-Identifier: Apache-2.0
"""Element-wise ops: sums, products, activations and the in-place increment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real

import numpy as np

from ..activations import UnaryOpType
from ..dispatch import dispatch
from ..dtypes import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    DataType,
    int32,
)
from ..memory import MemoryConfig
from ..tensor import Array, Tensor, TensorSpec
from .common import (
    FLOATS,
    INTEGERS,
    refuse,
    require_dtype,
    require_layout,
    require_rank,
    require_tensors,
    run_one,
    share,
)

INT32_MAX = 2**31 - 1


def _silu(x: Array) -> Array:
    result = np.negative(x)
    np.exp(result, out=result)
    result += 1
    return np.divide(x, result, out=result)


def _sigmoid(x: Array) -> Array:
    result = np.negative(x)
    np.exp(result, out=result)
    result += 1
    return np.reciprocal(result, out=result)


_ACTIVATIONS: dict[UnaryOpType, Callable[[Array], Array]] = {
    UnaryOpType.SILU: _silu,
    UnaryOpType.SIGMOID: _sigmoid,
    UnaryOpType.RELU: lambda x: np.maximum(x, 0),
    UnaryOpType.TANH: np.tanh,
    UnaryOpType.EXP: np.exp,
    UnaryOpType.SQRT: np.sqrt,
}


def activate(x: Array, activations: Sequence[UnaryOpType]) -> Array:
    """Return ``x`` with the activations applied in order; ``x`` itself stays as it is."""
    if activations:
        # exp of a large negative input may run over to infinity: x / inf is the right zero.
        with np.errstate(all="ignore"):
            for activation in activations:
                x = _ACTIVATIONS[activation](x)
    return x


def require_activations(op: str, name: str, activations: Sequence[UnaryOpType]) -> tuple[UnaryOpType, ...]:
    """Return ``activations`` as a tuple, refusing what is no supported ``UnaryOpType``."""
    for activation in activations:
        if not isinstance(activation, UnaryOpType):
            raise TypeError(f"{op}: {name} needs UnaryOpType values, got {activation!r}")
        if activation not in _ACTIVATIONS:
            refuse(op, f"{name}: {activation.name} is not supported")
    return tuple(activations)


def _binary(op: str, function: np.ufunc) -> Callable[..., Tensor]:
    def call(
        input_tensor_a: Tensor | float,
        input_tensor_b: Tensor | float,
        *,
        dtype: DataType | None = None,
        memory_config: MemoryConfig | None = None,
        output_tensor: Tensor | None = None,
        activations: Sequence[UnaryOpType] = (),
        input_tensor_a_activations: Sequence[UnaryOpType] = (),
        input_tensor_b_activations: Sequence[UnaryOpType] = (),
    ) -> Tensor:
        tensors = {
            name: value
            for name, value in (("input_tensor_a", input_tensor_a), ("input_tensor_b", input_tensor_b))
            if not isinstance(value, Real)
        }
        if not tensors:
            raise TypeError(f"{op}: one of the operands must be a tensor")
        require_tensors(op, **tensors)
        first = next(iter(tensors.values()))
        second = tensors.get("input_tensor_b", first)
        assert isinstance(first, Tensor) and isinstance(second, Tensor)
        before = require_activations(op, "input_tensor_a_activations", input_tensor_a_activations)
        beside = require_activations(op, "input_tensor_b_activations", input_tensor_b_activations)
        after = require_activations(op, "activations", activations)
        result = output_tensor.dtype if output_tensor is not None else dtype or first.dtype
        _require_types(op, first, second, result, (*before, *beside, *after))
        for value in (input_tensor_a, input_tensor_b):
            if not isinstance(value, Tensor) and first.dtype in INTEGERS and int(value) != value:
                refuse(op, f"scalar {value} for a {first.dtype.name} tensor must be an integer")
        try:
            shape = np.broadcast_shapes(first.shape, second.shape)
        except ValueError:
            refuse(op, f"shapes {list(first.shape)} and {list(second.shape)} do not broadcast")
        rows = {first.layout, second.layout} == {ROW_MAJOR_LAYOUT}
        memory = memory_config or first.memory_config()
        spec = TensorSpec(shape, result, ROW_MAJOR_LAYOUT if rows else TILE_LAYOUT, memory)

        # Kernels live as long as a trace: they hold numbers, never tensors.
        left_scalar = None if isinstance(input_tensor_a, Tensor) else input_tensor_a
        right_scalar = None if isinstance(input_tensor_b, Tensor) else input_tensor_b

        def kernel(out: Array, arrays: list[Array]) -> None:
            left = _operand(left_scalar, arrays[0], before)
            right = _operand(right_scalar, arrays[-1], beside)
            function(left, right, out=out)
            if after:
                np.copyto(out, activate(out, after))

        # A scalar is no part of the program: hardware passes it as a run-time argument.
        attributes = (left_scalar is None, right_scalar is None, before, beside, after)
        reads = [value for value in tensors.values() if isinstance(value, Tensor)]
        return run_one(op, reads, kernel, spec, output=output_tensor, attributes=attributes)

    call.__name__ = call.__qualname__ = op
    call.__doc__ = f"""Return ``{op}`` of two broadcastable tensors, or of a tensor and a number.

    The result has the dtype of the first tensor unless ``dtype`` or ``output_tensor`` says otherwise, its memory
    config unless ``memory_config`` does, and tile layout unless both operands are row major. Activations apply to
    the operands before, or to the result after. Follows chapter 40, section F.2.

    Raises:
        TypeError: no operand is a tensor, or an activation is no ``UnaryOpType``.
        RuntimeError: shapes do not broadcast, or types do not go together.
    """
    return call


def _operand(scalar: float | None, array: Array, activations: tuple[UnaryOpType, ...]) -> Array:
    return activate(array if scalar is None else np.asarray(scalar, array.dtype), activations)


def _require_types(
    op: str, first: Tensor, second: Tensor, result: DataType, activations: tuple[UnaryOpType, ...]
) -> None:
    if first.dtype in FLOATS:
        require_dtype(op, "input_tensor_b", second, FLOATS)
        if result not in FLOATS:
            refuse(op, f"result dtype {result.name} for {first.dtype.name} operands")
        return
    require_dtype(op, "input_tensor_a", first, FLOATS | INTEGERS)
    if second.dtype is not first.dtype or result is not first.dtype:
        names = f"{first.dtype.name}, {second.dtype.name} and result {result.name}"
        refuse(op, f"mixed dtypes are not supported for integers: {names}")
    if activations:
        refuse(op, f"activation {activations[0].name} of a {first.dtype.name} tensor")


add = _binary("add", np.add)
subtract = sub = _binary("subtract", np.subtract)
multiply = mul = _binary("multiply", np.multiply)
minimum = _binary("minimum", np.minimum)
maximum = _binary("maximum", np.maximum)
eq = _binary("eq", np.equal)


def silu(
    input_tensor: Tensor, *, memory_config: MemoryConfig | None = None, output_tensor: Tensor | None = None
) -> Tensor:
    """Return ``x / (1 + exp(-x))`` of a floating-point tensor, in its layout and memory config.

    Raises:
        RuntimeError: the tensor holds integers.
    """
    require_tensors("silu", input_tensor=input_tensor)
    require_dtype("silu", "input_tensor", input_tensor, FLOATS)
    memory = memory_config or input_tensor.memory_config()
    spec = TensorSpec(input_tensor.shape, input_tensor.dtype, input_tensor.layout, memory)

    def kernel(out: Array, arrays: list[Array]) -> None:
        np.copyto(out, activate(arrays[0], (UnaryOpType.SILU,)))

    return run_one("silu", (input_tensor,), kernel, spec, output=output_tensor)


def plus_one(input_tensor: Tensor, *, skip_negative_entries: bool = False) -> Tensor:
    """Add 1 to every element of an int32 or uint32 row-major tensor in place; the result shares its memory.

    ``skip_negative_entries`` leaves negative entries (inactive rows) and the largest int32 as they are. Follows
    chapter 40, section F.2, step 7.

    Raises:
        RuntimeError: another type or layout, or a rank outside 1 to 4.
    """
    require_tensors("plus_one", input_tensor=input_tensor)
    require_dtype("plus_one", "input_tensor", input_tensor, INTEGERS)
    require_layout("plus_one", "input_tensor", input_tensor, ROW_MAJOR_LAYOUT)
    require_rank("plus_one", "input_tensor", input_tensor, 1, 2, 3, 4)
    signed = input_tensor.dtype is int32

    def kernel(_made: list[Array], _read: list[Array], written: list[Array]) -> None:
        values = written[0]
        if skip_negative_entries:
            counted = values < INT32_MAX
            if signed:
                counted &= values >= 0
            np.add(values, 1, out=values, where=counted)
        else:
            np.add(values, 1, out=values)

    dispatch("plus_one", reads=(), kernel=kernel, writes=(input_tensor,), attributes=(skip_negative_entries,))
    return share(input_tensor)
