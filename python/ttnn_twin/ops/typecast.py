# SPDX-License-Identifier: Apache-2.0
"""Conversion of element types."""

from __future__ import annotations

import numpy as np

from ..dtypes import TILE_LAYOUT, DataType, bfloat4_b, bfloat8_b, uint8, uint16
from ..memory import MemoryConfig
from ..tensor import Array, Tensor, TensorSpec
from .common import refuse, require_layout, require_tensors, run_one


def typecast(
    input_tensor: Tensor,
    dtype: DataType,
    *,
    memory_config: MemoryConfig | None = None,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """Return a copy with another element type, in the same layout.

    Floats become integers by dropping the fraction and clamping to the range; int32 and uint32 exchange their
    bits; uint16 keeps the low 16 bits of a wider integer. Follows chapter 40, section F.2.

    Raises:
        RuntimeError: a block format in row-major layout, or a conversion to or from uint8.
    """
    require_tensors("typecast", input_tensor=input_tensor)
    target = output_tensor.dtype if output_tensor is not None else dtype
    if uint8 in (input_tensor.dtype, target):
        refuse("typecast", f"{input_tensor.dtype.name} to {target.name} is not supported")
    if target in (bfloat8_b, bfloat4_b):
        require_layout("typecast", "input_tensor", input_tensor, TILE_LAYOUT)
    memory = memory_config or input_tensor.memory_config()
    spec = TensorSpec(input_tensor.shape, target, input_tensor.layout, memory)

    def kernel(out: Array, arrays: list[Array]) -> None:
        convert(arrays[0], out, target)

    return run_one("typecast", (input_tensor,), kernel, spec, output=output_tensor)


def convert(source: Array, out: Array, dtype: DataType) -> None:
    """Write ``source`` into ``out``, the storage of a tensor of ``dtype``, by the rules of ``typecast``."""
    if source.dtype.kind == "f" and out.dtype.kind != "f":
        limits = np.iinfo(np.uint16) if dtype is uint16 else np.iinfo(out.dtype)
        whole = np.nan_to_num(source.astype(np.float64), nan=0.0)
        np.copyto(out, np.clip(np.trunc(whole), limits.min, limits.max), casting="unsafe")
    elif dtype is uint16:
        np.copyto(out, source.astype(np.uint32) & np.uint32(0xFFFF))
    else:
        np.copyto(out, source, casting="unsafe")
