# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device, filled tensors and deallocation."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn


def test_upload_and_read_give_the_values(mesh, host):
    source = host([[1.5, -2.0]])
    device = ttnn.to_device(source, device=mesh, memory_config=ttnn.L1_MEMORY_CONFIG)
    assert device.storage_type() is ttnn.StorageType.DEVICE
    assert device.device() is mesh
    assert device.memory_config() == ttnn.L1_MEMORY_CONFIG
    np.testing.assert_array_equal(device.cpu().to_numpy(), [[1.5, -2.0]])
    np.testing.assert_array_equal(ttnn.from_device(device).to_numpy(), [[1.5, -2.0]])
    assert ttnn.to_device(device, mesh) is device


def test_copy_into_an_existing_tensor(mesh, host):
    device = ttnn.to_device(host([1, 2], ttnn.int32), mesh)
    identity = device.buffer_id
    ttnn.copy_host_to_device_tensor(host([7, 8], ttnn.int32), device)
    assert device.cpu().to_numpy().tolist() == [7, 8]
    assert device.buffer_id == identity


def test_tensor_constructor_uploads(mesh):
    tensor = ttnn.Tensor(
        np.ones((1, 1, 5, 40), np.float32), ttnn.bfloat16, mesh, ttnn.TILE_LAYOUT, ttnn.L1_MEMORY_CONFIG
    )
    assert tensor.device() is mesh
    assert tensor.padded_shape == (1, 1, 32, 64)
    assert tensor.memory_config() == ttnn.L1_MEMORY_CONFIG
    assert tensor.cpu().to_numpy().sum() == 200


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ttnn.TensorSpec((1, 3), ttnn.int32), r"\[1, 3\] INT32"),
        (ttnn.TensorSpec((2, 1), ttnn.int32), r"\[2, 1\] INT32"),
        (ttnn.TensorSpec((1, 2), ttnn.uint32), r"\[1, 2\] UINT32"),
        (ttnn.TensorSpec((1, 2), ttnn.int32, ttnn.TILE_LAYOUT), "TILE does not match"),
    ],
)
def test_mismatched_upload_is_refused_and_changes_nothing(mesh, host, other, message):
    device = ttnn.to_device(host([[1, 2]], ttnn.int32), mesh)
    with pytest.raises(RuntimeError, match=message):
        ttnn.copy_host_to_device_tensor(ttnn.ones(other.shape, dtype=other.dtype, layout=other.layout), device)
    assert device.cpu().to_numpy().tolist() == [[1, 2]]


def test_tensor_on_the_wrong_side_is_named(mesh, host):
    source = host([1.0])
    device = ttnn.to_device(source, mesh)
    with pytest.raises(
        RuntimeError, match=r"copy_host_to_device_tensor: the destination host tensor \(float32 \[1\]\)"
    ):
        ttnn.copy_host_to_device_tensor(source, source)
    with pytest.raises(RuntimeError, match=f"tensor #{device.buffer_id} .* is on a device"):
        ttnn.copy_host_to_device_tensor(device, device)
    with pytest.raises(RuntimeError, match=f"to_numpy: tensor #{device.buffer_id} .* is on a device"):
        device.to_numpy()
    with pytest.raises(RuntimeError, match=f"to_dtype: tensor #{device.buffer_id} "):
        ttnn.to_dtype(device, ttnn.int32)
    with pytest.raises(RuntimeError, match=r"copy: host tensor .* is on the host"):
        ttnn.copy(source, device)


def test_upload_to_another_mesh_is_refused(open_mesh, host):
    first, second = open_mesh(), open_mesh()
    with pytest.raises(RuntimeError, match="is on a device"):
        ttnn.to_device(ttnn.to_device(host([1.0]), first), second)
    assert second.live_tensors() == []


def test_device_copy_converts_types_in_tile_layout_only(mesh):
    source = ttnn.full((1, 1, 32, 32), 2.75, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh)
    target = ttnn.zeros((1, 1, 32, 32), dtype=ttnn.int32, layout=ttnn.TILE_LAYOUT, device=mesh)
    assert ttnn.copy(input_a=source, input_b=target) is target
    assert (target.cpu().to_numpy() == 2).all()
    rows = ttnn.zeros((1, 1, 32, 32), dtype=ttnn.int32, device=mesh)
    with pytest.raises(RuntimeError, match="do not match"):
        ttnn.copy(source, rows)
    with pytest.raises(RuntimeError, match="only tile layout converts"):
        ttnn.copy(ttnn.zeros((2, 2), dtype=ttnn.uint32, device=mesh), ttnn.zeros((2, 2), dtype=ttnn.int32, device=mesh))


