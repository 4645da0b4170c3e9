# SPDX-License-Identifier: Apache-2.0
"""Ops that look elements up by index: embedding and gather."""

from __future__ import annotations

import numpy as np

from ..dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, DataType, Layout, bfloat16, uint16, uint32
from ..memory import MemoryConfig
from ..tensor import Array, Tensor, TensorSpec
from .common import FLOATS, dimension, refuse, require_dtype, require_layout, require_rank, require_tensors, run_one


def embedding(
    input_tensor: Tensor,
    weight: Tensor,
    *,
    layout: Layout | None = None,
    dtype: DataType | None = None,
    memory_config: MemoryConfig | None = None,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """Return one row of ``weight`` per index: uint32 ``[B, .., S]`` gives ``[B, S, D]``, ``[S]`` gives ``[S, D]``.

    ``weight`` is bfloat16 ``[V, D]`` with leading dimensions of size 1; the result is row major unless ``layout``
    says otherwise. Follows chapter 40, sections F.2 and F.3.

    Raises:
        RuntimeError: shapes or types are not accepted; when the op runs, an index is outside ``[0, V)``.
    """
    op = "embedding"
    require_tensors(op, input_tensor=input_tensor, weight=weight)
    require_dtype(op, "input_tensor", input_tensor, {uint32})
    require_dtype(op, "weight", weight, {bfloat16})
    require_rank(op, "input_tensor", input_tensor, 1, 2, 3, 4)
    require_rank(op, "weight", weight, 2, 3, 4)
    if any(size != 1 for size in weight.shape[:-2]):
        refuse(op, f"weight {list(weight.shape)}: every dimension before the last two must be 1")
    if any(size != 1 for size in input_tensor.shape[1:-1]):
        refuse(op, f"input_tensor {list(input_tensor.shape)}: every dimension between the first and last must be 1")
    result = output_tensor.dtype if output_tensor is not None else dtype or bfloat16
    if result not in FLOATS:
        refuse(op, f"result dtype {result.name}")
    batch = input_tensor.shape[:1] if len(input_tensor.shape) > 1 else ()
    rows, width = weight.shape[-2:]
    shape = (*batch, input_tensor.shape[-1], width)
    memory = memory_config or input_tensor.memory_config()
    spec = TensorSpec(shape, result, layout or ROW_MAJOR_LAYOUT, memory)

    def kernel(out: Array, arrays: list[Array]) -> None:
        indices = arrays[0].reshape(-1)
        highest = int(indices.max(initial=0))
        if highest >= rows:
            where = int(indices.argmax())
            refuse(op, f"index {highest} at position {where} is outside the {rows} rows of {weight_name}")
        np.take(arrays[1].reshape(rows, width), indices, axis=0, out=out.reshape(-1, width), mode="clip")

    weight_name = weight.name
    return run_one(op, (input_tensor, weight), kernel, spec, output=output_tensor)


def gather(
    input: Tensor, dim: int, index: Tensor, *, memory_config: MemoryConfig | None = None, out: Tensor | None = None
) -> Tensor:
    """Return ``input`` at ``index`` along ``dim``: the result has the shape of ``index`` (tile layout both).

    Raises:
        RuntimeError: shapes or types are not accepted; when the op runs, an index is out of range.
    """
    op = "gather"
    require_tensors(op, input=input, index=index)
    require_layout(op, "input", input, TILE_LAYOUT)
    require_layout(op, "index", index, TILE_LAYOUT)
    require_dtype(op, "index", index, {uint16, uint32})
    axis = dimension(op, dim, len(input.shape))
    fits = len(index.shape) == len(input.shape) and all(
        asked <= size for at, (asked, size) in enumerate(zip(index.shape, input.shape, strict=True)) if at != axis
    )
    if not fits:
        refuse(op, f"index {list(index.shape)} does not fit input {list(input.shape)} outside dimension {axis}")
    memory = memory_config or input.memory_config()
    spec = TensorSpec(index.shape, input.dtype, TILE_LAYOUT, memory)
    window = tuple(slice(None) if at == axis else slice(size) for at, size in enumerate(index.shape))

    def kernel(result: Array, arrays: list[Array]) -> None:
        source, places = arrays
        if places.size and int(places.max()) >= source.shape[axis]:
            refuse(op, f"index {int(places.max())} is outside dimension {axis} of size {source.shape[axis]}")
        np.copyto(result, np.take_along_axis(source[window], places.astype(np.int64), axis=axis))

    return run_one(op, (input, index), kernel, spec, output=out, attributes=(axis,))
