# SPDX-License-Identifier: Apache-2.0
"""Every device call of opening and of tearing down a lane fails once, or for good; nothing leaks or is freed twice."""

from __future__ import annotations

import gc

import pytest

import ttnn_twin
from llm_models.llama.executor import Llama, LlamaOptions
from support.fault_sweep import Fault, Sweep, calls_of, failure_of, points
from support.one_layer_lane import OneLayerLane, one_layer

OPTIONS = LlamaOptions(max_batch_size=2, max_seq_len=128, max_prefill_chunk_size=128, device_sampling=False)


def warmed_lane(**options):
    lane = OneLayerLane(**options)
    lane.llama.warm_up()
    lane.executor.prefill_forward(**lane.prefill_call())
    return lane


@pytest.mark.parametrize("every", [True, False], ids=["once", "for good"])
def test_cleanup(every):
    """The first error is kept, every owner gets its turn, and the next call frees only what is left."""
    lane = warmed_lane()
    calls = calls_of(lane.mesh, lane.executor.cleanup)
    lane.close()
    sweep = Sweep()
    for op, at in points(calls, every=every):
        lane = warmed_lane()
        with sweep.at(lane.mesh, op, at, times=1 if every else None) as error:
            raised = failure_of(lane.executor.cleanup, error)
            assert isinstance(raised, RuntimeError)
            if every:
                left = calls_of(lane.mesh, lane.executor.cleanup)
                assert left[op] == 1
                assert left["deallocate"] < 20, "only what could not be released is released again"
            else:
                with pytest.raises((RuntimeError, type(error))):
                    lane.executor.cleanup()
        lane.executor.cleanup()
        assert not calls_of(lane.mesh, lane.executor.cleanup), "cleanup is idempotent"
        assert lane.mesh.trace_region_used == 0
        lane.close()
    sweep.finish(at_least=2 * len(calls))


@pytest.mark.covers("R05")
def test_every_owner_gets_its_turn(monkeypatch):
    """Of four owners the second and the last fail once: the first error is raised, the other attached."""
    lane = warmed_lane()
    executor, turns, errors = lane.executor, [], {"programs": Fault("programs"), "cache": Fault("cache")}
    owners = {
        "traces": (executor.trace_compiler, "cleanup"),
        "programs": (executor.program_compiler, "cleanup"),
        "decode": (executor.decode_runtime, "cleanup_transients"),
        "cache": (executor.kv_cache_manager, "release"),
    }

    def watch(name, owner, method):
        release = getattr(owner, method)

        def watched():
            turns.append(name)
            if name in errors:
                raise errors.pop(name)
            release()

        monkeypatch.setattr(owner, method, watched)

    for name, owner in owners.items():
        watch(name, *owner)
    with pytest.raises(Fault, match="programs") as raised:
        executor.cleanup()
    assert [str(error) for error in raised.value.cleanup_failures] == ["cache"]
    assert turns == ["decode", "traces", "programs", "cache"]
    assert lane.mesh.trace_region_used == 0
    left = calls_of(lane.mesh, executor.cleanup)
    assert left == {"deallocate": 2}, "one layer's K and V are all that was left"
    executor.cleanup()
    assert turns == ["decode", "traces", "programs", "cache"] * 2
    lane.close()


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
def test_opening(execution):
    """Weights, tables and the KV cache: what was made is released and the next opening works."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=1 << 20, execution=execution)

    def open_and_close():
        Llama.open(one_layer(), mesh, OPTIONS).cleanup()

    calls = calls_of(mesh, lambda: Llama.open(one_layer(), mesh, OPTIONS))
    gc.collect()
    assert calls["to_device"] > 10, "weights, tables, K and V"
    sweep = Sweep()
    for op, at in points(calls):
        with sweep.at(mesh, op, at) as error:
            failure_of(open_and_close, error)
            gc.collect()
            assert not mesh.live_tensors()
    sweep.finish(at_least=10)
    open_and_close()
    assert not mesh.live_tensors()
    ttnn_twin.close_mesh_device(mesh)
