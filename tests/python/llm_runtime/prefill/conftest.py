# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the prefill tests: twin meshes, the echo model, and runtimes over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ttnn_twin
from support.prefill_model import EchoLane, EchoModel


@pytest.fixture
def open_mesh() -> Iterator[Callable[..., Any]]:
    """Opens twin meshes and closes them after the test."""
    meshes = []

    def open_one(**options: Any) -> Any:
        mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), **{"trace_region_size": 50_000_000, **options})
        meshes.append(mesh)
        return mesh

    yield open_one
    for mesh in meshes:
        ttnn_twin.close_mesh_device(mesh)


@pytest.fixture
def mesh(open_mesh: Callable[..., Any]) -> Any:
    """One open 1x1 mesh."""
    return open_mesh()


@pytest.fixture
def model(mesh: Any) -> EchoModel:
    """The echo model on the mesh, with log-probabilities."""
    model = EchoModel(mesh)
    model.sampling.config.supports_log_probs = True
    return model


@pytest.fixture
def lane(model: EchoModel) -> EchoLane:
    """A lane over the echo model with the acceptance matrix's defaults."""
    return EchoLane(model)
