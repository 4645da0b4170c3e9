# SPDX-License-Identifier: Apache-2.0
"""Host tensors whose memory is written again for the next copy, instead of being made anew."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class HostSlot:
    """A row-major host tensor (owned) and its elements as a writable array.

    Whoever writes must know that no queued copy still reads: a copy may read its source after it was enqueued.
    """

    tensor: Any
    elements: Array


def host_slots(namespace: Any, *wanted: tuple[tuple[int, ...], type[np.generic], Any]) -> tuple[HostSlot, ...] | None:
    """One slot for each (shape, element type, device type), or `None` when one of them cannot be had."""
    slots = [host_slot(namespace, *each) for each in wanted]
    made = tuple(slot for slot in slots if slot is not None)
    return made if len(made) == len(wanted) else None


def host_slot(namespace: Any, shape: tuple[int, ...], elements: type[np.generic], dtype: Any) -> HostSlot | None:
    """A slot of 4-byte integers, or `None` where the device library keeps the memory of a tensor to itself.

    A library that borrows arrays reads the array itself; one that copies may lend the memory of its copy. Which one it
    is, is tried out: a slot is only returned if writing to it was seen through the tensor.
    """
    array = np.zeros(shape, elements)
    tensor = namespace.Tensor(array, dtype)
    for candidate in (array, _lent_memory(namespace, tensor, array)):
        if candidate is not None and _writes_are_seen(candidate, tensor):
            return HostSlot(tensor, candidate)
    return None


def _writes_are_seen(candidate: Array, tensor: Any) -> bool:
    candidate.flat[-1] = 7
    seen = int(tensor.to_numpy().flat[-1]) == 7
    candidate.flat[-1] = 0
    return seen and not tensor.to_numpy().any()


def _lent_memory(namespace: Any, tensor: Any, like: Array) -> Array | None:
    host_buffer = getattr(tensor, "host_buffer", None)
    if host_buffer is None:
        return None
    lent = np.from_dlpack(host_buffer().get_shard(namespace.MeshCoordinate(0, 0)))
    if lent.nbytes != like.nbytes:
        return None
    # NumPy 1 imports every such array as read-only, since the protocol's first version cannot say; the tensor keeps
    # the memory alive, and the slot keeps the tensor.
    memory = (ctypes.c_uint8 * lent.nbytes).from_address(lent.ctypes.data)
    elements: Array = np.ctypeslib.as_array(memory).view(like.dtype).reshape(like.shape)
    return elements
