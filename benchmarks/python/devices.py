# SPDX-License-Identifier: Apache-2.0
"""Opens the mesh to measure on: nothing at all, the CPU twin, or real ttnn on its mock device."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

TRACE_REGION_BYTES = 64 << 20
DEVICES = ("null", "twin", "ttnn")


@contextlib.contextmanager
def open_mesh(device: str) -> Iterator[Any]:
    """A mesh of one device. `RuntimeError` for ttnn without its mock: this must never open real hardware."""
    if device == "null":
        import null_device

        yield null_device.open_mesh_device()
        return
    if device == "twin":
        import ttnn_twin as namespace
    else:
        if not os.environ.get("TT_METAL_MOCK_CLUSTER_DESC_PATH"):
            raise RuntimeError("--device ttnn measures on the mock only: run it through scripts/ttnn-mock")
        import ttnn as namespace

        _replace_trace_calls(namespace)
    mesh = namespace.open_mesh_device(namespace.MeshShape(1, 1), trace_region_size=TRACE_REGION_BYTES)
    try:
        yield mesh
    finally:
        namespace.close_mesh_device(mesh)


def _replace_trace_calls(namespace: Any) -> None:
    """The mock has no kernel binaries to record: a capture runs its body once, a replay does nothing."""
    ids = itertools.count(1)
    namespace.begin_trace_capture = lambda mesh, cq_id=0: next(ids)
    namespace.end_trace_capture = lambda mesh, trace, cq_id=0: None
    namespace.execute_trace = lambda mesh, trace, cq_id=0, blocking=True: None
    namespace.release_trace = lambda mesh, trace: None
