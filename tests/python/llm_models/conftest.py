# SPDX-License-Identifier: Apache-2.0
"""A mesh, and a bench for model executors, which check that nothing is left on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ttnn_twin
from support.executors import TRACE_REGION_BYTES, Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A mesh with builders of models and executors; after the test everything is released and nothing remains."""
    mesh = ttnn_twin.open_mesh_device(trace_region_size=TRACE_REGION_BYTES)
    made = Bench(mesh)
    yield made
    left = made.close()
    ttnn_twin.close_mesh_device(mesh)
    assert left == []


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A mesh with room for traces, on which nothing remains after the test."""
    mesh = ttnn_twin.open_mesh_device(trace_region_size=50_000_000)
    yield mesh
    left = mesh.live_tensors()
    ttnn_twin.close_mesh_device(mesh)
    assert left == []
