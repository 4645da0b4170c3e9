# SPDX-License-Identifier: Apache-2.0
"""What every op needs: refusals that name op, argument, value and limit, and the way to one result tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NoReturn

from ..dispatch import dispatch
from ..dtypes import (
    TILE_LAYOUT,
    TILE_SIZE,
    DataType,
    Layout,
    bfloat4_b,
    bfloat8_b,
    bfloat16,
    float32,
    int32,
    uint32,
)
from ..memory import DRAM_MEMORY_CONFIG, MemoryConfig, TensorMemoryLayout
from ..tensor import Array, Tensor, TensorSpec

FLOATS = frozenset({bfloat16, float32, bfloat8_b, bfloat4_b})
PACKED_FLOATS = frozenset({bfloat16, bfloat8_b, bfloat4_b})
INTEGERS = frozenset({int32, uint32})

OneResult = Callable[[Array, list[Array]], None]


def refuse(op: str, message: str) -> NoReturn:
    """Raise the ``RuntimeError`` that ttnn raises for a call it does not accept."""
    raise RuntimeError(f"{op}: {message}")


def require_tensors(op: str, **arguments: object) -> None:
    """Refuse arguments that are no tensors (``TypeError``, as a binding does) or are not on a device."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{op}: {name} must be a tensor, got {type(value).__name__}")
        if value._mesh is None:
            refuse(op, f"{name}, {value.name}, is on the host; a device tensor is needed")


def require_layout(op: str, name: str, tensor: Tensor, layout: Layout) -> None:
    """Refuse a tensor that has another layout."""
    if tensor.layout is not layout:
        refuse(op, f"{name} has layout {tensor.layout.name}; {layout.name} is needed")


def require_dtype(op: str, name: str, tensor: Tensor, allowed: Collection[DataType]) -> None:
    """Refuse a tensor whose element type is not one of ``allowed``."""
    if tensor.dtype not in allowed:
        names = ", ".join(sorted(dtype.name for dtype in allowed))
        refuse(op, f"{name} has dtype {tensor.dtype.name}; allowed: {names}")


def require_rank(op: str, name: str, tensor: Tensor, *ranks: int) -> None:
    """Refuse a tensor whose number of dimensions is not one of ``ranks``."""
    if len(tensor.shape) not in ranks:
        refuse(op, f"{name} has shape {list(tensor.shape)}; rank {' or '.join(map(str, ranks))} is needed")


def require_memory_layout(op: str, name: str, tensor: Tensor, layout: TensorMemoryLayout) -> None:
    """Refuse a tensor that is spread over memory in another way."""
    if tensor.memory_config().memory_layout is not layout:
        refuse(op, f"{name} is {tensor.memory_config().memory_layout.name}; {layout.name} is needed")


def dimension(op: str, dim: int, rank: int) -> int:
    """Return ``dim`` counted from the front, refusing one outside ``[-rank, rank)``."""
    if not -rank <= dim < rank:
        refuse(op, f"dimension {dim} is outside [{-rank}, {rank - 1}]")
    return dim % rank


def round_up(size: int, unit: int = TILE_SIZE) -> int:
    """Return ``size`` rounded up to a multiple of ``unit``."""
    return -(-size // unit) * unit


def volume(sizes: Iterable[int]) -> int:
    """Return the number of elements of a shape."""
    count = 1
    for size in sizes:
        count *= size
    return count


def tile_spec(shape: Sequence[int], dtype: DataType, memory: MemoryConfig | None = None) -> TensorSpec:
    """Return the specification of a tile-layout result, in interleaved DRAM unless ``memory`` says otherwise."""
    return TensorSpec(tuple(shape), dtype, TILE_LAYOUT, memory or DRAM_MEMORY_CONFIG)


def share(tensor: Tensor) -> Tensor:
    """Return another tensor object over the same device memory: freeing either one frees both, as on hardware."""
    mesh, buffer = tensor._mesh, tensor._buffer
    if mesh is None or buffer is None:
        return tensor
    return Tensor._on_device(mesh, buffer)


def run_one(
    op: str,
    reads: Sequence[Tensor],
    kernel: OneResult,
    spec: TensorSpec,
    *,
    output: Tensor | None = None,
    attributes: Hashable = (),
) -> Tensor:
    """Dispatch an op with one result: a new tensor of ``spec``, or ``output``, which must have its shape."""
    if output is None:
        return dispatch(
            op,
            reads=reads,
            kernel=lambda made, read, _written: kernel(made[0], read),
            outputs=(spec,),
            attributes=attributes,
        )[0]
    if (output.shape, output.layout) != (spec.shape, spec.layout):
        refuse(
            op,
            f"output tensor {list(output.shape)} {output.layout.name} does not match the result "
            f"{list(spec.shape)} {spec.layout.name}",
        )
    dispatch(
        op,
        reads=reads,
        kernel=lambda _made, read, written: kernel(written[0], read),
        writes=(output,),
        attributes=attributes,
    )
    return share(output)
