# SPDX-License-Identifier: Apache-2.0
"""Rotary tables on the twin: values, lookups, lifetime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from llm_models.llama.rope import RopeConfig, RopeSetup, rope_table_len


@pytest.fixture
def mesh() -> Iterator[ttnn_twin.MeshDevice]:
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1))
    yield mesh
    ttnn_twin.close_mesh_device(mesh)


def setup(mesh: ttnn_twin.MeshDevice, **changes: Any) -> RopeSetup:
    fields: dict[str, Any] = {
        "head_dim": 32,
        "rope_theta": 100.0,
        "rope_factors": None,
        "max_batch_size": 3,
        "table_len": 256,
        "mesh_device": mesh,
    }
    return RopeSetup(RopeConfig(**{**fields, **changes}))


def indices(mesh: ttnn_twin.MeshDevice, values: Any) -> Any:
    return ttnn_twin.to_device(ttnn_twin.Tensor(np.array([values], np.uint32), ttnn_twin.uint32), device=mesh)


def host(tensor: Any) -> Any:
    return tensor.cpu(blocking=True).to_numpy()


def angles(position: int, factors: Any = 1.0) -> Any:
    return np.repeat(position * 100.0 ** (-np.arange(0, 32, 2) / 32) / factors, 2)


@pytest.mark.covers("MDC-12")
def test_prefill_lookups_load_the_tables_and_come_cosines_first(mesh: ttnn_twin.MeshDevice) -> None:
    rope = setup(mesh)
    assert mesh.live_tensors() == []
    positions = [0, 1, 200, 7]
    cos, sin = rope.prefill_forward(indices(mesh, positions))
    assert rope.cos_matrix.shape == rope.sin_matrix.shape == (1, 1, 256, 32)
    assert cos.shape == sin.shape == (1, 1, 4, 32)
    for row, position in enumerate(positions):
        np.testing.assert_allclose(host(cos)[0, 0, row], np.cos(angles(position)), atol=1e-6)
        np.testing.assert_allclose(host(sin)[0, 0, row], np.sin(angles(position)), atol=1e-6)


def test_decode_lookups_come_one_row_per_slot(mesh: ttnn_twin.MeshDevice) -> None:
    factors = np.linspace(1, 3, 16)
    rope = setup(mesh, rope_factors=tuple(factors.tolist()))
    cos, sin = rope.decode_forward(indices(mesh, [5, 0, 255, *[0] * 29]))
    assert cos.shape == sin.shape == (1, 3, 1, 32)
    assert cos.memory_config().memory_layout is ttnn_twin.TensorMemoryLayout.HEIGHT_SHARDED
    for slot, position in enumerate((5, 0, 255)):
        expected = angles(position, np.repeat(factors, 2)[::2])
        np.testing.assert_allclose(host(cos)[0, slot, 0], np.cos(expected), atol=1e-5)
        np.testing.assert_allclose(host(sin)[0, slot, 0], np.sin(expected), atol=1e-5)


def test_a_failed_second_lookup_frees_the_first(mesh: ttnn_twin.MeshDevice) -> None:
    rope = setup(mesh)
    rope.load_device_weights()
    positions = indices(mesh, [1, 2])
    before = len(mesh.live_tensors())
    mesh.faults.fail(op="embedding", at=2)
    with pytest.raises(Exception, match="embedding"):
        rope.prefill_forward(positions)
    assert len(mesh.live_tensors()) == before


def test_loading_is_idempotent_and_can_follow_a_release(mesh: ttnn_twin.MeshDevice) -> None:
    rope = setup(mesh)
    rope.load_device_weights()
    table, live = rope.cos_matrix, len(mesh.live_tensors())
    rope.load_device_weights()
    assert rope.cos_matrix is table
    assert len(mesh.live_tensors()) == live
    for _ in range(2):
        rope.release()
        assert mesh.live_tensors() == []
    rope.load_device_weights()
    assert len(mesh.live_tensors()) == live


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_failed_load_can_be_repeated(mesh: ttnn_twin.MeshDevice, at: int) -> None:
    rope = setup(mesh)
    mesh.faults.fail(op="to_device", at=at)
    with pytest.raises(Exception, match="to_device"):
        rope.load_device_weights()
    assert rope.cos_matrix is None
    rope.load_device_weights()
    cos, _ = rope.prefill_forward(indices(mesh, [3]))
    np.testing.assert_allclose(host(cos)[0, 0, 0], np.cos(angles(3)), atol=1e-6)
    ttnn_twin.deallocate(cos)
    rope.release()


@pytest.mark.parametrize(("max_seq_len", "expected"), [(1, 8192), (4096, 8192), (4097, 8320), (8192, 16384)])
def test_tables_cover_twice_the_context(max_seq_len: int, expected: int) -> None:
    assert rope_table_len(max_seq_len) == expected


def test_head_sizes_that_do_not_fill_tiles_are_refused(mesh: ttnn_twin.MeshDevice) -> None:
    with pytest.raises(ValueError, match="head_dim must be a multiple of 32 on the device, got 48"):
        setup(mesh, head_dim=48)
