# SPDX-License-Identifier: Apache-2.0
"""Normalisations over one dimension."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ..dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, TILE_SIZE, bfloat8_b, bfloat16, float32
from ..memory import MemoryConfig
from ..tensor import Array, Tensor
from .common import (
    FLOATS,
    dimension,
    refuse,
    require_dtype,
    require_layout,
    require_tensors,
    run_one,
    tile_spec,
    volume,
)

_NORMALISED = frozenset({bfloat16, float32, bfloat8_b})


def rms_norm(
    input_tensor: Tensor,
    *,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    residual_input_tensor: Tensor | None = None,
    memory_config: MemoryConfig | None = None,
    program_config: Hashable = None,
    compute_kernel_config: Hashable = None,
) -> Tensor:
    """Return ``x / sqrt(mean(x * x) + epsilon) * weight`` over the last dimension of a tile-layout tensor.

    ``weight`` is row major ``[1, 1, D / 32, 32]`` or tile layout ``[.., 1, D]``; ``residual_input_tensor`` is added
    to the input first. Follows chapter 40, sections F.1 and F.2.

    Raises:
        RuntimeError: a layout, type or shape is not accepted.
    """
    op = "rms_norm"
    operands = {"input_tensor": input_tensor}
    if residual_input_tensor is not None:
        operands["residual_input_tensor"] = residual_input_tensor
    if weight is not None:
        operands["weight"] = weight
    require_tensors(op, **operands)
    require_layout(op, "input_tensor", input_tensor, TILE_LAYOUT)
    require_dtype(op, "input_tensor", input_tensor, _NORMALISED)
    if residual_input_tensor is not None and residual_input_tensor.shape != input_tensor.shape:
        refuse(op, f"residual {list(residual_input_tensor.shape)} for input {list(input_tensor.shape)}")
    width = input_tensor.shape[-1]
    if weight is not None:
        _require_weight(op, weight, width)

    has_weight, has_residual = weight is not None, residual_input_tensor is not None

    def kernel(out: Array, arrays: list[Array]) -> None:
        x = arrays[0] + arrays[1] if has_residual else arrays[0]
        scale = np.add.reduce(np.square(x), axis=-1, keepdims=True)
        scale /= width
        scale += np.float32(epsilon)
        np.sqrt(scale, out=scale)
        np.divide(x, scale, out=out)
        if has_weight:
            out *= arrays[-1].reshape(-1)[:width]

    spec = tile_spec(input_tensor.shape, input_tensor.dtype, memory_config or input_tensor.memory_config())
    attributes = (epsilon, has_weight, has_residual, program_config, compute_kernel_config)
    return run_one(op, tuple(operands.values()), kernel, spec, attributes=attributes)


def _require_weight(op: str, weight: Tensor, width: int) -> None:
    require_dtype(op, "weight", weight, FLOATS)
    if weight.layout is ROW_MAJOR_LAYOUT:
        if weight.shape[-1] != TILE_SIZE or volume(weight.shape) != width:
            refuse(op, f"row-major weight {list(weight.shape)}; [1, 1, {width // TILE_SIZE}, 32] is needed")
    elif weight.shape[-1] != width:
        refuse(op, f"weight {list(weight.shape)}; the last dimension must be {width}")


def softmax(
    input_tensor: Tensor,
    dim: int = -1,
    *,
    memory_config: MemoryConfig | None = None,
    compute_kernel_config: Hashable = None,
    numeric_stable: bool = True,
) -> Tensor:
    """Return the softmax over ``dim``, in tile layout. The largest element is always subtracted first.

    Raises:
        RuntimeError: ``dim`` is out of range or the tensor holds integers.
    """
    require_tensors("softmax", input_tensor=input_tensor)
    require_dtype("softmax", "input_tensor", input_tensor, _NORMALISED)
    axis = dimension("softmax", dim, len(input_tensor.shape))

    def kernel(out: Array, arrays: list[Array]) -> None:
        with np.errstate(all="ignore"):
            np.subtract(arrays[0], arrays[0].max(axis=axis, keepdims=True), out=out)
            np.exp(out, out=out)
            out /= out.sum(axis=axis, keepdims=True)

    spec = tile_spec(input_tensor.shape, input_tensor.dtype, memory_config or input_tensor.memory_config())
    return run_one("softmax", (input_tensor,), kernel, spec, attributes=(axis, numeric_stable, compute_kernel_config))
