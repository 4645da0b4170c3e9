# SPDX-License-Identifier: Apache-2.0
"""The one way a compute op reaches a mesh: checks, program cache, output buffers, queue and capture."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from .dtypes import ROUNDED_TYPES, round_to_bfloat16
from .tensor import Array, Tensor, TensorSpec

if TYPE_CHECKING:
    from .mesh import MeshDevice
    from .queue import Step

Kernel = Callable[[list[Array], list[Array], list[Array]], None]


def dispatch(
    name: str,
    *,
    reads: Sequence[Tensor],
    kernel: Kernel,
    outputs: Sequence[TensorSpec] = (),
    writes: Sequence[Tensor] = (),
    attributes: Hashable = (),
    exact_writes: bool = False,
) -> list[Tensor]:
    """Enqueue one op, or record it into the open capture, and return its output tensors.

    ``kernel(out, read, write)`` gets the storage arrays (logical shape; float32, int32 or uint32) and writes into
    those of ``outputs`` and ``writes``, so that a replay runs into the same buffers. It may run later than this
    call and many times. On a mesh with ``precision="bfloat16"`` results of bfloat16-like types are rounded after
    it; ``exact_writes`` says that ``writes`` only receive values that were rounded before (a cache update), so
    that the whole tensor is not rounded again.

    Args:
        name: public op name: counted, used by faults and in messages.
        reads: device tensors the kernel reads.
        kernel: the computation.
        outputs: specifications of new tensors; contents are undefined until the kernel ran.
        writes: device tensors the kernel writes in place.
        attributes: everything else that selects the program: part of the program-cache key.

    Raises:
        TypeError: an argument is no tensor.
        RuntimeError: a tensor is on the host, freed, or on another mesh; the mesh is closed; the op would compile
            inside a capture; or a fault asks for it. Nothing is allocated or enqueued then.
    """
    mesh = _mesh_of(name, reads, writes)
    with mesh.lock:
        mesh.enter(name)
        read_arrays = [device_array(name, mesh, tensor) for tensor in reads]
        write_arrays = [device_array(name, mesh, tensor) for tensor in writes]
        specs = tuple([tensor._spec.key for tensor in (*reads, *writes)])
        made = tuple([spec.key for spec in outputs])
        mesh.require_program(name, (name, len(reads), specs, made, attributes))
        results = [mesh.allocate(spec, name) for spec in outputs]
        out_arrays = [device_array(name, mesh, tensor) for tensor in results]
        step: Step = partial(kernel, out_arrays, read_arrays, write_arrays)
        if mesh.rounds:
            step = _rounded(step, results, () if exact_writes else writes)
        capture = mesh.traces.capture
        if capture is None:
            mesh.queue.submit(step)
        else:
            capture.add(step, (*reads, *writes), results)
        return results


def _rounded(step: Step, results: Sequence[Tensor], writes: Sequence[Tensor]) -> Step:
    targets = [
        tensor._buffer.array
        for tensor in (*results, *writes)
        if tensor._spec.dtype in ROUNDED_TYPES and tensor._buffer is not None and tensor._buffer.array is not None
    ]
    return partial(_run_rounded, step, targets) if targets else step


def _run_rounded(step: Step, arrays: list[Array]) -> None:
    step()
    for array in arrays:
        round_to_bfloat16(array)


def _mesh_of(name: str, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> MeshDevice:
    for group in (reads, writes):
        for tensor in group:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name}: a tensor is needed, got {type(tensor).__name__}")
            if tensor._mesh is not None:
                return tensor._mesh
    first = (*reads, *writes)[:1]
    raise RuntimeError(f"{name}: {first[0].name if first else 'no tensor'} is not on a device")


def device_array(name: str, mesh: MeshDevice, tensor: Tensor) -> Array:
    """Return the storage of a live tensor of ``mesh``, or raise an error that names ``name`` and the tensor."""
    buffer = tensor._buffer if isinstance(tensor, Tensor) else None
    if buffer is None or buffer.array is None or tensor._mesh is not mesh:
        _refuse(name, mesh, tensor)
    return buffer.array


def _refuse(name: str, mesh: MeshDevice, tensor: Tensor) -> NoReturn:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: a tensor is needed, got {type(tensor).__name__}")
    if tensor._buffer is None:
        raise RuntimeError(f"{name}: {tensor.name} is on the host, a device tensor is needed")
    if tensor._buffer.array is None:
        raise RuntimeError(f"{name}: use after free of {tensor.name}")
    raise RuntimeError(f"{name}: {tensor.name} is on {tensor._mesh}, other tensors of the call are on {mesh}")
