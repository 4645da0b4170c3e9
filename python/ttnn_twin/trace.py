# SPDX-License-Identifier: Apache-2.0
"""Trace capture and replay: ops are recorded with their buffers once and run again without the model's Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .trace_region import MeshTraceId

if TYPE_CHECKING:
    from .mesh import MeshDevice
    from .tensor import Tensor


def begin_trace_capture(mesh_device: MeshDevice, *, cq_id: int | None = None) -> MeshTraceId:
    """Start recording the ops of ``mesh_device`` and return the id of the trace. Nothing executes meanwhile.

    Until the end of the capture, reading to the host, uploading, synchronising, recording events, replaying and
    compiling programs are errors. Follows chapter 30, section 3.8.

    Raises:
        RuntimeError: a capture is open already.
    """
    with mesh_device.lock:
        mesh_device.enter("begin_trace_capture", cq_id)
        mesh_device.refuse_capture("begin_trace_capture")
        return mesh_device.traces.begin()


def end_trace_capture(mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None) -> None:
    """Stop recording and place the trace into the trace region. Outputs hold garbage until the first replay.

    Raises:
        RuntimeError: no capture or another one is open; or the region is too small: recording has stopped then,
            and the id can only be released.
    """
    with mesh_device.lock:
        mesh_device.enter("end_trace_capture", cq_id)
        mesh_device.traces.end(trace_id)
        mesh_device.counters.captures += 1
        mesh_device.memory.set_traces_live(True)


def execute_trace(
    mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None, blocking: bool = True
) -> None:
    """Run the recorded ops again, into the buffers of the capture.

    Raises:
        RuntimeError: the id is unknown, released, or not a finished capture; a capture is open; a buffer the trace
            uses was freed; or, with ``strict_allocations``, a device tensor that was allocated while a trace was
            live is still allocated. Nothing has run then.
    """
    with mesh_device.lock:
        mesh_device.enter("execute_trace", cq_id)
        mesh_device.refuse_capture("execute_trace")
        trace = mesh_device.traces.ready(trace_id)
        suspects = mesh_device.memory.suspects()
        if suspects:
            raise RuntimeError(
                f"execute_trace: {trace_id} may overwrite tensors that were allocated while a trace was live and "
                f"are still allocated: {', '.join(buffer.name for buffer in suspects)}; free them before the replay, "
                f"allocate them before the first capture, or acknowledge_corruptible() them"
            )
        mesh_device.counters.replays += 1
        position = mesh_device.queue.submit(trace.run)
        if blocking:
            mesh_device.counters.syncs += 1
            mesh_device.queue.wait(position)


def release_trace(mesh_device: MeshDevice, trace_id: MeshTraceId) -> None:
    """Forget a trace and give its bytes back. Replays that are already enqueued still run.

    Raises:
        RuntimeError: the id is unknown or was released, or is still being captured.
    """
    with mesh_device.lock:
        mesh_device.enter("release_trace")
        mesh_device.traces.release(trace_id)
        mesh_device.memory.set_traces_live(mesh_device.traces.any_captured())


def acknowledge_corruptible(tensor: Tensor) -> None:
    """Say that ``tensor`` may outlive a replay although it was allocated while a trace was live.

    On hardware a replay may overwrite such a tensor: say this only for tensors that are written again before they
    are read, like the outputs of a trace.
    """
    mesh, buffer = tensor._mesh, tensor._buffer
    if mesh is not None and buffer is not None:
        with mesh.lock:
            mesh.memory.acknowledge(buffer)
