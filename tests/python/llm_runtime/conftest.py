# SPDX-License-Identifier: Apache-2.0
"""Meshes and device tensors of the twin for tests of the runtime's shared modules."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin


@pytest.fixture
def mesh():
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=1 << 24)
    yield mesh
    ttnn_twin.close_mesh_device(mesh)


@pytest.fixture
def deferred_mesh():
    """A mesh whose work runs only when somebody waits for it."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=1 << 24, execution="deferred")
    yield mesh
    ttnn_twin.close_mesh_device(mesh)


@pytest.fixture
def device_tensor(request):
    """Makes float32 tile-free device tensors, on the immediate mesh unless told otherwise."""

    def make(values=None, *, on=None):
        target = request.getfixturevalue("mesh") if on is None else on
        array = np.zeros((2, 2), np.float32) if values is None else values
        return ttnn_twin.to_device(ttnn_twin.Tensor(array, ttnn_twin.float32), device=target)

    return make
