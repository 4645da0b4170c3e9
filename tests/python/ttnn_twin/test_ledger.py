# SPDX-License-Identifier: Apache-2.0
"""Ledger of cache writes, owners and poison."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ttnn_twin as ttnn
from ttnn_twin.dispatch import dispatch


@pytest.fixture
def write():
    """Write one row of a cache ``[blocks, heads, rows, width]`` and record it, as a cache op does."""

    def kernel(_out, _read, written, *, cache, ledger, block, offset):
        written[0][block, :, offset, :] = 1.0
        ledger.record(cache, block=block, offset=offset, position=block * 32 + offset, kind="update")

    def call(mesh, cache, block, offset):
        bound = partial(kernel, cache=cache, ledger=mesh.ledger, block=block, offset=offset)
        dispatch("write", reads=(), writes=(cache,), kernel=bound)

    return call


@pytest.fixture
def cache(mesh):
    return ttnn.zeros((4, 1, 32, 8), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)


def test_a_write_says_where_and_whose(mesh, cache, write):
    mesh.ledger.label(cache, "layer 0 key")
    mesh.ledger.own(2, "row 5")
    write(mesh, cache, 2, 3)
    ttnn.synchronize_device(mesh)
    (record,) = mesh.ledger.writes
    assert record == ttnn.CacheWrite(cache.buffer_id, "layer 0 key", 2, 3, 67, "update", "row 5", False)
    assert mesh.ledger.poisoned_writes() == []


def test_writes_are_recorded_when_they_run_and_at_each_replay(mesh, cache, write):
    write(mesh, cache, 0, 0)
    assert len(mesh.ledger.writes) == (0 if mesh.options.execution == "deferred" else 1)
    ttnn.synchronize_device(mesh)
    trace = ttnn.begin_trace_capture(mesh)
    write(mesh, cache, 0, 1)
    ttnn.end_trace_capture(mesh, trace)
    assert [item.offset for item in mesh.ledger.writes] == [0]
    for _ in range(2):
        ttnn.execute_trace(mesh, trace)
    assert [item.offset for item in mesh.ledger.writes] == [0, 1, 1]


def test_poisoned_writes_are_kept_and_owning_lifts_poison(mesh, cache, write):
    mesh.ledger.own(1, "a")
    mesh.ledger.poison([1, 3])
    assert mesh.ledger.owner(1) is None
    for block in (0, 1, 3):
        write(mesh, cache, block, 0)
    ttnn.synchronize_device(mesh)
    assert [item.block for item in mesh.ledger.poisoned_writes()] == [1, 3]
    mesh.ledger.own(3, "b")
    write(mesh, cache, 3, 1)
    ttnn.synchronize_device(mesh)
    assert [item.block for item in mesh.ledger.poisoned_writes()] == [1, 3]
    assert mesh.ledger.writes[-1].owner == "b"
    mesh.ledger.own(3, None)
    assert mesh.ledger.owner(3) is None


def test_poison_fills_the_blocks_of_given_caches_in_order(mesh, cache, write):
    write(mesh, cache, 1, 0)
    mesh.ledger.poison(range(1, 3), caches=[cache])
    write(mesh, cache, 2, 0)
    values = cache.cpu().to_numpy()
    assert np.isnan(values[1]).all()
    assert (values[2, :, 0] == 1.0).all()
    assert np.isnan(values[2, :, 1:]).all()
    assert (values[[0, 3]] == 0.0).all()


def test_clear_and_disable(mesh, cache, write):
    mesh.ledger.own(0, "a")
    mesh.ledger.poison([1])
    write(mesh, cache, 1, 0)
    ttnn.synchronize_device(mesh)
    mesh.ledger.clear()
    assert mesh.ledger.writes == mesh.ledger.poisoned_writes() == []
    assert mesh.ledger.owner(0) is None
    mesh.ledger.enabled = False
    write(mesh, cache, 1, 0)
    ttnn.synchronize_device(mesh)
    assert mesh.ledger.writes == []


def test_taking_writes_leaves_owners_and_poison(mesh, cache, write):
    mesh.ledger.own(1, "row 1")
    mesh.ledger.poison([2])
    for block in (1, 2):
        write(mesh, cache, block, 0)
    ttnn.synchronize_device(mesh)
    assert [record.block for record in mesh.ledger.take_writes()] == [1, 2]
    assert mesh.ledger.writes == [] and mesh.ledger.owner(1) == "row 1"
    write(mesh, cache, 2, 1)
    ttnn.synchronize_device(mesh)
    assert [record.offset for record in mesh.ledger.take_writes()] == [1]
    assert [record.offset for record in mesh.ledger.poisoned_writes()] == [0, 1]
