# SPDX-License-Identifier: Apache-2.0
"""Serving through the vLLM facade: every token of every request is the one that the request gives alone.

`SERVING_REQUESTS` sets the number of requests of each long run, `SERVING_SEED` their traffic.
"""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

import ttnn_twin
from support.serving.deployment import Deployment
from support.serving.server import Server, ServerOptions
from support.serving.traffic import make_traffic

REQUESTS = int(os.environ.get("SERVING_REQUESTS", "300"))
SEED = int(os.environ.get("SERVING_SEED", "3"))
# What makes a long run worth its time; each must have happened.
ALWAYS = (
    "prefix hits",
    "preemptions",
    "resumes",
    "remaps",
    "side changes",
    "new blocks",
    "host tokens",
    "device tokens",
)
OVERLAP = ("resident steps", "overlapped", "page-table refreshes", "dropped tokens")


def options(**changes: Any) -> ServerOptions:
    return ServerOptions(**{"trace_mode": "all", "sample_on_device_mode": "all", "rows": 8, "seed": SEED, **changes})


def serve(deployment: Deployment, *, count: int, seed: int = SEED) -> Server:
    """Serve random traffic; check tokens, writes, and that serving left nothing on the device."""
    server = deployment.server()
    finished = server.serve(make_traffic(count, seed=seed, max_model_len=deployment.options.max_model_len))
    reference = deployment.reference()
    for request in finished:
        assert request.outcome is not None
        reference.check(request)
    assert reference.tokens >= count
    assert reference.ties <= max(2, reference.tokens // 5000), (reference.ties, reference.tokens)
    assert all(not lane.users for lane in server.lanes)
    deployment.assert_idle()
    assert deployment.device_state() == deployment.warm_state, "serving allocated, compiled or captured something"
    return server


@pytest.mark.covers("W01", "O02", "O09", "P01", "P27", "D03", "D06", "T30", "L03")
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("trace_mode", ["none", "decode_only", "all"])
def test_long_runs(folder: Path, trace_mode: str, lanes: int) -> None:
    deployment = Deployment(folder, options(trace_mode=trace_mode, lanes=lanes))
    server = serve(deployment, count=REQUESTS)
    deployment.stop()
    wanted = set(ALWAYS) | (set(OVERLAP) if trace_mode != "none" else set())
    if lanes > 1:
        # Slots of lanes are stable, and two lanes have twice the blocks.
        wanted -= {"remaps", "preemptions", "resumes"}
    assert not [what for what in wanted if not server.counts[what]], dict(server.counts)
    assert server.max_flights == (0 if trace_mode == "none" else 2)
    assert all(lane.reused and lane.hits for lane in server.lanes)


@pytest.mark.covers("O06", "O07")
@pytest.mark.parametrize(
    "changes",
    [
        {"sample_on_device_mode": None},
        {"sample_on_device_mode": "decode_only"},
        {"async_scheduling": False},
        {"block_size": 64, "num_blocks": 10},
        {"rows": 1, "num_blocks": 16},
        {"rows": 32, "num_blocks": 64},
        {"lanes": 4, "trace_mode": "decode_only"},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_other_shapes_on_a_device_that_works_late(folder: Path, changes: dict[str, Any]) -> None:
    deployment = Deployment(folder, options(**changes), execution="deferred")
    serve(deployment, count=50)
    deployment.stop()


def test_a_server_starts_twice_in_one_process(folder: Path) -> None:
    tokens = []
    for _ in range(2):
        deployment = Deployment(folder, options())
        server = deployment.server()
        finished = server.serve(make_traffic(20, seed=8, max_model_len=320))
        tokens.append([request.generated for request in finished if request.sampling.seed is not None])
        deployment.stop()
    assert tokens[0] == tokens[1]


def test_two_servers_side_by_side(folder: Path) -> None:
    first, second = Deployment(folder, options()), Deployment(folder, options(trace_mode="decode_only"))
    serve(first, count=15)
    serve(second, count=15)
    first.stop()
    serve(second, count=15, seed=9)
    second.stop()


@pytest.mark.parametrize("mesh_first", [True, False])
def test_a_server_that_never_cleans_up(folder: Path, mesh_first: bool) -> None:
    deployment = Deployment(folder, options())
    serve(deployment, count=10)
    mesh, gone = deployment.mesh, weakref.ref(deployment.model)
    if mesh_first:
        ttnn_twin.close_mesh_device(mesh)
    del deployment
    gc.collect()
    assert gone() is None
    assert mesh.live_tensors() == []
    ttnn_twin.close_mesh_device(mesh)


@pytest.mark.torch
@pytest.mark.parametrize("lanes", [1, 2])
def test_torch_tensors_as_a_server_sends_them(folder: Path, lanes: int) -> None:
    torch = pytest.importorskip("torch")
    deployment = Deployment(folder, options(as_torch=True, lanes=lanes))
    server = serve(deployment, count=40)
    call = {"tokens": torch.ones((1, 4), dtype=torch.int32), "page_table": torch.zeros((1, 1), dtype=torch.int32)}
    logits = deployment.model.prefill_forward(**call, kv_cache=deployment.kv_cache, enable_trace=True, empty_slots=[0])
    assert isinstance(logits, torch.Tensor) and logits.dtype is torch.float32 and logits.shape == (1, 1, 256)
    assert server.counts["device tokens"]
    deployment.stop()
