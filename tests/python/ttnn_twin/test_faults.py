# SPDX-License-Identifier: Apache-2.0
"""Injected faults: which call fails, and that it has no effect."""

from __future__ import annotations

import pytest

import ttnn_twin as ttnn


def test_the_named_call_fails_once_without_effect(mesh, host):
    device = ttnn.to_device(host([0.0]), mesh)
    error = OSError("link down")
    mesh.faults.fail("copy_host_to_device_tensor", at=3, error=error)
    for value in (1.0, 2.0):
        ttnn.copy_host_to_device_tensor(host([value]), device)
    with pytest.raises(OSError, match="link down") as caught:
        ttnn.copy_host_to_device_tensor(host([3.0]), device)
    assert caught.value is error
    assert device.cpu().to_numpy().tolist() == [2.0]
    ttnn.copy_host_to_device_tensor(host([4.0]), device)
    assert device.cpu().to_numpy().tolist() == [4.0]
    assert mesh.counters.calls["copy_host_to_device_tensor"] == 4


@pytest.mark.parametrize(("at", "times", "failing"), [(1, 1, {1}), (2, 2, {2, 3}), (2, None, {2, 3, 4, 5})])
def test_which_calls_fail(mesh, at, times, failing):
    mesh.faults.fail("record_event", at=at, times=times)
    seen = set()
    for call in range(1, 6):
        try:
            ttnn.record_event(mesh)
        except RuntimeError as error:
            assert str(error) == "injected fault: record_event"
            seen.add(call)
    assert seen == failing


def test_calls_are_counted_from_the_rule(mesh):
    ttnn.record_event(mesh)
    ttnn.record_event(mesh)
    mesh.faults.fail("record_event", at=2)
    ttnn.record_event(mesh)
    with pytest.raises(RuntimeError, match="injected"):
        ttnn.record_event(mesh)


def test_two_rules_of_one_function_and_clear(mesh):
    mesh.faults.fail("record_event", at=1, error=OSError("first"))
    mesh.faults.fail("record_event", at=2, error=OSError("second"))
    for message in ("first", "second"):
        with pytest.raises(OSError, match=message):
            ttnn.record_event(mesh)
    ttnn.record_event(mesh)
    mesh.faults.fail("record_event", times=None)
    mesh.faults.clear()
    ttnn.record_event(mesh)


def test_failing_op_and_upload_allocate_nothing(mesh, host, plain):
    tensor = ttnn.to_device(host([1.0]), mesh)
    before = mesh.live_tensors()
    mesh.faults.fail("add")
    mesh.faults.fail("to_device")
    mesh.faults.fail("zeros")
    for call in (
        lambda: plain.add(tensor, tensor),
        lambda: ttnn.to_device(host([1.0]), mesh),
        lambda: ttnn.zeros((1,), device=mesh),
    ):
        with pytest.raises(RuntimeError, match="injected fault"):
            call()
    assert mesh.live_tensors() == before
    assert mesh.num_program_cache_entries() == 0


def test_failing_free_leaves_the_tensor(mesh, host):
    tensor = ttnn.to_device(host([1.0]), mesh)
    mesh.faults.fail("deallocate")
    with pytest.raises(RuntimeError, match="injected"):
        ttnn.deallocate(tensor)
    assert tensor.is_allocated()
    ttnn.deallocate(tensor)
    assert not tensor.is_allocated()


def test_failing_read_and_waits(mesh, host):
    tensor = ttnn.to_device(host([1.0]), mesh)
    pending = tensor.cpu(blocking=False)
    event = ttnn.record_event(mesh)
    for op, call in {
        "cpu": lambda: tensor.cpu(),
        "from_device": lambda: ttnn.from_device(tensor),
        "event_synchronize": lambda: ttnn.event_synchronize(event),
        "synchronize_device": lambda: ttnn.synchronize_device(mesh),
    }.items():
        mesh.faults.fail(op)
        with pytest.raises(RuntimeError, match=f"injected fault: {op}"):
            call()
        with pytest.raises(RuntimeError, match="not complete"):
            pending.to_numpy()
    ttnn.event_synchronize(event)
    assert pending.to_numpy().tolist() == [1.0]


def test_failing_trace_calls(mesh, host, plain):
    tensor = ttnn.to_device(host([1.0]), mesh)
    plain.add_into(tensor, tensor)
    mesh.faults.fail("begin_trace_capture")
    with pytest.raises(RuntimeError, match="injected"):
        ttnn.begin_trace_capture(mesh)
    trace = ttnn.begin_trace_capture(mesh)
    plain.add_into(tensor, tensor)
    mesh.faults.fail("end_trace_capture")
    with pytest.raises(RuntimeError, match="injected"):
        ttnn.end_trace_capture(mesh, trace)
    with pytest.raises(RuntimeError, match="not possible while"):
        ttnn.synchronize_device(mesh)
    ttnn.end_trace_capture(mesh, trace)
    mesh.faults.fail("execute_trace")
    with pytest.raises(RuntimeError, match="injected"):
        ttnn.execute_trace(mesh, trace)
    assert tensor.cpu().to_numpy().tolist() == [2.0]
    ttnn.execute_trace(mesh, trace)
    assert tensor.cpu().to_numpy().tolist() == [4.0]
    mesh.faults.fail("release_trace")
    with pytest.raises(RuntimeError, match="injected"):
        ttnn.release_trace(mesh, trace)
    ttnn.release_trace(mesh, trace)


def test_failing_close_leaves_the_mesh_open(open_mesh, host):
    mesh = open_mesh()
    mesh.faults.fail("close_mesh_device")
    with pytest.raises(RuntimeError, match="injected"):
        ttnn.close_mesh_device(mesh)
    assert not mesh.closed
    ttnn.close_mesh_device(mesh)
    assert mesh.closed


@pytest.mark.parametrize("rule", [{"at": 0}, {"times": 0}])
def test_bad_rules_are_refused(mesh, rule):
    with pytest.raises(ValueError, match="must be 1 or more"):
        mesh.faults.fail("add", **rule)
    ttnn.record_event(mesh)
