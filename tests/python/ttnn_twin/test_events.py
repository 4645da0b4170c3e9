# SPDX-License-Identifier: Apache-2.0
"""Events and device synchronisation."""

from __future__ import annotations

import pytest

import ttnn_twin as ttnn


def test_waits_are_counted(mesh, host):
    tensor = ttnn.to_device(host([1.0]), mesh)
    event = ttnn.record_event(mesh, 0)
    assert mesh.counters.syncs == 0
    ttnn.event_synchronize(event)
    ttnn.synchronize_device(mesh)
    ttnn.synchronize_device(mesh, cq_id=0)
    tensor.cpu(blocking=False)
    tensor.cpu()
    assert mesh.counters.syncs == 4
    assert mesh.counters.calls["event_synchronize"] == 1
    assert mesh.counters.calls["synchronize_device"] == 2
    assert mesh.counters.calls["record_event"] == 1


def test_queue_id_is_checked(open_mesh):
    one, two = open_mesh(), open_mesh(num_command_queues=2)
    ttnn.event_synchronize(ttnn.record_event(two, 1))
    with pytest.raises(RuntimeError, match="record_event: command queue 1"):
        ttnn.record_event(one, 1)
    with pytest.raises(RuntimeError, match="synchronize_device: command queue -1"):
        ttnn.synchronize_device(one, -1)


def test_event_of_a_closed_mesh_is_refused(open_mesh):
    mesh = open_mesh()
    event = ttnn.record_event(mesh)
    ttnn.close_mesh_device(mesh)
    with pytest.raises(RuntimeError, match=r"event_synchronize: .* is closed"):
        ttnn.event_synchronize(event)


def test_submesh_waits_for_itself_only(open_mesh, host):
    parent = open_mesh(1, 2, execution="deferred")
    first, second = parent.create_submeshes(ttnn.MeshShape(1, 1))
    pending = [ttnn.to_device(host([1.0]), lane).cpu(blocking=False) for lane in (first, second)]
    ttnn.synchronize_device(first)
    assert pending[0].to_numpy().tolist() == [1.0]
    with pytest.raises(RuntimeError, match="not complete"):
        pending[1].to_numpy()
