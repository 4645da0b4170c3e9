# SPDX-License-Identifier: Apache-2.0
"""Soak tests run only when they are asked for: `pytest tests/soak -m soak`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config, items):
    if "soak" in (config.option.markexpr or ""):
        return
    soaks = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=soaks)
    items[:] = [item for item in items if item not in soaks]


@pytest.fixture
def resident_bytes():
    """Reads the resident memory of this process."""

    def read():
        with open("/proc/self/statm") as file:  # noqa: PTH123 - called often
            return int(file.read().split()[1]) * 4096

    return read
