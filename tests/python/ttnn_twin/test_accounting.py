# SPDX-License-Identifier: Apache-2.0
"""A mesh that never runs anything accounts for everything that one that runs does."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import ttnn_twin as ttnn


def work(mesh, *, rows=64):
    """Upload, compile, capture and free; returns what the mesh counted."""
    weight = ttnn.to_device(
        ttnn.Tensor(np.ones((1, 1, 64, 64), np.float32), ttnn.bfloat16, layout=ttnn.TILE_LAYOUT), mesh
    )
    source = ttnn.zeros((1, 1, rows, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)

    def body():
        made = ttnn.linear(source, weight)
        result = ttnn.add(made, source)
        ttnn.deallocate(made)
        return result

    ttnn.deallocate(body())
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    output = body()
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
    ttnn.synchronize_device(mesh)
    counters = mesh.counters
    counted = {
        "trace": mesh.trace_bytes(trace),
        "live": [(tensor.shape, tensor.bytes) for tensor in mesh.live_tensors()],
        "programs": mesh.num_program_cache_entries(),
        "calls": dict(counters.calls),
        "uploaded": counters.bytes_to_device,
        "others": (counters.captures, counters.replays, counters.allocations, counters.deallocations),
    }
    return counted, output


def test_it_counts_what_a_running_mesh_counts(open_mesh):
    never, _ = work(open_mesh(execution="never", trace_region_size=1 << 20))
    immediate, output = work(open_mesh(trace_region_size=1 << 20))
    assert never == immediate
    assert output.cpu().to_numpy().shape == (1, 1, 64, 64)


def test_its_tensors_take_no_memory(open_mesh):
    mesh = open_mesh(execution="never", trace_region_size=1 << 20)
    tracemalloc.start()
    try:
        work(mesh, rows=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_it_refuses_what_a_running_mesh_refuses(open_mesh):
    mesh = open_mesh(execution="never")
    one, other = ttnn.ones((1, 1, 32, 32), device=mesh), ttnn.ones((1, 1, 32, 64), device=mesh)
    with pytest.raises(RuntimeError):
        ttnn.add(one, other)
    ttnn.deallocate(one)
    with pytest.raises(RuntimeError, match="use after free"):
        ttnn.add(one, one)


def test_an_unknown_execution_is_refused(open_mesh):
    with pytest.raises(ValueError, match="'never'"):
        open_mesh(execution="sometimes")


@pytest.mark.parametrize("known", [None, 5000])
def test_a_trace_that_does_not_fit_tells_the_size_that_is_needed(open_mesh, known):
    """Whoever learns the need of further traces can say so in the same error."""
    with pytest.raises(RuntimeError, match="asks for") as raised:
        work(open_mesh(trace_region_size=100))
    error = raised.value
    assert error.needed_bytes == error.trace_bytes
    if known is not None:
        error.needed_bytes = known
    assert f"trace_region_size={known or error.trace_bytes} or more" in str(error)
