# SPDX-License-Identifier: Apache-2.0
"""Host tensors that are written again: what is seen through them, and by which copies."""

from __future__ import annotations

import types

import numpy as np
import pytest

import ttnn_twin
from llm_runtime.host_slots import host_slot, host_slots


def test_what_is_written_is_what_the_next_copy_takes(mesh):
    slot = host_slot(ttnn_twin, (2, 3), np.int32, ttnn_twin.int32)
    device = ttnn_twin.to_device(slot.tensor, mesh)
    assert device.cpu().to_numpy().tolist() == [[0, 0, 0], [0, 0, 0]]
    for first in (1, 10):
        np.copyto(slot.elements, np.arange(first, first + 6).reshape(2, 3))
        ttnn_twin.copy_host_to_device_tensor(slot.tensor, device)
        assert device.cpu().to_numpy().flat[0] == first


def test_a_write_after_a_completed_read_cannot_reach_an_earlier_copy(deferred_mesh):
    slot = host_slot(ttnn_twin, (4,), np.uint32, ttnn_twin.uint32)
    device = ttnn_twin.to_device(slot.tensor, deferred_mesh)
    slot.elements[:] = 1
    ttnn_twin.copy_host_to_device_tensor(slot.tensor, device)
    read = device.cpu(blocking=True)
    slot.elements[:] = 2
    assert read.to_numpy().tolist() == [1, 1, 1, 1]
    assert device.cpu().to_numpy().tolist() == [1, 1, 1, 1]


def test_a_write_into_a_queued_copy_shows_on_the_deferred_twin(deferred_mesh):
    slot = host_slot(ttnn_twin, (4,), np.uint32, ttnn_twin.uint32)
    device = ttnn_twin.to_device(slot.tensor, deferred_mesh)
    slot.elements[:] = 1
    ttnn_twin.copy_host_to_device_tensor(slot.tensor, device)
    slot.elements[:] = 2  # what the runtime must never do: the copy has not run
    assert device.cpu().to_numpy().tolist() == [2, 2, 2, 2]


class Keeping:
    """A library whose tensors copy and keep their memory."""

    def __init__(self, array, dtype):
        self.values = array.copy()

    def to_numpy(self):
        return self.values.copy()


def test_a_library_that_keeps_its_memory_has_no_slots():
    namespace = types.SimpleNamespace(Tensor=Keeping)
    assert host_slot(namespace, (4,), np.int32, None) is None
    assert host_slots(namespace, ((4,), np.int32, None), ((2,), np.int32, None)) is None


class Lending(Keeping):
    """A library whose tensors copy and lend the bytes of the copy."""

    def host_buffer(self):
        return types.SimpleNamespace(get_shard=lambda place: self.values.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("elements", [np.int32, np.uint32])
def test_lent_memory_is_written_in_place(elements):
    namespace = types.SimpleNamespace(Tensor=Lending, MeshCoordinate=lambda row, column: (row, column))
    slot = host_slot(namespace, (2, 2), elements, None)
    slot.elements[1, 0] = 9
    assert slot.tensor.to_numpy().tolist() == [[0, 0], [9, 0]]
    assert slot.elements.dtype == elements


def test_slots_come_all_or_none():
    slots = host_slots(
        ttnn_twin, ((1, 4), np.int32, ttnn_twin.int32), ((2,), np.uint32, ttnn_twin.uint32)
    )
    assert [slot.elements.shape for slot in slots] == [(1, 4), (2,)]
    assert not any(slot.tensor.to_numpy().any() for slot in slots)
