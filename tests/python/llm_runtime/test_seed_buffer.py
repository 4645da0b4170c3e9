# SPDX-License-Identifier: Apache-2.0
"""The seeds of the sampler's rows on the device: what they hold, when they are copied, and from which memory."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from llm_runtime.seed_buffer import DeviceSeedBuffer

ROWS = 32


def seeds_from(first: int) -> np.ndarray:
    return np.arange(first, first + ROWS, dtype=np.uint32)


def on_device(seeds: DeviceSeedBuffer) -> list[int]:
    return seeds.get_device_buffer().cpu(blocking=True).to_numpy().tolist()


def test_loading_uploads_the_defaults_into_one_tensor(mesh):
    seeds = DeviceSeedBuffer(mesh, ROWS)
    assert mesh.live_tensors() == []
    buffer = seeds.get_device_buffer()
    assert on_device(seeds) == seeds.source.tolist() == list(range(1, ROWS + 1))
    seeds.load()
    assert seeds.get_device_buffer() is buffer
    assert len(mesh.live_tensors()) == 1


@pytest.mark.parametrize("staging_set", [None, 1])
def test_equal_seeds_are_copied_once_and_again_after_a_failure(mesh, staging_set):
    seeds = DeviceSeedBuffer(mesh, ROWS)
    write = seeds.update if staging_set is None else partial(seeds.update_staged, staging_set=staging_set)
    write(seeds_from(7))
    write(seeds_from(7))
    assert mesh.counters.calls["copy_host_to_device_tensor"] == 1
    mesh.faults.fail(op="copy_host_to_device_tensor", at=1)
    with pytest.raises(Exception, match="copy_host_to_device_tensor"):
        write(seeds_from(90))
    write(seeds_from(7))
    assert mesh.counters.calls["copy_host_to_device_tensor"] == 3
    assert on_device(seeds) == seeds_from(7).tolist()


def test_a_staged_update_keeps_no_hold_of_the_array(mesh):
    seeds = DeviceSeedBuffer(mesh, ROWS)
    values = seeds_from(40)
    for first in (40, 80, 120):
        values[:] = seeds_from(first)
        seeds.update_staged(values, first % 3)
        values[:] = 0
        assert on_device(seeds) == seeds_from(first).tolist()
    assert len(mesh.live_tensors()) == 1


@pytest.mark.parametrize("staged", [False, True])
def test_a_queued_update_survives_the_next_one_from_other_memory(deferred_mesh, staged):
    seeds = DeviceSeedBuffer(deferred_mesh, ROWS)
    reads = []
    for staging_set, first in enumerate((40, 80)):
        if staged:
            seeds.update_staged(seeds_from(first), staging_set)
        else:
            seeds.update(seeds_from(first))
        reads.append(seeds.get_device_buffer().cpu(blocking=False))
    on_device(seeds)
    assert [read.to_numpy()[0] for read in reads] == [40, 80]


def test_release_is_idempotent_and_the_buffer_can_be_loaded_again(mesh):
    seeds = DeviceSeedBuffer(mesh, ROWS)
    seeds.update_staged(seeds_from(5), 0)
    seeds.release()
    seeds.release()
    assert mesh.live_tensors() == []
    assert on_device(seeds) == seeds.source.tolist()
    seeds.update_staged(seeds_from(5), 0)
    assert on_device(seeds) == seeds_from(5).tolist()


def test_defaults_need_no_buffer(mesh):
    seeds = DeviceSeedBuffer(mesh, ROWS)
    seeds.update(seeds.source.copy())
    assert mesh.live_tensors() == []
