# SPDX-License-Identifier: Apache-2.0
"""Tracking of allocations made while a trace is live; the twin tracks them always (``strict_allocations``)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ..mesh import MeshDevice
from ..trace import acknowledge_corruptible

__all__ = ["acknowledge_corruptible", "corruptible_allocation_scope"]


def corruptible_allocation_scope(mesh_device: MeshDevice) -> AbstractContextManager[None]:
    """Return a context in which allocations on ``mesh_device`` may outlive a replay: they are all acknowledged."""
    return mesh_device.memory.trust()
