# SPDX-License-Identifier: Apache-2.0
"""How ops reach a mesh: checks, program cache, rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ttnn_twin as ttnn
from ttnn_twin.dispatch import dispatch
from ttnn_twin.dtypes import round_to_bfloat16


def test_outputs_have_the_declared_specification(mesh, host):
    spec = ttnn.TensorSpec((2,), ttnn.int32, ttnn.TILE_LAYOUT, ttnn.L1_MEMORY_CONFIG)

    def kernel(out, read, write):
        out[0][:] = read[0][:2]
        out[1][:] = 5

    source = ttnn.to_device(host([1, 2, 3], ttnn.int32), mesh)
    first, second = dispatch("pick", reads=(source,), kernel=kernel, outputs=(spec, spec))
    assert first.spec == second.spec == spec
    assert first.cpu().to_numpy().tolist() == [1, 2]
    assert second.cpu().to_numpy().tolist() == [5, 5]


def test_in_place_writes(mesh, host, plain):
    target = ttnn.to_device(host([1.0]), mesh)
    plain.add_into(ttnn.to_device(host([2.0]), mesh), target)
    assert target.cpu().to_numpy().tolist() == [3.0]
    plain.add_into(target, target)
    assert target.cpu().to_numpy().tolist() == [6.0]


def test_program_cache_counts_unseen_keys(mesh, host, plain):
    a, b = ttnn.to_device(host([1.0]), mesh), ttnn.to_device(host([1.0, 2.0]), mesh)
    plain.add(a, a)
    plain.add(a, a)
    assert mesh.num_program_cache_entries() == 1
    plain.add(b, b)
    assert mesh.num_program_cache_entries() == 2
    plain.divide(b, 2.0)
    plain.divide(b, 2.0)
    plain.divide(b, 4.0)
    assert mesh.num_program_cache_entries() == mesh.counters.compiles == 4
    assert mesh.counters.calls["divide"] == 3


@pytest.mark.parametrize(
    "change",
    [{"dtype": ttnn.bfloat16}, {"layout": ttnn.TILE_LAYOUT}, {"memory_config": ttnn.L1_MEMORY_CONFIG}],
)
def test_type_layout_and_place_select_the_program(mesh, plain, change):
    base = {"dtype": ttnn.float32, "layout": ttnn.ROW_MAJOR_LAYOUT, "memory_config": ttnn.DRAM_MEMORY_CONFIG}
    for options in (base, base | change):
        tensor = ttnn.ones((32, 32), device=mesh, **options)
        plain.add(tensor, tensor)
    assert mesh.num_program_cache_entries() == 2


def test_padding_selects_the_program(mesh):
    def kernel(out, read, write):
        out[0][:] = 0

    for padded in ((1, 32), (32, 32)):
        dispatch("fill", reads=(ttnn.ones((1, 32), device=mesh),), kernel=kernel, outputs=(
            ttnn.TensorSpec((1, 32), ttnn.bfloat16, ttnn.TILE_LAYOUT, padded_shape=padded),
        ))  # fmt: skip
    assert mesh.num_program_cache_entries() == 2


def test_misses_can_be_forbidden(mesh, host, plain):
    tensor = ttnn.to_device(host([1.0]), mesh)
    plain.divide(tensor, 2.0)
    mesh.set_program_cache_misses_allowed(False)
    assert plain.divide(tensor, 2.0).cpu().to_numpy().tolist() == [0.5]
    with pytest.raises(RuntimeError, match="divide: no program is compiled"):
        plain.divide(tensor, 4.0)
    mesh.set_program_cache_misses_allowed(True)
    assert plain.divide(tensor, 4.0).cpu().to_numpy().tolist() == [0.25]


def test_refused_call_allocates_nothing(mesh, host, plain):
    device, on_host = ttnn.to_device(host([1.0]), mesh), host([1.0])
    before = mesh.live_tensors()
    with pytest.raises(RuntimeError, match=r"add: host tensor \(float32 \[1\]\) is on the host"):
        plain.add(device, on_host)
    with pytest.raises(RuntimeError, match=r"add: host tensor .* is not on a device"):
        plain.add(on_host, on_host)
    with pytest.raises(TypeError, match="add: a tensor is needed, got list"):
        dispatch("add", reads=(device, [1.0]), kernel=lambda *_: None, outputs=(device.spec,))
    with pytest.raises(TypeError, match="add: a tensor is needed, got int"):
        dispatch("add", reads=(3,), kernel=lambda *_: None, outputs=(device.spec,))
    assert mesh.live_tensors() == before
    assert mesh.num_program_cache_entries() == 0


def test_tensors_of_two_meshes_are_refused(open_mesh, host, plain):
    first, second = open_mesh(), open_mesh()
    a, b = ttnn.to_device(host([1.0]), first), ttnn.to_device(host([1.0]), second)
    with pytest.raises(RuntimeError, match=f"add: tensor #{b.buffer_id} .* is on MeshDevice"):
        plain.add(a, b)


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
def test_bfloat16_precision_rounds_what_is_written(open_mesh, host, plain, execution):
    mesh = open_mesh(execution=execution, precision="bfloat16")
    third = float(np.float32(1.0) / np.float32(3.0))
    rounded = float(np.float32(third).astype(ml_dtypes.bfloat16))
    assert third != rounded
    uploaded = ttnn.to_device(host([third], ttnn.bfloat16), mesh)
    assert uploaded.cpu().to_numpy()[0] == rounded
    one = ttnn.to_device(host([1.0], ttnn.bfloat16), mesh)
    assert plain.divide(one, 3.0).cpu().to_numpy()[0] == rounded
    assert ttnn.full((1,), third, device=mesh).cpu().to_numpy()[0] == rounded
    exact = ttnn.to_device(host([third], ttnn.float32), mesh)
    plain.add_into(exact, one)
    assert one.cpu().to_numpy()[0] == float(np.float32(1 + third).astype(ml_dtypes.bfloat16))
    kept = ttnn.to_device(host([0.0], ttnn.bfloat16), mesh)
    plain.add_into(exact, kept, exact=True)
    assert kept.cpu().to_numpy()[0] == np.float32(third)
    wide = ttnn.to_device(host([1.0], ttnn.float32), mesh)
    assert plain.divide(wide, 3.0).cpu().to_numpy()[0] == np.float32(third)


def test_float32_precision_keeps_bfloat16_tensors_exact(mesh, host, plain):
    one = ttnn.to_device(host([1.0], ttnn.bfloat16), mesh)
    assert plain.divide(one, 3.0).cpu().to_numpy()[0] == np.float32(1.0) / np.float32(3.0)


def test_rounding_agrees_with_the_bfloat16_type():
    random = np.random.default_rng(0)
    values = random.integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    values = np.concatenate(
        [values[np.isfinite(values)], np.array([0, -0.0, np.inf, -np.inf, 3.4028235e38], np.float32)]
    )
    expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    round_to_bfloat16(values)
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))
    nan = np.array([np.nan, -np.nan], np.float32)
    round_to_bfloat16(nan)
    assert np.isnan(nan).all()
    scalar = np.array(1.001, np.float32)
    round_to_bfloat16(scalar)
    assert scalar == np.float32(1.0)
