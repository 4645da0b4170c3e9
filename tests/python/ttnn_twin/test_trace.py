# SPDX-License-Identifier: Apache-2.0
"""Capture and replay: values, errors, bytes, and memory a replay could overwrite."""

from __future__ import annotations

import gc
import re

import numpy as np
import pytest

import ttnn_twin as ttnn
from ttnn_twin.tools.trace_allocation_tracker import corruptible_allocation_scope
from ttnn_twin.trace_region import BUFFER_BYTES, OP_BYTES, TRACE_BYTES


@pytest.fixture
def captured(mesh, host, plain):
    """Capture ``out = source + source`` and return mesh, trace id, source and output."""
    source = ttnn.to_device(host([1.0, 2.0]), mesh)
    plain.add(source, source).deallocate()
    trace = ttnn.begin_trace_capture(mesh)
    out = plain.add(source, source)
    ttnn.end_trace_capture(mesh, trace)
    return mesh, trace, source, out


def test_output_is_garbage_until_the_first_replay(captured):
    mesh, trace, _, out = captured
    assert np.isnan(out.cpu().to_numpy()).all()
    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
    assert out.cpu().to_numpy().tolist() == [2.0, 4.0]


def test_replay_reads_refreshed_inputs_into_the_same_buffer(captured, host):
    mesh, trace, source, out = captured
    identity = out.buffer_id
    for value in (3.0, 5.0):
        ttnn.copy_host_to_device_tensor(host([value, value]), source)
        ttnn.execute_trace(mesh, trace, blocking=False)
        assert out.cpu().to_numpy().tolist() == [2 * value] * 2
    assert out.buffer_id == identity
    assert mesh.counters.replays == 2
    assert mesh.counters.captures == 1


def test_replay_calls_no_op_and_compiles_nothing(captured):
    mesh, trace, _, _ = captured
    calls, programs = mesh.counters.calls["add"], mesh.num_program_cache_entries()
    ttnn.execute_trace(mesh, trace)
    assert mesh.counters.calls["add"] == calls
    assert mesh.num_program_cache_entries() == programs


def test_capture_executes_nothing_and_replays_accumulate(mesh, host, plain):
    total, one = ttnn.to_device(host([0.0]), mesh), ttnn.to_device(host([1.0]), mesh)
    plain.add_into(one, total)
    trace = ttnn.begin_trace_capture(mesh)
    plain.add_into(one, total)
    ttnn.end_trace_capture(mesh, trace)
    assert total.cpu().to_numpy()[0] == 1.0
    for _ in range(3):
        ttnn.execute_trace(mesh, trace, blocking=False)
    assert total.cpu().to_numpy()[0] == 4.0


def test_intermediates_freed_inside_the_capture_still_serve(mesh, host, plain):
    source = ttnn.to_device(host([1.0]), mesh)
    plain.add(source, source)
    trace = ttnn.begin_trace_capture(mesh)
    middle = plain.add(source, source)
    out = plain.add(middle, middle)
    ttnn.deallocate(middle)
    ttnn.end_trace_capture(mesh, trace)
    ttnn.execute_trace(mesh, trace)
    assert out.cpu().to_numpy()[0] == 4.0
    assert [item.buffer_id for item in mesh.live_tensors()] == [source.buffer_id, out.buffer_id]


def test_two_traces_over_one_state(mesh, host, plain):
    state = ttnn.to_device(host([1.0]), mesh)
    plain.add_into(state, state)
    one = ttnn.to_device(host([1.0]), mesh)
    traces = []
    for operand in (state, one):
        trace = ttnn.begin_trace_capture(mesh)
        plain.add_into(operand, state)
        ttnn.end_trace_capture(mesh, trace)
        traces.append(trace)
    for trace in (traces[1], traces[0], traces[1]):
        ttnn.execute_trace(mesh, trace, blocking=False)
    assert state.cpu().to_numpy()[0] == 7.0


@pytest.mark.parametrize(
    "op",
    [
        "cpu",
        "from_device",
        "to_device",
        "zeros",
        "copy_host_to_device_tensor",
        "record_event",
        "event_synchronize",
        "synchronize_device",
        "execute_trace",
        "begin_trace_capture",
    ],
)
def test_what_a_capture_refuses(captured, host, op):
    mesh, earlier, source, _ = captured
    event = ttnn.record_event(mesh)
    calls = {
        "cpu": lambda: source.cpu(blocking=False),
        "from_device": lambda: ttnn.from_device(source),
        "to_device": lambda: ttnn.to_device(host([1.0]), mesh),
        "zeros": lambda: ttnn.zeros((1,), device=mesh),
        "copy_host_to_device_tensor": lambda: ttnn.copy_host_to_device_tensor(host([1.0, 1.0]), source),
        "record_event": lambda: ttnn.record_event(mesh, 0),
        "event_synchronize": lambda: ttnn.event_synchronize(event),
        "synchronize_device": lambda: ttnn.synchronize_device(mesh),
        "execute_trace": lambda: ttnn.execute_trace(mesh, earlier),
        "begin_trace_capture": lambda: ttnn.begin_trace_capture(mesh),
    }
    trace = ttnn.begin_trace_capture(mesh)
    with pytest.raises(RuntimeError, match=f"^{op}: not possible while {trace} is being captured"):
        calls[op]()
    ttnn.end_trace_capture(mesh, trace)
    calls[op]()


