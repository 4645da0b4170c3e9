# SPDX-License-Identifier: Apache-2.0
"""Matrix products: one BLAS call where the second operand is one matrix."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ..activations import UnaryOpType
from ..dtypes import TILE_LAYOUT, DataType
from ..memory import MemoryConfig
from ..tensor import Array, Tensor
from .common import (
    FLOATS,
    refuse,
    require_dtype,
    require_layout,
    require_rank,
    require_tensors,
    run_one,
    tile_spec,
    volume,
)
from .elementwise import activate, require_activations

FEW_ROWS = 4
"""Up to so many rows are multiplied one by one: BLAS reorders the whole matrix first for more than one row, which
costs more than reading it once per row. It also makes a row independent of how many there are, to the last bit."""


def matmul(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    memory_config: MemoryConfig | None = None,
    dtype: DataType | None = None,
    program_config: Hashable = None,
    compute_kernel_config: Hashable = None,
    core_grid: Hashable = None,
    optional_output_tensor: Tensor | None = None,
) -> Tensor:
    """Return ``a @ b`` for tile-layout tensors ``[.., M, K]`` and ``[.., K, N]`` of rank 2 to 4.

    Batch dimensions must be equal, or be all 1 in one operand. The result is in DRAM unless ``memory_config`` says
    otherwise and has the dtype of ``a`` unless ``dtype`` does. The config arguments select a program and do not
    change values. Follows chapter 40, section F.3.

    Raises:
        RuntimeError: inner sizes or batch dimensions differ, or a layout or type is not accepted.
    """
    return _product(
        "matmul",
        input_tensor_a,
        input_tensor_b,
        transposed=(transpose_a, transpose_b),
        memory=memory_config,
        dtype=dtype,
        configs=(program_config, compute_kernel_config, core_grid),
        output=optional_output_tensor,
    )


def linear(
    input_tensor_a: Tensor,
    input_tensor_b: Tensor,
    *,
    bias: Tensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    memory_config: MemoryConfig | None = None,
    dtype: DataType | None = None,
    program_config: Hashable = None,
    activation: str | UnaryOpType | None = None,
    compute_kernel_config: Hashable = None,
    core_grid: Hashable = None,
    optional_output_tensor: Tensor | None = None,
) -> Tensor:
    """Return ``a @ b``, plus a row ``bias`` ``[.., 1, N]``, through ``activation`` (a name or ``UnaryOpType``).

    Everything else is as in :func:`matmul`. Follows chapter 40, sections F.2 and F.3.

    Raises:
        RuntimeError: as :func:`matmul`; the bias does not fit; the activation is unknown.
    """
    activations = () if activation is None else (_named_activation(activation),)
    return _product(
        "linear",
        input_tensor_a,
        input_tensor_b,
        bias=bias,
        transposed=(transpose_a, transpose_b),
        memory=memory_config,
        dtype=dtype,
        activations=require_activations("linear", "activation", activations),
        configs=(program_config, compute_kernel_config, core_grid),
        output=optional_output_tensor,
    )


def _named_activation(activation: str | UnaryOpType) -> UnaryOpType:
    if isinstance(activation, UnaryOpType):
        return activation
    found = UnaryOpType.__members__.get(activation.upper())
    return found if found is not None else refuse("linear", f"unknown activation {activation!r}")


def _product(
    op: str,
    a: Tensor,
    b: Tensor,
    *,
    transposed: tuple[bool, bool],
    memory: MemoryConfig | None,
    dtype: DataType | None,
    configs: tuple[Hashable, ...],
    output: Tensor | None,
    bias: Tensor | None = None,
    activations: tuple[UnaryOpType, ...] = (),
) -> Tensor:
    operands = {"input_tensor_a": a, "input_tensor_b": b}
    if bias is not None:
        operands["bias"] = bias
    require_tensors(op, **operands)
    for name, tensor in operands.items():
        require_layout(op, name, tensor, TILE_LAYOUT)
        require_dtype(op, name, tensor, FLOATS)
        require_rank(op, name, tensor, 2, 3, 4)
    rows, inner = _matrix(a, transposed[0])
    inner_b, columns = _matrix(b, transposed[1])
    if inner != inner_b:
        refuse(op, f"input_tensor_a {list(a.shape)} has width {inner}, input_tensor_b {list(b.shape)} height {inner_b}")
    batch = _batch(op, a, b)
    if bias is not None and (bias.shape[-1] != columns or volume(bias.shape) != columns):
        refuse(op, f"bias {list(bias.shape)} is no row of {columns} elements")
    result = output.dtype if output is not None else dtype or a.dtype
    if result not in FLOATS:
        refuse(op, f"result dtype {result.name} of a product")
    one_matrix = volume(b.shape[:-2]) == 1 and not transposed[0]
    has_bias = bias is not None

    def kernel(out: Array, arrays: list[Array]) -> None:
        right = arrays[1].swapaxes(-1, -2) if transposed[1] else arrays[1]
        if one_matrix:
            matrix = right.reshape(right.shape[-2:])
            _by_one_matrix(arrays[0].reshape(-1, inner), matrix, out.reshape(-1, columns))
        else:
            left = arrays[0].swapaxes(-1, -2) if transposed[0] else arrays[0]
            np.matmul(left, right, out=out)
        if has_bias:
            out += arrays[2].reshape(columns)
        if activations:
            np.copyto(out, activate(out, activations))

    spec = tile_spec((*batch, rows, columns), result, memory)
    attributes = (*transposed, activations, *configs)
    return run_one(op, tuple(operands.values()), kernel, spec, output=output, attributes=attributes)


def _by_one_matrix(left: Array, matrix: Array, out: Array) -> None:
    if len(left) > FEW_ROWS:
        np.matmul(left, matrix, out=out)
        return
    for row, result in zip(left, out, strict=True):
        np.matmul(row, matrix, out=result)


def _matrix(tensor: Tensor, transposed: bool) -> tuple[int, int]:
    height, width = tensor.shape[-2:]
    return (width, height) if transposed else (height, width)


def _batch(op: str, a: Tensor, b: Tensor) -> Sequence[int]:
    rank = max(len(a.shape), len(b.shape)) - 2
    left = (*(1,) * (rank + 2 - len(a.shape)), *a.shape[:-2])
    right = (*(1,) * (rank + 2 - len(b.shape)), *b.shape[:-2])
    if left == right or volume(right) == 1:
        return left
    if volume(left) == 1 and len(a.shape) == len(b.shape):
        return right
    refuse(op, f"batch dimensions of {list(a.shape)} and {list(b.shape)} differ and neither is all 1")
