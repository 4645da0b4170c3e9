# SPDX-License-Identifier: Apache-2.0
"""Real ttnn on its mock device: operations are validated and allocated as on a chip, nothing runs, reads give zeros.

`scripts/test-ttnn` makes the environment. Without ttnn, or without the mock, every test here is skipped: these tests
must never open a real device.
"""

from __future__ import annotations

import contextlib
import os
import sys

import pytest

from support.conformance.calls import find
from support.conformance.cases import calls
from support.ttnn_lane import MODELS, random_checkpoint

TRACE_REGION_BYTES = 50_000_000


def pytest_addoption(parser):
    parser.addoption(
        "--write-conformance", action="store_true", help="replace the conformance table of docs/twin.md"
    )


@pytest.fixture(scope="session")
def ttnn():
    """The real module, on the mock."""
    # The extension, because this folder on the path would pass for the package.
    pytest.importorskip("ttnn._ttnn", reason="ttnn is not installed; scripts/test-ttnn makes an environment")
    module = sys.modules["ttnn"]
    if not os.environ.get("TT_METAL_MOCK_CLUSTER_DESC_PATH"):
        pytest.skip("no mock device: run scripts/test-ttnn")
    return module


@pytest.fixture(scope="module")
def mesh(ttnn):
    """One device."""
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), trace_region_size=TRACE_REGION_BYTES)
    yield mesh
    ttnn.close_mesh_device(mesh)


@pytest.fixture(scope="module")
def two_meshes(ttnn):
    """The mesh of one board, and its two devices as meshes of their own."""
    parent = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), trace_region_size=TRACE_REGION_BYTES)
    children = parent.create_submeshes(ttnn.MeshShape(1, 1))
    yield parent, children
    for child in children:
        ttnn.close_mesh_device(child)
    ttnn.close_mesh_device(parent)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Random weights by model name."""
    folder = tmp_path_factory.mktemp("checkpoints")
    made = {}
    for name, config in MODELS.items():
        (folder / name).write_text("random weights need no bytes")
        made[name] = random_checkpoint(config, folder / name)
    return made


@pytest.fixture(scope="session")
def weight_cache(tmp_path_factory):
    """A folder for converted weights: each model is converted once, however many lanes load it."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="session")
def allocated(ttnn):
    """Bytes that are allocated on a mesh, per bank of each memory."""

    def count(mesh):
        kinds = (ttnn.BufferType.DRAM, ttnn.BufferType.L1)
        return [ttnn.get_memory_view(mesh, kind).total_bytes_allocated_per_bank for kind in kinds]

    return count


class EagerTraces:
    """What takes the place of trace calls on the mock, which has no kernel binaries to record.

    A capture runs the body eagerly, into tensors that the caller keeps; a replay does nothing, so that those tensors
    are its outputs. What a capture cannot hold (copies, reads, events, waits) is refused while one is open.
    """

    def __init__(self):
        self.captures = 0
        self.replays = []
        self.open = None
        self.live = set()

    def begin_trace_capture(self, mesh_device, *, cq_id=None):
        assert self.open is None, "a capture is open"
        self.captures += 1
        self.open = self.captures
        return self.captures

    def end_trace_capture(self, mesh_device, trace_id, *, cq_id=None):
        assert self.open == trace_id
        self.open = None
        self.live.add(trace_id)

    def execute_trace(self, mesh_device, trace_id, *, cq_id=None, blocking=True):
        assert self.open is None
        assert trace_id in self.live, f"trace {trace_id} was released or never captured"
        self.replays.append(trace_id)

    def release_trace(self, mesh_device, trace_id):
        self.live.remove(trace_id)

    def guard(self, name, function):
        """`function`, refused inside a capture."""

        def guarded(*args, **kwargs):
            assert self.open is None, f"{name} inside a capture"
            return function(*args, **kwargs)

        return guarded


NOT_IN_A_CAPTURE = (
    "to_device",
    "copy_host_to_device_tensor",
    "record_event",
    "event_synchronize",
    "synchronize_device",
)


@pytest.fixture(scope="module")
def traces(ttnn):
    """Trace calls of `ttnn` that work on the mock, and what they saw."""
    traces = EagerTraces()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in NOT_IN_A_CAPTURE:
            patch.setattr(ttnn, name, traces.guard(name, getattr(ttnn, name)))
        for name in ("begin_trace_capture", "end_trace_capture", "execute_trace", "release_trace"):
            patch.setattr(ttnn, name, getattr(traces, name))
        yield traces


@pytest.fixture(scope="module")
def recorded(ttnn, traces):
    """Keywords by function of every call that the module's tests make of the functions in the conformance table."""
    keywords = {}

    def record(name, function):
        def recording(*args, **kwargs):
            keywords.setdefault(name, set()).update(kwargs)
            return function(*args, **kwargs)

        return recording

    with pytest.MonkeyPatch.context() as patch:
        for name in sorted({call.function for call in calls()}):
            *path, last = name.split(".")
            owner = find(ttnn, ".".join(path)) if path else ttnn
            if not isinstance(owner, type) and not isinstance(getattr(owner, last), type):
                patch.setattr(owner, last, record(name, getattr(owner, last)))
        yield keywords
