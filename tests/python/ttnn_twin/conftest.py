# SPDX-License-Identifier: Apache-2.0
"""Meshes of both executions, and two ops that need nothing but the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ttnn_twin as ttnn
from ttnn_twin.dispatch import dispatch


@pytest.fixture
def open_mesh() -> Iterator[Callable[..., ttnn.MeshDevice]]:
    """Open meshes that are closed after the test."""
    meshes: list[ttnn.MeshDevice] = []

    def make(rows: int = 1, columns: int = 1, **options: Any) -> ttnn.MeshDevice:
        options.setdefault("trace_region_size", 1 << 20)
        meshes.append(ttnn.open_mesh_device(ttnn.MeshShape(rows, columns), **options))
        return meshes[-1]

    yield make
    for mesh in meshes:
        mesh.faults.clear()
        ttnn.close_mesh_device(mesh)


@pytest.fixture(params=["immediate", "deferred"])
def mesh(request: pytest.FixtureRequest, open_mesh: Callable[..., ttnn.MeshDevice]) -> ttnn.MeshDevice:
    """One device with a trace region, in each execution."""
    return open_mesh(execution=request.param)


@pytest.fixture
def host() -> Callable[..., ttnn.Tensor]:
    """Make a host tensor from numbers."""

    def make(values: Any, dtype: ttnn.DataType = ttnn.float32) -> ttnn.Tensor:
        kind = {ttnn.int32: np.int32, ttnn.uint32: np.uint32}.get(dtype, np.float32)
        return ttnn.Tensor(np.array(values, kind), dtype)

    return make


@pytest.fixture
def plain() -> SimpleNamespace:
    """Three ops: ``add`` makes a tensor, ``add_into`` writes one in place, ``divide`` does not stay in bfloat16."""

    def add(a: ttnn.Tensor, b: ttnn.Tensor) -> ttnn.Tensor:
        def kernel(out: list[np.ndarray], read: list[np.ndarray], _write: list[np.ndarray]) -> None:
            np.add(read[0], read[1], out=out[0])

        return dispatch("add", reads=(a, b), kernel=kernel, outputs=(a.spec,))[0]

    def add_into(a: ttnn.Tensor, target: ttnn.Tensor, *, exact: bool = False) -> None:
        def kernel(_out: list[np.ndarray], read: list[np.ndarray], write: list[np.ndarray]) -> None:
            write[0] += read[0]

        dispatch("add_into", reads=(a,), kernel=kernel, writes=(target,), exact_writes=exact)

    def divide(a: ttnn.Tensor, divisor: float) -> ttnn.Tensor:
        def kernel(out: list[np.ndarray], read: list[np.ndarray], _write: list[np.ndarray]) -> None:
            np.divide(read[0], divisor, out=out[0])

        return dispatch("divide", reads=(a,), kernel=kernel, outputs=(a.spec,), attributes=(divisor,))[0]

    return SimpleNamespace(add=add, add_into=add_into, divide=divide)
