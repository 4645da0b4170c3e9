# SPDX-License-Identifier: Apache-2.0
"""Lanes to warm: built over the mesh of the test and closed after it."""

from __future__ import annotations

import pytest

from support.warm_lane import WarmLane


@pytest.fixture
def new_lane(mesh):
    lanes = []

    def make(**options):
        lanes.append(WarmLane(mesh, **options))
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.close()
