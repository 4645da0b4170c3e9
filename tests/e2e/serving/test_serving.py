# SPDX-License-Identifier: Apache-2.0
"""Serving through the vLLM facade: every token of every request is the one that the request gives alone.

`SERVING_REQUESTS` sets the number of requests per run (300 unless given).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.serving.deployment import Deployment, write_tiny_model
from support.serving.server import Server, ServerOptions
from support.serving.traffic import make_traffic

REQUESTS = int(os.environ.get("SERVING_REQUESTS", "300"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"))


def serve(deployment: Deployment, *, count: int, seed: int) -> Server:
    """Serve random traffic and check tokens, writes and leftovers."""
    server = deployment.server()
    finished = server.serve(make_traffic(count, seed=seed, max_model_len=deployment.options.max_model_len))
    reference = deployment.reference()
    for request in finished:
        assert request.outcome is not None
        reference.check(request)
    assert reference.ties <= max(2, reference.tokens // 2000), (reference.ties, reference.tokens)
    assert all(not lane.users for lane in server.lanes)
    deployment.assert_idle()
    assert deployment.device_state() == deployment.warm_state, "serving allocated, compiled or captured something"
    return server


@pytest.mark.parametrize("trace_mode", ["none", "decode_only", "all"])
def test_random_traffic(folder: Path, trace_mode: str) -> None:
    options = ServerOptions(trace_mode=trace_mode, sample_on_device_mode="all", rows=8, seed=11)
    deployment = Deployment(folder, options)
    server = serve(deployment, count=REQUESTS, seed=3)
    deployment.stop()
    counts = server.counts
    print(trace_mode, dict(counts), server.max_flights)
