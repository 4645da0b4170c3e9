# SPDX-License-Identifier: Apache-2.0
"""Opening, splitting and closing meshes; live tensors."""

from __future__ import annotations

import gc

import pytest

import ttnn_twin as ttnn


def test_shape_and_devices(open_mesh):
    mesh = open_mesh(2, 3)
    assert mesh.shape == (2, 3)
    assert mesh.shape == ttnn.MeshShape([2, 3])
    assert mesh.get_num_devices() == mesh.shape.mesh_size() == 6
    assert mesh.get_device_ids() == list(range(6))
    assert mesh.compute_with_storage_grid_size() == ttnn.CoreCoord(8, 8)
    assert mesh.core_grid.num_cores == 64
    assert repr(mesh).endswith("2x3)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"execution": "lazy"}, "execution='lazy'"),
        ({"precision": "float16"}, "precision='float16'"),
        ({"trace_region_size": -1}, "trace_region_size=-1"),
        ({"num_command_queues": 0}, "num_command_queues=0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ttnn.open_mesh_device(ttnn.MeshShape(1, 1), **options)


def test_mesh_without_devices_is_refused():
    with pytest.raises(ValueError, match="no device"):
        ttnn.open_mesh_device(ttnn.MeshShape(0, 1))


def test_submeshes_share_options_and_nothing_else(open_mesh, host, plain):
    parent = open_mesh(2, 2, execution="deferred", precision="bfloat16", trace_region_size=5000)
    lanes = parent.create_submeshes(ttnn.MeshShape(1, 2))
    assert [lane.shape for lane in lanes] == [(1, 2), (1, 2)]
    assert parent.get_submeshes() == lanes
    tensor = ttnn.to_device(host([1.0]), lanes[0])
    plain.add(tensor, tensor)
    assert [lane.num_program_cache_entries() for lane in lanes] == [1, 0]
    assert [lane.counters.live_tensors for lane in (parent, *lanes)] == [0, 1, 0]
    assert lanes[1].options == parent.options
    with pytest.raises(RuntimeError, match="is on MeshDevice"):
        plain.add(tensor, ttnn.to_device(host([1.0]), lanes[1]))
    with pytest.raises(RuntimeError, match="does not divide"):
        parent.create_submeshes(ttnn.MeshShape(1, 3))


def test_close_frees_tensors_and_submeshes_once(open_mesh, host, plain):
    parent = open_mesh(1, 2)
    lane = parent.create_submeshes(ttnn.MeshShape(1, 1))[0]
    tensor = ttnn.to_device(host([1.0]), lane)
    ttnn.close_mesh_device(parent)
    ttnn.close_mesh_device(parent)
    assert parent.closed
    assert lane.closed
    assert parent.get_submeshes() == []
    assert not tensor.is_allocated()
    assert lane.live_tensors() == []
    for call in (lambda: ttnn.zeros((1,), device=lane), lambda: tensor.cpu(), lambda: plain.add(tensor, tensor)):
        with pytest.raises(RuntimeError, match="is closed"):
            call()


def test_unfinished_work_is_dropped_by_close(open_mesh, host, plain):
    mesh = open_mesh(execution="deferred")
    tensor = ttnn.to_device(host([1.0]), mesh)
    pending = plain.add(tensor, tensor).cpu(blocking=False)
    ttnn.close_mesh_device(mesh)
    with pytest.raises(RuntimeError, match="not complete"):
        pending.to_numpy()


def test_live_tensors_follow_allocation_free_and_garbage_collection(mesh, host, plain):
    assert mesh.live_tensors() == []
    first = ttnn.to_device(host([[1.0, 2.0]], ttnn.bfloat16), mesh)
    second = plain.add(first, first)
    live = mesh.live_tensors()
    assert [item.buffer_id for item in live] == [first.buffer_id, second.buffer_id]
    assert [item.name for item in live] == [first.name, second.name]
    assert (live[0].shape, live[0].dtype, live[0].bytes) == ((1, 2), ttnn.bfloat16, 4)
    assert (mesh.counters.live_tensors, mesh.counters.live_bytes) == (2, 8)
    ttnn.deallocate(first)
    assert mesh.live_tensors() == live[1:]
    ttnn.synchronize_device(mesh)
    del second
    gc.collect()
    assert mesh.counters.live_tensors == 0
    assert mesh.counters.allocations == 2
    assert mesh.counters.deallocations == 1


def test_counters_can_be_cleared(mesh, host):
    tensor = ttnn.to_device(host([1.0]), mesh)
    tensor.cpu()
    mesh.counters.clear()
    assert mesh.counters.calls == {}
    assert mesh.counters.bytes_to_device == mesh.counters.bytes_to_host == mesh.counters.syncs == 0
    assert mesh.counters.live_tensors == 1
