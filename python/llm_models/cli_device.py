# SPDX-License-Identifier: Apache-2.0
"""The device that the command line runs on: the CPU twin, or the first mesh of ttnn."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import ttnn_twin

TRACE_REGION_BYTES = 50_000_000
TWIN_TRACE_REGION_BYTES = 512_000_000
"""Room for 32 rows in every bucket of a small model; on the twin the region is accounting and costs nothing."""


class DeviceChoice(str, Enum):
    """The library whose device answers."""

    TWIN = "twin"
    TTNN = "ttnn"


class Execution(str, Enum):
    """When the twin runs what was enqueued."""

    IMMEDIATE = "immediate"
    DEFERRED = "deferred"


def check_device(device: DeviceChoice, *, execution: Execution, traced: bool) -> None:
    """`ValueError` for a combination that cannot run, before weights are read."""
    if device is DeviceChoice.TWIN:
        return
    if execution is not Execution.IMMEDIATE:
        raise ValueError("--execution is an option of the twin")
    if traced and "TT_METAL_MOCK_CLUSTER_DESC_PATH" in os.environ:
        raise ValueError("ttnn's mock device cannot capture traces: use --trace none")
    if importlib.util.find_spec("ttnn") is None:
        raise ValueError("ttnn is not installed; llm-runtime doctor says what is missing")


@contextmanager
def open_device(device: DeviceChoice, *, execution: Execution) -> Iterator[Any]:
    """A mesh of one device, closed at the end of the block; `ValueError` when ttnn cannot open one."""
    if device is DeviceChoice.TWIN:
        mesh = ttnn_twin.open_mesh_device(
            ttnn_twin.MeshShape(1, 1), trace_region_size=TWIN_TRACE_REGION_BYTES, execution=execution.value
        )
        try:
            yield mesh
        finally:
            ttnn_twin.close_mesh_device(mesh)
        return
    ttnn = importlib.import_module("ttnn")
    try:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), trace_region_size=TRACE_REGION_BYTES)
    except RuntimeError as error:
        raise ValueError("ttnn cannot open a device; llm-runtime doctor says what is missing") from error
    try:
        yield mesh
    finally:
        ttnn.close_mesh_device(mesh)
