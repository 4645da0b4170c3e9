# SPDX-License-Identifier: Apache-2.0
"""Events and device synchronisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mesh import MeshDevice


class MeshEvent:
    """Point in the command queue of a mesh; waiting for it completes everything enqueued before."""

    __slots__ = ("device", "position")

    def __init__(self, device: MeshDevice, position: int) -> None:
        self.device = device
        self.position = position

    def __repr__(self) -> str:
        return f"MeshEvent({self.device}, {self.position})"


def record_event(mesh_device: MeshDevice, cq_id: int = 0) -> MeshEvent:
    """Return an event behind everything enqueued on ``mesh_device`` so far.

    Raises:
        RuntimeError: a capture is open.
    """
    with mesh_device.lock:
        mesh_device.enter("record_event", cq_id)
        mesh_device.refuse_capture("record_event")
        return MeshEvent(mesh_device, mesh_device.queue.issued)


def event_synchronize(mesh_event: MeshEvent) -> None:
    """Wait until everything enqueued before the event is complete. Any thread may wait, any number of times.

    Raises:
        RuntimeError: a capture is open.
    """
    mesh = mesh_event.device
    with mesh.lock:
        mesh.enter("event_synchronize")
        mesh.refuse_capture("event_synchronize")
        mesh.counters.syncs += 1
        mesh.queue.wait(mesh_event.position)


def synchronize_device(mesh_device: MeshDevice, cq_id: int | None = None) -> None:
    """Wait until everything enqueued on ``mesh_device`` is complete (its submeshes have queues of their own).

    Raises:
        RuntimeError: a capture is open.
    """
    with mesh_device.lock:
        mesh_device.enter("synchronize_device", cq_id or 0)
        mesh_device.refuse_capture("synchronize_device")
        mesh_device.counters.syncs += 1
        mesh_device.queue.wait(mesh_device.queue.issued)
