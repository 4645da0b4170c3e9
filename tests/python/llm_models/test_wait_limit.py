# SPDX-License-Identifier: Apache-2.0
"""A device that stops answering: with a limit, waits end in an error that says which, and cleanup frees what it can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ttnn_twin
from llm_models.executor import ModelExecutor
from llm_runtime.lane_group import LaneGroupExecutor
from support.executors import TRACE_REGION_BYTES, Bench, decode_call

LIMIT = 0.05


@pytest.fixture
def open_lane() -> Iterator[Callable[..., tuple[Bench, ModelExecutor, list[Any]]]]:
    """Lanes on deferred meshes of their own, with a limit; afterwards they answer again and everything goes."""
    benches: list[Bench] = []

    def opened(*, mesh: Any = None, limit: float | None = LIMIT) -> tuple[Bench, ModelExecutor, list[Any]]:
        mesh = mesh or ttnn_twin.open_mesh_device(trace_region_size=TRACE_REGION_BYTES, execution="deferred")
        bench = Bench(mesh)
        benches.append(bench)
        model = bench.model()
        config, runtime_config = bench.config(num_blocks=64), bench.runtime_config(model)
        executor = ModelExecutor(model, runtime_config, config, output_wait_limit=limit)
        bench.executors.append(executor)
        handle = executor.allocate_kv_cache()
        return bench, executor, [tensor for pair in handle for tensor in pair]

    yield opened
    for bench in benches:
        bench.mesh.faults.resume()
        assert bench.close() == []
        ttnn_twin.close_mesh_device(bench.mesh)


def notes(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.covers("O08")
def test_a_read_that_never_completes_names_its_step_and_lane_and_close_frees_the_rest(open_lane: Any) -> None:
    parent = ttnn_twin.open_mesh_device(
        ttnn_twin.MeshShape(1, 2), trace_region_size=TRACE_REGION_BYTES, execution="deferred"
    )
    lanes = [open_lane(mesh=mesh) for mesh in parent.create_submeshes(ttnn_twin.MeshShape(1, 1))]
    group = LaneGroupExecutor([executor for _, executor, _ in lanes], mesh_device=parent)
    step = decode_call([0, 0, 0, 0])
    group.decode_forward(**step)
    raw = group.decode_forward(**step, read_from_device=False)
    host, _ = group.read_decode_output(raw, async_read=True)
    stuck = lanes[1][0]
    stuck.mesh.faults.hang()
    with pytest.raises(TimeoutError, match=r"the device did not answer within 0\.05 s") as caught:
        group.process_decode_output_host(host)
    assert "output of decode step 2 of this lane" in notes(caught.value)
    assert caught.value.lane == 1  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        group.cleanup()
    assert not any(tensor.is_allocated() for _, _, cache in lanes for tensor in cache)
    assert len(stuck.executors[0].decode_runtime._readout.leases) == 1
    stuck.mesh.faults.resume()
    group.cleanup()
    assert len(stuck.executors[0].decode_runtime._readout.leases) == 0


def test_a_blocking_step_is_limited_too_and_ends_the_executor(open_lane: Any) -> None:
    bench, executor, _ = open_lane()
    executor.decode_forward(**decode_call([0, 0]))
    bench.mesh.faults.hang()
    with pytest.raises(TimeoutError, match="blocking output read") as caught:
        executor.decode_forward(**decode_call([1, 1]))
    assert "output of decode step 2 of this lane" in notes(caught.value)
    with pytest.raises(RuntimeError, match="state on the device is unknown"):
        executor.decode_forward(**decode_call([1, 1]))


def test_without_a_limit_a_read_waits_as_long_as_it_takes(open_lane: Any) -> None:
    bench, executor, _ = open_lane(limit=None)
    raw = executor.decode_forward(**decode_call([0, 0]), read_from_device=False)
    host, _ = executor.read_decode_output(raw, async_read=True)
    bench.mesh.faults.hang()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(executor.process_decode_output_host(host)))
    thread.start()
    thread.join(4 * LIMIT)
    assert thread.is_alive() and not results
    bench.mesh.faults.resume()
    thread.join(10)
    assert results[0][0].shape == (2, 1, 256)


@pytest.mark.parametrize(
    ("limit", "error"), [(0, ValueError), (float("inf"), ValueError), (True, TypeError), ("1", TypeError)]
)
def test_a_limit_is_a_positive_number_of_seconds(bench: Bench, limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="output_wait_limit must be"):
        bench.executor(options={"output_wait_limit": limit})
