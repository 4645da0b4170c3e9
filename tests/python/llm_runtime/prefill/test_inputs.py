# SPDX-License-Identifier: Apache-2.0
"""Host tensors, uploads and in-place refresh of prefill inputs, on the twin."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ns
from llm_runtime.prefill.inputs import (
    PrefillInputStager,
    allocate_device_tensors,
    copy_into_device_tensors,
)
from llm_runtime.tensor_resources import best_effort_deallocate_owned_tensors
from support.prefill_model import VOCAB, EchoModel


@pytest.fixture
def released():
    return []


@pytest.fixture
def stager(model, mesh, released):
    def release(values):
        released.append(values)
        return best_effort_deallocate_owned_tensors(values)

    return PrefillInputStager(model=model, mesh_device=mesh, release_transient=release)


def names(mesh):
    return [tensor.name for tensor in mesh.live_tensors()]


def host_inputs(stager, shape=(1, 4), **options):
    return stager.prepare_host_inputs(np.zeros(shape, np.int64), np.zeros((1, 8), np.int32), **options)


@pytest.mark.covers("PIN-01", "PIN-02")
@pytest.mark.parametrize("shape", [(8,), (1, 2, 8)])
def test_tokens_must_have_rank_2(stager, model, shape):
    loads = model.rope_setup.loads
    with pytest.raises(ValueError, match="rank 2"):
        host_inputs(stager, shape)
    assert model.rope_setup.loads == loads


@pytest.mark.covers("PIN-03")
def test_start_position_must_not_be_negative(stager):
    with pytest.raises(ValueError, match="nonnegative, got -1"):
        host_inputs(stager, start_pos=-1)


@pytest.mark.covers("PIN-04")
def test_last_token_must_fit_the_rotary_table(mesh):
    stager = PrefillInputStager(
        model=EchoModel(mesh, max_positions=8), mesh_device=mesh, release_transient=lambda _values: []
    )
    with pytest.raises(ValueError, match=r"last token 8.*rotary capacity 8"):
        host_inputs(stager, last_token_idx=8)
    assert host_inputs(stager, last_token_idx=7).position_indices.shape == (1, 4)


@pytest.mark.covers("PIN-05", "PIN-06")
@pytest.mark.parametrize(("start", "expected"), [(6, [6, 7, 7, 7]), (0, [0, 1, 2, 3])])
def test_positions_clamp_to_the_last_rotary_row(mesh, start, expected):
    stager = PrefillInputStager(
        model=EchoModel(mesh, max_positions=8), mesh_device=mesh, release_transient=lambda _values: []
    )
    positions = host_inputs(stager, start_pos=start).position_indices
    assert positions.dtype == ns.uint32
    assert positions.to_numpy().tolist() == [expected]


@pytest.mark.covers("PIN-07", "PIN-08", "PIN-09")
@pytest.mark.parametrize(("last", "length"), [(-1, 32), (32, 32), (0, 0)])
def test_last_token_must_lie_in_the_padded_sequence(stager, last, length):
    with pytest.raises(ValueError, match="last-token position"):
        stager.prepare_position_inputs_host(last, length)


def test_position_tensors_name_tile_and_row(stager):
    host = stager.prepare_position_inputs_host(79, 128)
    assert [tensor.to_numpy().tolist() for tensor in host.values()] == [
        [0, 0, 64, 0],
        [1, 1, 96, VOCAB],
        [[15]],
    ]
    assert {tensor.dtype for tensor in host.values()} == {ns.uint32}


def test_host_tensor_geometry(stager):
    tokens = np.arange(8, dtype=np.int64).reshape(2, 4)
    table = np.array([[3, -1], [4, 5]], np.int32)
    host = stager.prepare_host_inputs(tokens, table, chunk_page_table=table[:1], chunk_start_idx=0, last_token_idx=3)
    assert host.tokens.to_numpy().tolist() == [[[list(range(8))]]]
    assert host.position_indices.shape == (1, 4)
    assert host.page_table.to_numpy().tolist() == table.tolist()
    assert host.chunk_page_table.shape == (1, 2)
    assert host.chunk_start_idx.to_numpy().tolist() == [0]
    kinds = [tensor.dtype for tensor in host.values()]
    assert kinds == [ns.uint32, ns.uint32, ns.int32, ns.int32, ns.int32]


@pytest.mark.covers("PIN-10")
def test_failed_upload_releases_what_was_uploaded(mesh):
    hosts = [ns.Tensor(np.zeros((1, 8), np.uint32), ns.uint32) for _ in range(2)]
    before, freed = names(mesh), mesh.counters.calls["deallocate"]
    error = RuntimeError("no room")
    mesh.faults.fail("to_device", at=2, error=error)
    with pytest.raises(RuntimeError) as caught:
        allocate_device_tensors(hosts, mesh_device=mesh)
    assert caught.value is error
    assert names(mesh) == before
    assert mesh.counters.calls["deallocate"] == freed + 1


@pytest.mark.parametrize(
    ("host", "device"), [((0,), ("d",)), (("h",), (0,)), (("h", "h"), ("d",)), (("h", 0), ("d", "d"))]
)
@pytest.mark.covers("PIN-12", "PIN-13", "PIN-14", "PIN-16")
def test_copy_needs_the_structure_of_the_capture(mesh, host, device):
    array = np.zeros((1, 8), np.uint32)
    hosts = [ns.Tensor(array, ns.uint32) if item else None for item in host]
    devices = [ns.to_device(ns.Tensor(array, ns.uint32), device=mesh) if item else None for item in device]
    with pytest.raises(ValueError, match="host/device structure"):
        copy_into_device_tensors(hosts, devices)
    assert mesh.counters.calls["copy_host_to_device_tensor"] == 0


@pytest.mark.covers("PIN-11")
def test_rotary_refresh_needs_cosine_and_sine(stager, model, mesh, released):
    device_inputs = stager.stage_device_inputs(host_inputs(stager))
    before = names(mesh)
    make = model.prepare_prefill_rot_mats
    made = []

    def only_cosine(positions):
        cos, sin = make(positions)
        ns.deallocate(sin)
        made.append(cos)
        return (cos,)

    model.prepare_prefill_rot_mats = only_cosine
    with pytest.raises(ValueError, match="cosine and sine, got 1"):
        stager.copy_rotary_inputs(device_inputs)
    assert mesh.counters.calls["copy"] == 0
    assert not made[0].is_allocated()
    assert names(mesh) == before


@pytest.mark.parametrize("count", [1, 3])
def test_malformed_rotary_output_releases_the_upload(stager, model, mesh, count):
    make = model.prepare_prefill_rot_mats

    def odd(positions):
        cos, sin = make(positions)
        return (cos, sin, make(positions)) if count == 3 else (cos, ns.deallocate(sin))[:1]

    model.prepare_prefill_rot_mats = odd
    before = names(mesh)
    with pytest.raises(ValueError, match=f"got {count} tensors"):
        stager.stage_device_inputs(host_inputs(stager))
    assert names(mesh) == before


def test_missing_rotary_method_is_refused_before_any_upload(stager, model, mesh):
    host = host_inputs(stager)
    uploads = mesh.counters.calls["to_device"]
    model.prepare_prefill_rot_mats = None
    with pytest.raises(TypeError, match="EchoModel has no callable prepare_prefill_rot_mats"):
        stager.stage_device_inputs(host)
    assert mesh.counters.calls["to_device"] == uploads


@pytest.mark.covers("PIN-15")
def test_staging_a_cached_chunk_uploads_its_tokens_tables_and_position(lane, stager):
    call = {**lane.prompt([160]), "start_pos": np.array([32])}
    (prepared,) = lane.runtime.prepare(**call)
    request = prepared.request
    seen = {}
    build, locate = stager.prepare_host_inputs, stager.prepare_position_inputs_host

    def spy_build(tokens, page_table, **options):
        seen.update(options, tokens=tokens, page_table=page_table)
        return build(tokens, page_table, **options)

    def spy_locate(relative_last, sequence_length):
        seen["position"] = (relative_last, sequence_length)
        return locate(relative_last, sequence_length)

    stager.prepare_host_inputs, stager.prepare_position_inputs_host = spy_build, spy_locate
    device_inputs, _ = stager.stage_step(request, request.chunks[0], 127)
    assert np.array_equal(seen["tokens"], request.tokens[:, :128])
    assert np.shares_memory(seen["page_table"], request.page_table)
    assert (seen["start_pos"], seen["chunk_start_idx"], seen["last_token_idx"]) == (32, 32, 159)
    assert seen["chunk_page_table"].tolist() == [[1, 2, 3, 4]]
    assert seen["position"] == (127, 128)
    assert device_inputs.tokens.cpu().to_numpy().reshape(-1)[:128].tolist() == call["tokens"][0, 32:].tolist()
    assert device_inputs.chunk_start_idx.cpu().to_numpy().tolist() == [32]
    assert device_inputs.position_indices.cpu().to_numpy()[0].tolist() == list(range(32, 160))


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_upload_of_a_step_may_fail_without_a_leak(lane, stager, mesh, at):
    (prepared,) = lane.runtime.prepare(**lane.prompt([160]), start_pos=np.array([32]))
    before = names(mesh)
    error = RuntimeError("upload")
    mesh.faults.fail("to_device", at=at, error=error)
    with pytest.raises(RuntimeError) as caught:
        stager.stage_step(prepared.request, prepared.request.chunks[0], 127)
    assert caught.value is error
    assert names(mesh) == before


def test_failed_release_after_a_good_rotary_copy_is_raised(stager, mesh):
    device_inputs = stager.stage_device_inputs(host_inputs(stager))
    mesh.faults.fail("deallocate", at=1)
    with pytest.raises(RuntimeError, match="deallocate"):
        stager.copy_rotary_inputs(device_inputs)
