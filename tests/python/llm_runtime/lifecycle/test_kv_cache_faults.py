# SPDX-License-Identifier: Apache-2.0
"""Every device call of a KV cache's life fails, once or twice, under a real model; binding fails as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ttnn_twin
from llm_models.llama.model import LlamaModel
from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.paged_kv_cache import PagedKVCacheManager
from support.fault_sweep import Fault, Sweep, calls_of, failure_of, points
from support.one_layer_lane import one_layer

BLOCKS = 8
POLICY = PagedKVCacheConfig(block_size=32, max_num_blocks=BLOCKS, num_blocks=BLOCKS, dtype=ttnn_twin.bfloat16)


@pytest.fixture(params=["immediate", "deferred"])
def model(request) -> Iterator[LlamaModel]:
    """A model without a cache; whatever a test allocates on its mesh must be gone at the end."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), execution=request.param)
    model = LlamaModel.from_checkpoint(
        one_layer(), mesh, max_batch_size=2, max_seq_len=128, block_size=32, max_num_blocks=BLOCKS
    )
    weights = len(mesh.live_tensors())
    yield model
    assert len(mesh.live_tensors()) == weights
    model.release()
    ttnn_twin.close_mesh_device(mesh)


def live(model):
    return len(model.mesh_device.live_tensors())


@pytest.mark.parametrize("lost", [0, 1, 2], ids=lambda lost: f"{lost} failing releases")
def test_allocate_and_release(model, lost):
    """A fault in allocation, with failing releases behind it; then one in the release of what the retry made."""
    mesh, weights = model.mesh_device, live(model)
    manager = PagedKVCacheManager(model, POLICY)
    allocation, release = calls_of(mesh, manager.allocate), calls_of(mesh, manager.release)
    assert allocation == {"to_device": 2}
    assert release == {"deallocate": 2}
    sweep = Sweep()
    for op, at in points(allocation):
        manager = PagedKVCacheManager(model, POLICY)
        with sweep.at(mesh, op, at) as error:
            if lost:
                mesh.faults.fail("deallocate", times=lost, error=error)
            failure_of(manager.allocate, error)
            assert manager.bound_context is None
            assert live(model) - weights == min(lost, at - 1)
            if live(model) > weights and lost == 2:
                failure_of(manager.allocate, error)  # the leftovers still cannot be released
            cache = manager.allocate()
            manager.validate_borrowed_handle(cache)
            assert live(model) - weights == 2
        for fault in points(release):
            with sweep.at(mesh, *fault, times=max(lost, 1)) as error:
                failure_of(manager.release, error)
                assert manager.bound_context is None
                with pytest.raises(RuntimeError, match="releasing"):
                    manager.validate_borrowed_handle(cache)
                if lost == 2 and fault[1] == 2:
                    failure_of(manager.release, error)
                manager.release()
            assert live(model) == weights
            manager = PagedKVCacheManager(model, POLICY)
            cache = manager.allocate()
        manager.release()
    sweep.finish(at_least=6)


def test_binding(model, monkeypatch):
    """Binding fails: the tensors go. Unbinding fails too: they stay, and releasing tries it again."""
    weights, bind, refusals = live(model), model.set_kv_cache, []

    def refusing(cache):
        if refusals:
            raise refusals.pop(0)
        bind(cache)

    monkeypatch.setattr(model, "set_kv_cache", refusing)
    manager = PagedKVCacheManager(model, POLICY)
    refusals.append(Fault("bind"))
    with pytest.raises(Fault, match="bind"):
        manager.allocate()
    assert live(model) == weights
    refusals += [Fault("bind"), Fault("unbind")]
    with pytest.raises(Fault, match="bind") as raised:
        manager.allocate()
    assert [str(error) for error in raised.value.cleanup_failures] == ["unbind"]
    assert live(model) == weights + 2
    assert manager.bound_context is not None
    refusals.append(Fault("unbind again"))
    with pytest.raises(Fault, match="unbind again"):
        manager.release()
    assert live(model) == weights + 2
    manager.release()
    assert live(model) == weights