def test_a_capture_cannot_compile(mesh, host, plain):
    source = ttnn.to_device(host([1.0]), mesh)
    trace = ttnn.begin_trace_capture(mesh)
    with pytest.raises(RuntimeError, match=r"add: no program is compiled .* run the same op once before"):
        plain.add(source, source)
    ttnn.end_trace_capture(mesh, trace)
    assert mesh.num_program_cache_entries() == 0
    assert mesh.trace_bytes(trace) == TRACE_BYTES


def test_ids_are_checked(captured):
    mesh, trace, _, _ = captured
    with pytest.raises(RuntimeError, match=f"end_trace_capture: {trace}: no capture is open"):
        ttnn.end_trace_capture(mesh, trace)
    open_trace = ttnn.begin_trace_capture(mesh)
    with pytest.raises(RuntimeError, match=f"end_trace_capture: {trace}: {open_trace} is being captured"):
        ttnn.end_trace_capture(mesh, trace)
    with pytest.raises(RuntimeError, match=f"release_trace: {open_trace} is being captured"):
        ttnn.release_trace(mesh, open_trace)
    ttnn.end_trace_capture(mesh, open_trace)
    ttnn.release_trace(mesh, trace)
    for call in (ttnn.execute_trace, ttnn.release_trace):
        with pytest.raises(RuntimeError, match=f"{call.__name__}: {trace} is unknown to this mesh or was released"):
            call(mesh, trace)
    with pytest.raises(RuntimeError, match="execute_trace: 0 is unknown"):
        ttnn.execute_trace(mesh, 0)


def test_trace_of_another_mesh_is_unknown(captured, open_mesh):
    _, trace, _, _ = captured
    with pytest.raises(RuntimeError, match="unknown to this mesh"):
        ttnn.execute_trace(open_mesh(), trace)


def test_enqueued_replay_survives_release(captured):
    mesh, trace, _, out = captured
    ttnn.execute_trace(mesh, trace, blocking=False)
    ttnn.release_trace(mesh, trace)
    assert out.cpu().to_numpy().tolist() == [2.0, 4.0]


def test_bytes_are_accounted_and_given_back(captured):
    mesh, trace, _, _ = captured
    size = TRACE_BYTES + OP_BYTES + 3 * BUFFER_BYTES
    assert mesh.trace_bytes(trace) == mesh.trace_region_used == size
    ttnn.release_trace(mesh, trace)
    assert mesh.trace_region_used == 0
    with pytest.raises(RuntimeError, match="trace_bytes"):
        mesh.trace_bytes(trace)


def test_too_small_region_says_what_is_needed(open_mesh, host, plain):
    size = TRACE_BYTES + OP_BYTES + 3 * BUFFER_BYTES
    mesh = open_mesh(trace_region_size=2 * size - 1)
    source = ttnn.to_device(host([1.0]), mesh)
    plain.add(source, source)
    traces = []
    for expected in (
        None,
        f"asks for {size} bytes .* {size} of {2 * size - 1} bytes .* trace_region_size={2 * size} or",
    ):
        traces.append(ttnn.begin_trace_capture(mesh))
        plain.add(source, source).deallocate()
        if expected is None:
            ttnn.end_trace_capture(mesh, traces[-1])
        else:
            with pytest.raises(RuntimeError, match=expected):
                ttnn.end_trace_capture(mesh, traces[-1])
    ttnn.synchronize_device(mesh)
    assert mesh.counters.captures == 1
    assert mesh.trace_region_used == size
    with pytest.raises(RuntimeError, match="did not fit the trace region; it can only be released"):
        ttnn.execute_trace(mesh, traces[1])
    ttnn.release_trace(mesh, traces[1])
    ttnn.execute_trace(mesh, traces[0])
    ttnn.release_trace(mesh, traces[0])
    again = ttnn.begin_trace_capture(mesh)
    plain.add(source, source).deallocate()
    ttnn.end_trace_capture(mesh, again)
    ttnn.execute_trace(mesh, again)


def test_allocation_after_a_capture_must_not_outlive_a_replay(captured, host):
    mesh, trace, _, out = captured
    kept = ttnn.to_device(host([1.0]), mesh)
    other = ttnn.zeros((1,), device=mesh)
    ttnn.copy_host_to_device_tensor(host([9.0, 9.0]), captured[2])
    with pytest.raises(RuntimeError, match=re.escape(f"{kept.name}, {other.name}; free them")):
        ttnn.execute_trace(mesh, trace)
    assert mesh.counters.replays == 0
    ttnn.deallocate(kept)
    ttnn.acknowledge_corruptible(other)
    ttnn.execute_trace(mesh, trace)
    assert out.cpu().to_numpy().tolist() == [18.0, 18.0]


