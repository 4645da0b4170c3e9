# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device, and the end of device tensors."""

from __future__ import annotations

from functools import partial

import numpy as np

from .dispatch import _array_of, dispatch
from .dtypes import ROUNDED_TYPES, Layout, round_to_bfloat16
from .memory import DRAM_MEMORY_CONFIG, MemoryConfig
from .mesh import MeshDevice
from .tensor import Array, Tensor, TensorSpec


def to_device(
    tensor: Tensor, device: MeshDevice, memory_config: MemoryConfig | None = None, *, cq_id: int = 0
) -> Tensor:
    """Allocate a device tensor and enqueue the copy of a host tensor into it.

    In deferred execution the host array is read when the copy runs.

    Raises:
        RuntimeError: a capture is open, or ``tensor`` is on another mesh or not readable yet.
    """
    with device.lock:
        device.enter("to_device", cq_id)
        device.refuse_capture("to_device")
        if tensor._mesh is not None:
            if tensor._mesh is device:
                return tensor
            raise RuntimeError(f"to_device: {tensor.name} is on {tensor._mesh}, not on the host")
        source = tensor._host_array("to_device")
        spec = tensor._spec
        memory = memory_config or spec.memory_config
        result = device.allocate(
            TensorSpec(spec.shape, spec.dtype, spec.layout, memory, spec.padded_shape), "to_device"
        )
        device.counters.bytes_to_device += spec.device_bytes
        device.queue.submit(_upload(device, source, result))
        return result


def copy_host_to_device_tensor(host_tensor: Tensor, device_tensor: Tensor, cq_id: int = 0) -> None:
    """Enqueue the copy of a host tensor into an existing device tensor of the same shape, type and layout.

    In deferred execution the host array is read when the copy runs, as on hardware: keep it unchanged until then.

    Raises:
        RuntimeError: a capture is open, a tensor is on the wrong side or freed, or the specifications differ.
    """
    op = "copy_host_to_device_tensor"
    mesh = device_tensor._mesh
    if mesh is None:
        raise RuntimeError(f"{op}: destination {device_tensor.name} is on the host")
    with mesh.lock:
        mesh.enter(op, cq_id)
        mesh.refuse_capture(op)
        _array_of(op, mesh, device_tensor)
        source, target = host_tensor._spec, device_tensor._spec
        array = host_tensor._host_array(op)
        if (source.shape, source.dtype, source.layout) != (target.shape, target.dtype, target.layout):
            raise RuntimeError(
                f"{op}: host {list(source.shape)} {source.dtype.name} {source.layout.name} does not match device "
                f"{list(target.shape)} {target.dtype.name} {target.layout.name}"
            )
        mesh.counters.bytes_to_device += target.device_bytes
        mesh.queue.submit(_upload(mesh, array, device_tensor))


def _upload(mesh: MeshDevice, source: Array, target: Tensor) -> partial[None]:
    array = _array_of("upload", mesh, target)
    if mesh.rounds and target._spec.dtype in ROUNDED_TYPES:
        return partial(_copy_rounded, array, source)
    return partial(np.copyto, array, source)


def _copy_rounded(target: Array, source: Array) -> None:
    np.copyto(target, source)
    round_to_bfloat16(target)


def from_device(tensor: Tensor, blocking: bool = True, *, cq_id: int = 0) -> Tensor:
    """Copy a device tensor to the host; see ``read_to_host``."""
    return read_to_host("from_device", tensor, blocking=blocking, cq_id=cq_id)


def read_to_host(op: str, tensor: Tensor, *, blocking: bool, cq_id: int) -> Tensor:
    """Enqueue the copy of a device tensor to a new host tensor; a host tensor is returned as it is.

    A non-blocking read returns at once; its contents become readable when an event recorded after it, or the
    device, was synchronised.

    Raises:
        RuntimeError: a capture is open, or the tensor was freed.
    """
    mesh = tensor._mesh
    if mesh is None:
        return tensor
    with mesh.lock:
        mesh.enter(op, cq_id)
        mesh.refuse_capture(op)
        source = _array_of(op, mesh, tensor)
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
        RuntimeError: the shapes differ, or a tensor is not usable.
    """
    if input_a.shape != input_b.shape or input_a.layout is not input_b.layout:
        raise RuntimeError(f"copy: {input_a.name} does not match {input_b.name}")
    dispatch("copy", reads=(input_a,), kernel=_copy_kernel, writes=(input_b,))
    return input_b


def _copy_kernel(_out: list[Array], read: list[Array], write: list[Array]) -> None:
    np.copyto(write[0], read[0], casting="unsafe")


def deallocate(tensor: Tensor, force: bool = True) -> None:
    """Free a device tensor. Work that is already enqueued, and traces that made it, still use its memory.

    Raises:
        RuntimeError: the tensor is on the host or was freed before.
    """
    mesh, buffer = tensor._mesh, tensor._buffer
    if mesh is None or buffer is None:
        raise RuntimeError(f"deallocate: {tensor.name} is on the host, a device tensor is needed")
    with mesh.lock:
        mesh.enter("deallocate")
        if buffer.array is None:
            raise RuntimeError(f"deallocate: double free of {tensor.name}")
        mesh.free(buffer)


def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    """Return one tensor per device. The twin replicates, so all of them share the elements."""
    mesh, buffer = tensor._mesh, tensor._buffer
    if mesh is None or buffer is None:
        array = tensor._host_array("get_device_tensors")
        return [Tensor._on_host(array, tensor._spec) for _ in range(tensor._replicas)]
    if mesh.get_num_devices() == 1:
        return [tensor]
    return [Tensor._on_device(mesh, buffer) for _ in range(mesh.get_num_devices())]


def to_layout(tensor: Tensor, layout: Layout) -> Tensor:
    """Return a host tensor with another layout; the elements are shared. Device tensors go through the op."""
    spec = tensor._spec
    return Tensor._on_host(
        tensor._host_array("to_layout"), TensorSpec(spec.shape, spec.dtype, layout, DRAM_MEMORY_CONFIG)
    )
