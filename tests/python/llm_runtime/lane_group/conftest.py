# SPDX-License-Identifier: Apache-2.0
"""Recording lanes with their group, and groups of real lanes that several tests share."""

from __future__ import annotations

import pytest

from llm_runtime.lane_group import LaneGroupExecutor
from support.lanes_model import OneLane, TwinLanes
from support.recording_lanes import RecordingLane


@pytest.fixture
def recording():
    """Makes a group over `count` recording lanes; returns the group, the lanes and their common log."""
    groups = []

    def make(count=2, *, mesh_device=None, **options):
        log = []
        lanes = [RecordingLane(index, log, **options) for index in range(count)]
        group = LaneGroupExecutor(lanes, mesh_device=mesh_device)
        groups.append(group)
        return group, lanes, log

    yield make
    for group in groups:
        group._reads.shutdown()


@pytest.fixture
def twin_lanes():
    """Makes groups of real lanes for one test; they are closed with a check that nothing is left on the device."""
    made = []

    def make(count=2, capacity=2, **options):
        lanes = TwinLanes(count, capacity, **options)
        made.append(lanes)
        return lanes

    yield make
    for lanes in made:
        lanes.close()


@pytest.fixture(scope="session")
def one_lane():
    """The reference: one eager lane of four rows."""
    lane = OneLane(4)
    yield lane
    lane.close()


@pytest.fixture(scope="session")
def eager_lanes():
    """Two eager lanes of two rows, shared: refused calls must leave them usable."""
    lanes = TwinLanes(2, 2)
    yield lanes
    lanes.close()


@pytest.fixture(scope="session")
def traced_lanes():
    """Two lanes of two rows, prefill and decode traced, warmed; shared like `eager_lanes`."""
    lanes = TwinLanes(2, 2, trace_mode="all")
    lanes.warm_up()
    yield lanes
    lanes.close()