def test_dropped_allocation_and_pending_read_do_not_count(captured, host):
    mesh, trace, _, _ = captured
    transient = ttnn.to_device(host([5.0]), mesh)
    pending = transient.cpu(blocking=False)
    ttnn.deallocate(transient)
    dropped = ttnn.to_device(host([1.0]), mesh)
    del dropped
    gc.collect()
    ttnn.execute_trace(mesh, trace)
    assert pending.to_numpy().tolist() == [5.0]


def test_output_of_a_later_capture_must_be_acknowledged(captured, plain):
    mesh, first, source, _ = captured
    second = ttnn.begin_trace_capture(mesh)
    out = plain.add(source, source)
    ttnn.end_trace_capture(mesh, second)
    with pytest.raises(RuntimeError, match=f"tensor #{out.buffer_id} "):
        ttnn.execute_trace(mesh, first)
    ttnn.tools.trace_allocation_tracker.acknowledge_corruptible(out)
    ttnn.execute_trace(mesh, first)
    ttnn.execute_trace(mesh, second)
    assert out.cpu().to_numpy().tolist() == [2.0, 4.0]


def test_strictness_can_be_scoped_and_switched_off(captured, host):
    mesh, trace, _, _ = captured
    with corruptible_allocation_scope(mesh):
        scoped = ttnn.to_device(host([1.0]), mesh)
    ttnn.execute_trace(mesh, trace)
    kept = ttnn.to_device(host([1.0]), mesh)
    mesh.strict_allocations = False
    ttnn.execute_trace(mesh, trace)
    mesh.strict_allocations = True
    with pytest.raises(RuntimeError, match=f"tensor #{kept.buffer_id} "):
        ttnn.execute_trace(mesh, trace)
    assert scoped.is_allocated()


def test_nothing_is_in_danger_once_all_traces_are_released(captured, host, plain):
    mesh, trace, source, _ = captured
    kept = ttnn.to_device(host([1.0]), mesh)
    ttnn.release_trace(mesh, trace)
    again = ttnn.begin_trace_capture(mesh)
    out = plain.add(source, source)
    ttnn.end_trace_capture(mesh, again)
    ttnn.execute_trace(mesh, again)
    assert out.cpu().to_numpy().tolist() == [2.0, 4.0]
    assert kept.is_allocated()


@pytest.mark.parametrize("how", ["deallocate", "garbage collection"])
def test_trace_over_freed_input_is_refused(mesh, host, plain, how):
    source = ttnn.to_device(host([1.0]), mesh)
    name = source.name
    plain.add(source, source)
    trace = ttnn.begin_trace_capture(mesh)
    out = plain.add(source, source)
    ttnn.end_trace_capture(mesh, trace)
    if how == "deallocate":
        ttnn.deallocate(source)
    del source
    gc.collect()
    with pytest.raises(
        RuntimeError, match=re.escape(f"execute_trace: {trace} uses memory that was freed: {name}")
    ) as error:
        ttnn.execute_trace(mesh, trace)
    assert str(error.value).count(name) == 1
    ttnn.release_trace(mesh, trace)
    ttnn.deallocate(out)


def test_freed_output_does_not_stop_the_trace(captured):
    mesh, trace, _, out = captured
    ttnn.deallocate(out)
    ttnn.execute_trace(mesh, trace)


def test_close_with_an_open_capture(open_mesh, host, plain):
    mesh = open_mesh()
    ttnn.begin_trace_capture(mesh)
    ttnn.close_mesh_device(mesh)
    assert mesh.live_tensors() == []


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
def test_replay_rounds_like_eager(open_mesh, host, plain, execution):
    mesh = open_mesh(execution=execution, precision="bfloat16")
    source = ttnn.to_device(host([1.0], ttnn.bfloat16), mesh)
    eager = plain.divide(source, 3.0)
    trace = ttnn.begin_trace_capture(mesh)
    out = plain.divide(source, 3.0)
    ttnn.end_trace_capture(mesh, trace)
    ttnn.execute_trace(mesh, trace)
    assert out.cpu().to_numpy()[0] == eager.cpu().to_numpy()[0] == 0.333984375


def test_captures_reuse_the_memory_that_they_free(open_mesh, host):
    mesh = open_mesh(trace_region_size=1 << 20, strict_allocations=False)
    source = ttnn.to_device(host([1.0, 2.0]), mesh)
    ttnn.deallocate(ttnn.add(source, source))  # compiled before the captures

    def captured():
        trace = ttnn.begin_trace_capture(mesh, cq_id=0)
        tensor = source
        for _ in range(4):
            previous, tensor = tensor, ttnn.add(tensor, tensor)
            if previous is not source:
                ttnn.deallocate(previous)
        ttnn.end_trace_capture(mesh, trace, cq_id=0)
        return trace, tensor

    (first, first_output), (second, second_output) = captured(), captured()
    arrays = [step.args[0][0] for trace in (first, second) for step in mesh.traces.find("", trace).steps]
    # Two live at a time inside a trace; the second trace only needs one more for its own output.
    assert len({array.__array_interface__["data"][0] for array in arrays}) == 3
    for trace, output in ((first, first_output), (second, second_output)):
        ttnn.execute_trace(mesh, trace, cq_id=0)
        assert output.cpu().to_numpy().tolist() == [16.0, 32.0]
