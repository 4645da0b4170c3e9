# SPDX-License-Identifier: Apache-2.0
"""Immediate and deferred execution: what has run when, and what may be read when."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ttnn_twin as ttnn
from ttnn_twin.dispatch import dispatch


def test_deferred_work_runs_when_somebody_waits(open_mesh, host):
    mesh = open_mesh(execution="deferred")
    ran = []
    tensor = ttnn.to_device(host([0.0]), mesh)
    dispatch("note", reads=(tensor,), kernel=lambda *_: ran.append(1))
    event = ttnn.record_event(mesh, 0)
    dispatch("note", reads=(tensor,), kernel=lambda *_: ran.append(2))
    assert ran == []
    ttnn.event_synchronize(event)
    assert ran == [1]
    tensor.cpu()
    assert ran == [1, 2]


def test_immediate_work_runs_at_once(open_mesh, host):
    mesh = open_mesh()
    ran = []
    dispatch("note", reads=(ttnn.to_device(host([0.0]), mesh),), kernel=lambda *_: ran.append(1))
    assert ran == [1]


def test_host_buffer_changed_too_early_shows_in_deferred_execution(open_mesh):
    staging = np.array([1.0, 2.0], np.float32)
    mesh = open_mesh(execution="deferred")
    device = ttnn.zeros((2,), dtype=ttnn.float32, device=mesh)
    ttnn.copy_host_to_device_tensor(ttnn.Tensor(staging), device)
    staging[0] = 9.0
    assert device.cpu().to_numpy().tolist() == [9.0, 2.0]
    staging[0] = 5.0
    assert device.cpu().to_numpy().tolist() == [9.0, 2.0]


def test_new_device_tensor_also_reads_the_host_late(open_mesh):
    staging = np.array([1.0], np.float32)
    mesh = open_mesh(execution="deferred")
    device = ttnn.to_device(ttnn.Tensor(staging), mesh)
    staging[0] = 9.0
    assert device.cpu().to_numpy().tolist() == [9.0]


def test_asynchronous_read_is_readable_after_its_event(mesh, host, plain):
    tensor = ttnn.to_device(host([1.0]), mesh)
    early = ttnn.record_event(mesh)
    pending = tensor.cpu(blocking=False)
    event = ttnn.record_event(mesh)
    for use in (pending.to_numpy, lambda: ttnn.to_device(pending, mesh), lambda: ttnn.get_device_tensors(pending)):
        with pytest.raises(RuntimeError, match=r"host tensor \(float32 \[1\]\) is the destination of an asynchronous"):
            use()
    ttnn.event_synchronize(early)
    with pytest.raises(RuntimeError, match="not complete"):
        pending.to_numpy()
    plain.add_into(tensor, tensor)
    ttnn.event_synchronize(event)
    ttnn.event_synchronize(event)
    assert pending.to_numpy().tolist() == [1.0]
    assert tensor.cpu().to_numpy().tolist() == [2.0]


@pytest.mark.parametrize("wait", ["synchronize_device", "blocking read", "later event"])
def test_every_wait_completes_earlier_reads(mesh, host, wait):
    tensor = ttnn.to_device(host([1.0]), mesh)
    pending = ttnn.from_device(tensor, blocking=False)
    if wait == "synchronize_device":
        ttnn.synchronize_device(mesh)
    elif wait == "blocking read":
        tensor.cpu()
    else:
        ttnn.event_synchronize(ttnn.record_event(mesh))
    assert pending.to_numpy().tolist() == [1.0]


def test_order_of_enqueueing_is_the_order_of_execution(mesh, host, plain):
    tensor = ttnn.to_device(host([1.0]), mesh)
    reads = []
    for _ in range(4):
        plain.add_into(tensor, tensor)
        reads.append(tensor.cpu(blocking=False))
    ttnn.copy_host_to_device_tensor(host([100.0]), tensor)
    ttnn.synchronize_device(mesh)
    assert [read.to_numpy()[0] for read in reads] == [2.0, 4.0, 8.0, 16.0]
    assert tensor.cpu().to_numpy()[0] == 100.0


def test_failing_kernel_reaches_the_waiter_and_later_work_still_runs(open_mesh, host, plain):
    mesh = open_mesh(execution="deferred")

    def explode(*_):
        raise ArithmeticError("kernel")

    tensor = ttnn.to_device(host([1.0]), mesh)
    dispatch("explode", reads=(tensor,), kernel=explode)
    doubled = plain.add(tensor, tensor)
    with pytest.raises(ArithmeticError, match="kernel"):
        ttnn.synchronize_device(mesh)
    assert doubled.cpu().to_numpy().tolist() == [2.0]


def test_another_thread_may_wait_and_read(mesh, host, plain):
    tensor = ttnn.to_device(host([0.0]), mesh)
    one = ttnn.to_device(host([1.0]), mesh)
    waiting, results, failures = [], [], []
    ready = threading.Semaphore(0)

    def reader():
        for step in range(200):
            ready.acquire()
            pending, event = waiting[step]
            try:
                ttnn.event_synchronize(event)
                results.append(float(pending.to_numpy()[0]))
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    for _ in range(200):
        plain.add_into(one, tensor)
        waiting.append((tensor.cpu(blocking=False), ttnn.record_event(mesh)))
        ready.release()
    thread.join()
    assert failures == []
    assert results == [float(step) for step in range(1, 201)]


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
def test_busy_time_counts_device_work_and_nothing_else(open_mesh, host, monkeypatch, execution):
    clock = [0.0]
    monkeypatch.setattr("ttnn_twin.queue.perf_counter", lambda: clock[0])

    def advance(seconds):
        clock[0] += seconds

    mesh = open_mesh(execution=execution)
    tensor = ttnn.to_device(host([0.0]), mesh)
    dispatch("work", reads=(tensor,), kernel=lambda *_: advance(3.0))
    advance(10.0)
    ttnn.synchronize_device(mesh)
    assert mesh.busy_seconds == 3.0
