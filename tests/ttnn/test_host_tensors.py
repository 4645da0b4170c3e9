# SPDX-License-Identifier: Apache-2.0
"""Host tensors for refreshes, without torch: memory that ttnn lends is written again, never while a copy reads it."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.host_slots import host_slot
from llm_runtime.prefill.sampling_params import SamplingParams
from support.ttnn_lane import open_lane

GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)


def test_ttnn_copies_the_array_and_lends_the_copy(ttnn):
    array = np.zeros((2, 4), np.int32)
    tensor = ttnn.Tensor(array, ttnn.int32)
    array[0, 0] = 5
    assert tensor.to_numpy()[0, 0] == 0
    slot = host_slot(ttnn, (2, 4), np.int32, ttnn.int32)
    slot.elements[1, 3] = 5
    assert slot.tensor.to_numpy().tolist() == [[0, 0, 0, 0], [0, 0, 0, 5]]


def test_a_slot_is_accepted_by_copies(ttnn, mesh):
    slot = host_slot(ttnn, (32,), np.uint32, ttnn.uint32)
    device = ttnn.to_device(slot.tensor, device=mesh)
    for value in (1, 2):
        slot.elements[:] = value
        ttnn.copy_host_to_device_tensor(slot.tensor, device)
    assert slot.tensor.to_numpy().tolist() == [2] * 32


@pytest.fixture(scope="module")
def lane(mesh, traces, checkpoints, weight_cache):
    lane = open_lane(
        mesh, checkpoints["smollm2"], batch=4, max_seq_len=256, chunk=128, trace="decode_only", cache_path=weight_cache
    )
    lane.warm_up()
    yield lane
    lane.close()


@pytest.fixture
def copied(ttnn, lane, monkeypatch):
    """Host tensors in the order of their copies; they stay alive, so that identities mean something."""
    sources = []
    copy = ttnn.copy_host_to_device_tensor

    def recording(host, device, **options):
        sources.append((host, host.to_numpy().reshape(-1).tolist()))
        return copy(host, device, **options)

    monkeypatch.setattr(ttnn, "copy_host_to_device_tensor", recording)
    return sources


def test_a_step_whose_predecessor_was_read_writes_the_same_tensors_again(lane, copied):
    for position in (40, 41):
        lane.executor.decode_forward(**lane.decode_request([position] * 4))
    first, second = copied[:4], copied[4:]
    assert len(second) == 4
    assert all(before[0] is after[0] for before, after in zip(first, second, strict=True))
    assert [values for _, values in second][1] == [41] * 4
    assert [values for _, values in second][2] == [41] * 4 + [0] * 28


def test_a_page_table_is_written_again_only_once_the_step_that_used_it_has_been_read(lane, copied):
    def step(position, *, reset=False):
        request = {**lane.decode_request([position] * 4, sampling=GREEDY), "reset_batch": reset}
        # As a server does: a slot's table grows when its sequence enters a block.
        request["page_table"] = np.where(np.arange(8) <= position // 32, request["page_table"], 0)
        raw = lane.executor.decode_forward(**request, read_from_device=False)
        return lane.executor.read_decode_output(raw, async_read=True)[0]

    def tables():
        return [(source, values) for source, values in copied if tuple(source.shape) == (4, 8)]

    in_flight = [step(30, reset=True), step(31), step(32)]  # position 32 lies in the next block
    first, second = tables()
    assert first[0] is not second[0]
    assert second[1][1] == 1
    for host in in_flight:
        lane.executor.process_decode_output_host(host, is_tokens=True)
    for position in range(33, 65):
        lane.executor.process_decode_output_host(step(position), is_tokens=True)
    third = tables()[2]
    assert third[0] is first[0]
    assert third[1][2] == 2
