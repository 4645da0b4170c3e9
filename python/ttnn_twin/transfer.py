# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device, and the end of device tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .dispatch import device_array, dispatch
from .dtypes import ROUNDED_TYPES, TILE_LAYOUT, DataType, round_to_bfloat16, storage_dtype
from .memory import MemoryConfig
from .mesh import MeshDevice
from .tensor import Array, Buffer, Tensor, TensorSpec


def to_device(
    tensor: Tensor, device: MeshDevice, memory_config: MemoryConfig | None = None, *, queue_id: int | None = None
) -> Tensor:
    """Allocate a device tensor and enqueue the copy of a host tensor into it.

    In deferred execution the host array is read when the copy runs. A tensor that is on ``device`` is returned.

    Raises:
        RuntimeError: a capture is open, or ``tensor`` is on another mesh or an asynchronous read in flight.
    """
    if tensor._mesh is device:
        return tensor
    return Tensor._on_device(device, upload_new("to_device", device, tensor, memory_config, queue_id))


def upload_new(
    op: str,
    mesh: MeshDevice,
    tensor: Tensor,
    memory_config: MemoryConfig | None = None,
    cq_id: int | None = None,
) -> Buffer:
    """Allocate a buffer for a host tensor and enqueue the upload."""
    with mesh.lock:
        mesh.enter(op, cq_id)
        mesh.refuse_capture(op)
        source = tensor._host_array(op)
        spec = tensor._spec
        if memory_config is not None:
            spec = TensorSpec(spec.shape, spec.dtype, spec.layout, memory_config, spec.padded_shape)
        untouched = np.zeros(spec.shape, source.dtype) if _is_blank(source) else None
        buffer = mesh.memory.allocate(spec, op, array=untouched)
        mesh.counters.allocations += 1
        assert buffer.array is not None
        _enqueue_upload(mesh, source, buffer.array, spec, blank=untouched is not None)
        return buffer


def copy_host_to_device_tensor(host_tensor: Tensor, device_tensor: Tensor, cq_id: int | None = None) -> None:
    """Enqueue the copy of a host tensor into an existing device tensor of the same shape, type and layout.

    In deferred execution the host array is read when the copy runs, as on hardware: keep it unchanged until then.

    Raises:
        RuntimeError: a capture is open, a tensor is on the wrong side, freed or an asynchronous read in flight, or
            shape, type or layout differ.
    """
    op = "copy_host_to_device_tensor"
    mesh = device_tensor._mesh
    if mesh is None:
        raise RuntimeError(f"{op}: the destination {device_tensor.name} is on the host")
    with mesh.lock:
        mesh.enter(op, cq_id)
        mesh.refuse_capture(op)
        target = device_array(op, mesh, device_tensor)
        source = host_tensor._host_array(op)
        mine, theirs = host_tensor._spec, device_tensor._spec
        if mine.shape != theirs.shape or mine.dtype is not theirs.dtype or mine.layout is not theirs.layout:
            raise RuntimeError(
                f"{op}: host {list(mine.shape)} {mine.dtype.name} {mine.layout.name} does not match "
                f"{device_tensor.name} {theirs.layout.name}"
            )
        _enqueue_upload(mesh, source, target, theirs)


def blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a read-only stand-in for an array of zeros: one element, seen in every place."""
    return np.broadcast_to(dtype.type(0), shape)


def _is_blank(array: Array) -> bool:
    return array.size > 1 and not any(array.strides) and not array.flat[0]


def _enqueue_upload(mesh: MeshDevice, source: Array, target: Array, spec: TensorSpec, *, blank: bool = False) -> None:
    """Count and enqueue the copy; of a ``blank`` source into new memory only the count remains."""
    mesh.counters.bytes_to_device += spec.device_bytes
    if blank:
        return
    rounds = mesh.rounds and spec.dtype in ROUNDED_TYPES
    mesh.queue.submit(partial(_copy_rounded if rounds else np.copyto, target, source))


def _copy_rounded(target: Array, source: Array) -> None:
    np.copyto(target, source)
    round_to_bfloat16(target)


def from_device(tensor: Tensor, blocking: bool = True, *, queue_id: int | None = None) -> Tensor:
    """Enqueue the copy of a device tensor to a new host tensor; a host tensor is returned as it is.

    A non-blocking read returns at once; its contents become readable when an event recorded after it, or the
    device, was synchronised. The device tensor may be freed before that.

    Raises:
        RuntimeError: a capture is open, or the tensor was freed.
    """
    return read_to_host("from_device", tensor, blocking=blocking, cq_id=queue_id)


def read_to_host(op: str, tensor: Tensor, *, blocking: bool, cq_id: int | None) -> Tensor:
    """Do the work of ``from_device`` and ``Tensor.cpu`` under the name ``op``."""
    mesh = tensor._mesh
    if mesh is None:
        return tensor
    if blocking:
        mesh.faults.wait_out()
    with mesh.lock:
        mesh.enter(op, cq_id)
        mesh.refuse_capture(op)
        source = device_array(op, mesh, tensor)
        target = np.empty_like(source)
        mesh.counters.bytes_to_host += tensor._spec.device_bytes
        position = mesh.queue.submit(partial(np.copyto, target, source))
        result = Tensor._on_host(target, tensor._spec, replicas=mesh.get_num_devices())
        if blocking:
            mesh.counters.syncs += 1
            mesh.queue.wait(position)
        else:
            result._queue = mesh.queue
            result._ready_at = position
        return result


def copy(input_a: Tensor, input_b: Tensor) -> Tensor:
    """Enqueue the copy of device tensor ``input_a`` into device tensor ``input_b`` and return ``input_b``.

    Raises:
        RuntimeError: shape or layout differ, the type differs outside tile layout, or a tensor is not usable.
    """
    if input_a.shape != input_b.shape or input_a.layout is not input_b.layout:
        raise RuntimeError(f"copy: shape and layout of {input_a!r} do not match {input_b!r}")
    if input_a.dtype is not input_b.dtype and input_a.layout is not TILE_LAYOUT:
        raise RuntimeError(f"copy: {input_a!r} to {input_b!r}: only tile layout converts types")
    dispatch("copy", reads=(input_a,), kernel=_copy_kernel, writes=(input_b,))
    return input_b


def _copy_kernel(_out: list[Array], read: list[Array], write: list[Array]) -> None:
    np.copyto(write[0], read[0], casting="unsafe")


def deallocate(tensor: Tensor, force: bool = True) -> None:
    """Free a device tensor; a host tensor stays as it is. Work that is already enqueued still uses the memory.

    ``force`` is accepted as in ttnn; a buffer is always freed for all tensors that share it.

    Raises:
        RuntimeError: the tensor was freed before (which ttnn lets pass).
    """
    mesh, buffer = tensor._mesh, tensor._buffer
    if mesh is None or buffer is None:
        return
    with mesh.lock:
        mesh.enter("deallocate")
        if buffer.array is None:
            raise RuntimeError(f"deallocate: double free of {tensor.name}")
        mesh.free(buffer)


def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    """Return one tensor per device. The twin replicates, so all of them share the elements of ``tensor``."""
    mesh, buffer = tensor._mesh, tensor._buffer
    if mesh is not None and buffer is not None:
        return [Tensor._on_device(mesh, buffer) for _ in range(mesh.get_num_devices())]
    array = tensor._host_array("get_device_tensors")
    return [Tensor._on_host(array, tensor._spec) for _ in range(tensor._replicas)]


def to_dtype(input_tensor: Tensor, dtype: DataType) -> Tensor:
    """Return a host tensor converted to ``dtype``, layout kept; it shares the elements when their storage allows.

    Raises:
        RuntimeError: the tensor is on a device, or is an asynchronous read that nobody waited for yet.
    """
    array = input_tensor._host_array("to_dtype").astype(storage_dtype(dtype), copy=False)
    spec = input_tensor._spec
    made = TensorSpec(spec.shape, dtype, spec.layout, spec.memory_config, spec.padded_shape)
    return Tensor._on_host(array, made, replicas=input_tensor._replicas)
