# SPDX-License-Identifier: Apache-2.0
"""A bench for model executors, which checks that nothing is left on its mesh."""

from __future__ import annotations

from collections.abc import Iterator

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