def test_filled_tensors(mesh):
    assert ttnn.zeros((2, 3)).storage_type() is ttnn.StorageType.HOST
    assert ttnn.zeros((2, 3)).dtype is ttnn.bfloat16
    minus = ttnn.full((2, 3), -1, dtype=ttnn.int32, device=mesh)
    assert minus.cpu().to_numpy().tolist() == [[-1] * 3] * 2
    assert ttnn.ones((2,), dtype=ttnn.uint32, device=mesh).cpu().to_numpy().tolist() == [1, 1]
    assert mesh.num_program_cache_entries() == 0


def test_as_tensor_uploads_with_layout_and_place(mesh):
    tensor = ttnn.as_tensor(
        np.array([[1.0, 2.0]], np.float32),
        dtype=ttnn.bfloat16,
        layout=ttnn.TILE_LAYOUT,
        device=mesh,
        memory_config=ttnn.DRAM_MEMORY_CONFIG,
        mesh_mapper=ttnn.ReplicateTensorToMesh(mesh),
        cache_file_name=None,
    )
    assert tensor.padded_shape == (32, 32)
    assert tensor.cpu().to_numpy().tolist() == [[1.0, 2.0]]
    with pytest.raises(RuntimeError, match="memory_config"):
        ttnn.as_tensor(np.zeros(2, np.float32), device=mesh)


def test_freed_tensor_cannot_be_used(mesh, host, plain):
    tensor = ttnn.to_device(host([1.0]), mesh)
    name = rf"tensor #{tensor.buffer_id} \(to_device, float32 \[1\]\)"
    ttnn.deallocate(tensor)
    assert not tensor.is_allocated()
    assert tensor.device() is None
    assert tensor.shape == (1,)
    assert tensor.storage_type() is ttnn.StorageType.DEVICE
    with pytest.raises(RuntimeError, match=f"deallocate: double free of {name}"):
        ttnn.deallocate(tensor)
    for op, call in {
        "cpu": lambda: tensor.cpu(),
        "add": lambda: plain.add(tensor, tensor),
        "copy_host_to_device_tensor": lambda: ttnn.copy_host_to_device_tensor(host([2.0]), tensor),
    }.items():
        with pytest.raises(RuntimeError, match=f"{op}: use after free of {name}"):
            call()


def test_host_tensor_is_not_freed(host):
    tensor = host([3.0])
    ttnn.deallocate(tensor)
    assert tensor.is_allocated()
    assert tensor.to_numpy().tolist() == [3.0]


def test_work_enqueued_before_a_free_still_runs(mesh, host, plain):
    a = ttnn.to_device(host([1.0, 2.0]), mesh)
    b = plain.add(a, a)
    ttnn.deallocate(a)
    pending = b.cpu(blocking=False)
    b.deallocate(True)
    ttnn.synchronize_device(mesh)
    assert pending.to_numpy().tolist() == [2.0, 4.0]


def test_replicated_tensor_has_one_tensor_per_device(open_mesh, host):
    mesh = open_mesh(1, 2)
    tensor = ttnn.to_device(host([4.0]), mesh)
    shards = ttnn.get_device_tensors(tensor)
    assert [shard.buffer_id for shard in shards] == [tensor.buffer_id] * 2
    on_host = ttnn.get_device_tensors(tensor.cpu())
    assert [shard.to_numpy().tolist() for shard in on_host] == [[4.0], [4.0]]
    assert len(ttnn.get_device_tensors(host([1.0]))) == 1


def test_bytes_and_calls_are_counted(mesh, host):
    tensor = ttnn.to_device(host([[1.0]], ttnn.bfloat16), mesh)
    ttnn.copy_host_to_device_tensor(host([[2.0]], ttnn.bfloat16), tensor)
    tensor.cpu()
    counters = mesh.counters
    assert counters.bytes_to_device == 4
    assert counters.bytes_to_host == 2
    assert counters.calls == {"to_device": 1, "copy_host_to_device_tensor": 1, "cpu": 1}
    assert counters.allocations == 1


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
def test_zeros_of_the_host_take_no_memory_and_upload_as_new_zeros(open_mesh, execution):
    mesh = open_mesh(execution=execution)
    host = ttnn.zeros((2, 3), dtype=ttnn.float32)
    assert not any(host.to_numpy().strides)
    first, second = ttnn.to_device(host, mesh), ttnn.to_device(host, mesh)
    assert mesh.counters.bytes_to_device == 48
    ttnn.copy(ttnn.ones((2, 3), dtype=ttnn.float32, device=mesh), first)
    assert first.cpu().to_numpy().tolist() == [[1.0] * 3] * 2
    assert second.cpu().to_numpy().tolist() == [[0.0] * 3] * 2
    ttnn.copy_host_to_device_tensor(host, first)
    assert first.cpu().to_numpy().tolist() == [[0.0] * 3] * 2
