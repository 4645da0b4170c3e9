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
        return f"MeshEvent({self.device}, position {self.position})"


def record_event(mesh_device: MeshDevice, cq_id: int | None = None) -> MeshEvent:
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
    _wait("event_synchronize", mesh_event.device, mesh_event.position, None)


def synchronize_device(device: MeshDevice, cq_id: int | None = None) -> None:
    """Wait until everything enqueued on a mesh is complete. Its submeshes have queues of their own.

    Raises:
        RuntimeError: a capture is open.
    """
    _wait("synchronize_device", device, None, cq_id)


def _wait(op: str, mesh: MeshDevice, position: int | None, cq_id: int | None) -> None:
    mesh.faults.wait_out()  # without the lock: a device that hangs keeps nobody from other calls
    with mesh.lock:
        mesh.enter(op, cq_id)
        mesh.refuse_capture(op)
        mesh.counters.syncs += 1
        mesh.queue.wait(mesh.queue.issued if position is None else position)
