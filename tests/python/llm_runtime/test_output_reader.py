# SPDX-License-Identifier: Apache-2.0
"""Reading outputs: blocking, synchronised, asynchronous, and what happens when a step fails."""

from __future__ import annotations

import threading
import types

import numpy as np
import pytest

import ttnn_twin
from llm_runtime.output_reader import OutputReader


@pytest.fixture
def reader(deferred_mesh):
    return OutputReader(deferred_mesh)


@pytest.fixture
def output(deferred_mesh, device_tensor):
    def make(value):
        return device_tensor(np.full((2, 2), value, np.float32), on=deferred_mesh)

    return make


def values_of(tensor):
    return tensor.to_numpy()[0, 0]


@pytest.mark.covers("OUT-01")
def test_blocking_read_copies_each_value_once(reader, output, deferred_mesh):
    tokens, log_probs = reader.read((output(1), output(2)))
    assert (values_of(tokens), values_of(log_probs)) == (1, 2)
    calls = deferred_mesh.counters.calls
    assert calls["cpu"] == 2
    assert calls["record_event"] == calls["event_synchronize"] == calls["synchronize_device"] == 0


@pytest.mark.covers("OUT-02")
def test_synchronised_read_waits_for_the_device_once(reader, output, deferred_mesh):
    host = reader.read_synchronized([output(1), output(2)])
    assert [values_of(tensor) for tensor in host] == [1, 2]
    calls = deferred_mesh.counters.calls
    assert (calls["cpu"], calls["synchronize_device"], calls["record_event"]) == (2, 1, 0)
    reader.drain()
    assert calls["event_synchronize"] == 0


def test_synchronised_read_of_host_values_never_waits(reader, deferred_mesh):
    values = np.arange(2)
    host = reader.read_synchronized({"a": values, "b": None})
    assert host["a"] is values
    assert host["b"] is None
    assert deferred_mesh.counters.calls["synchronize_device"] == 0


@pytest.mark.covers("OUT-03", "O04")
def test_async_read_waits_for_its_event_once(reader, output, deferred_mesh):
    pending = reader.submit(output(5))
    calls = deferred_mesh.counters.calls
    assert (calls["cpu"], calls["record_event"]) == (1, 1)
    assert len(pending.events) == 1
    with pytest.raises(RuntimeError, match="not complete"):
        pending.value.to_numpy()
    host = reader.complete(pending)
    assert host is pending.value
    assert values_of(host) == 5
    assert reader.complete(pending) is host
    assert calls["event_synchronize"] == 1


def test_non_blocking_read_is_submit(reader, output):
    pending = reader.read(output(5), blocking=False)
    assert values_of(reader.complete(pending)) == 5


@pytest.mark.covers("OUT-04")
def test_complete_by_host_value(reader, output, deferred_mesh):
    pending = reader.submit((output(5), output(6)))
    host = reader.complete(pending.value)
    assert host is pending.value
    assert [values_of(tensor) for tensor in host] == [5, 6]
    assert reader.complete(host) is host
    assert deferred_mesh.counters.calls["event_synchronize"] == 1


def test_an_unknown_value_passes_through(reader, output, deferred_mesh):
    pending = reader.submit([output(5)])
    lookalike = list(pending.value)
    assert reader.complete(lookalike) is lookalike
    assert deferred_mesh.counters.calls["event_synchronize"] == 0
    reader.drain()
    assert deferred_mesh.counters.calls["event_synchronize"] == 1


@pytest.mark.covers("OUT-05")
def test_reads_of_another_reader_are_refused_even_when_complete(reader, output, deferred_mesh):
    other = OutputReader(deferred_mesh)
    pending = other.submit(output(5))
    with pytest.raises(ValueError, match="not owned"):
        reader.complete(pending)
    other.complete(pending)
    with pytest.raises(ValueError, match="not owned"):
        reader.complete(pending)


def test_a_copy_of_a_pending_read_is_refused(reader, output):
    import copy

    pending = reader.submit(output(5))
    with pytest.raises(ValueError, match="not active"):
        reader.complete(copy.copy(pending))
    assert values_of(reader.complete(pending)) == 5


@pytest.mark.covers("OUT-06", "OUT-10")
def test_drain_completes_in_submit_order(reader, output, deferred_mesh, monkeypatch):
    waited = []
    real = ttnn_twin.event_synchronize
    monkeypatch.setattr(ttnn_twin, "event_synchronize", lambda event: (waited.append(event), real(event)))
    first, second = reader.submit(output(1)), reader.submit(output(2))
    assert (first.sequence, second.sequence) == (0, 1)
    reader.drain()
    assert waited == [first.events[0], second.events[0]]
    assert values_of(reader.complete(second)) == 2
    assert values_of(reader.complete(first.value)) == 1
    reader.drain()
    assert len(waited) == 2


@pytest.mark.covers("O05")
def test_the_second_submit_may_be_completed_first(reader, output):
    first, second = reader.submit(output(1)), reader.submit(output(2))
    assert values_of(reader.complete(second)) == 2
    assert values_of(reader.complete(first)) == 1


@pytest.mark.covers("OUT-07")
def test_a_host_payload_is_complete_at_once(reader, deferred_mesh):
    values = np.arange(3)
    pending = reader.submit((values, None))
    assert pending.events == ()
    assert pending.value[0] is values
    assert pending.value[1] is None
    assert reader.complete(pending) is pending.value
    assert reader.submit(None).sequence == 1
    calls = deferred_mesh.counters.calls
    assert calls["record_event"] == calls["event_synchronize"] == calls["synchronize_device"] == 0


@pytest.mark.covers("OUT-08")
def test_containers_keep_their_shape(reader, output):
    host = reader.complete(reader.submit({"outputs": [output(1)], "log_probs": output(2), "none": (None,)}))
    assert list(host) == ["outputs", "log_probs", "none"]
    assert values_of(host["outputs"][0]) == 1
    assert values_of(host["log_probs"]) == 2
    assert host["none"] == (None,)


def test_host_tensors_are_returned_as_they_are(reader):
    tensor = ttnn_twin.Tensor(np.zeros((1, 1), np.float32), ttnn_twin.bfloat16)
    assert reader.read(tensor) is tensor
    assert reader.submit(tensor).events == ()


@pytest.mark.covers("OUT-09")
def test_a_failing_event_synchronises_the_device(reader, output, deferred_mesh):
    deferred_mesh.faults.fail(op="record_event", at=1)
    with pytest.raises(Exception, match="record_event"):
        reader.submit(output(1))
    calls = deferred_mesh.counters.calls
    assert calls["synchronize_device"] == 1
    reader.drain()
    assert calls["event_synchronize"] == 0


def test_a_failing_copy_synchronises_before_earlier_destinations_die(reader, output, deferred_mesh):
    deferred_mesh.faults.fail(op="cpu", at=2)
    with pytest.raises(Exception, match="cpu"):
        reader.submit([output(1), output(2)])
    assert deferred_mesh.counters.calls["synchronize_device"] == 1
    deferred_mesh.faults.fail(op="cpu", at=1)
    with pytest.raises(Exception, match="cpu"):
        reader.read_synchronized(output(1))
    assert deferred_mesh.counters.calls["synchronize_device"] == 2


def test_a_failing_blocking_read_does_not_synchronise(reader, output, deferred_mesh):
    deferred_mesh.faults.fail(op="cpu", at=1)
    with pytest.raises(Exception, match="cpu"):
        reader.read(output(1))
    assert deferred_mesh.counters.calls["synchronize_device"] == 0


def test_a_failing_synchronise_is_attached_to_the_first_error(reader, output, deferred_mesh):
    deferred_mesh.faults.fail(op="record_event", at=1)
    deferred_mesh.faults.fail(op="synchronize_device", at=1)
    with pytest.raises(Exception, match="record_event") as raised:
        reader.submit(output(1))
    assert len(raised.value.cleanup_failures) == 1


def test_a_failed_wait_can_be_repeated(reader, output, deferred_mesh):
    first, second = reader.submit(output(1)), reader.submit(output(2))
    deferred_mesh.faults.fail(op="event_synchronize", at=1)
    with pytest.raises(RuntimeError, match="1 failure"):
        reader.drain()
    assert values_of(reader.complete(second)) == 2
    assert values_of(reader.complete(first)) == 1


def test_a_device_without_events_is_refused(output, deferred_mesh, monkeypatch):
    monkeypatch.delattr(ttnn_twin, "record_event")
    with pytest.raises(RuntimeError, match="record_event"):
        OutputReader(deferred_mesh).submit(output(1))
    assert deferred_mesh.counters.calls["synchronize_device"] == 1


def test_objects_with_a_cpu_method(reader):
    class Plain:
        def cpu(self):
            return "copied"

    blocking_modes = []

    class Modal:
        def cpu(self, blocking=True):
            blocking_modes.append(blocking)
            return "copied"

    assert reader.submit(Plain()).events == ()
    assert reader.read([Plain(), Modal()]) == ["copied", "copied"]
    assert blocking_modes == [True]
    assert len(reader.submit(Modal()).events) == 1


def test_torch_tensors_are_copied_with_cpu(reader, monkeypatch):
    class Tensor:
        def cpu(self):
            return "on the host"

    monkeypatch.setitem(__import__("sys").modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    pending = reader.submit(Tensor())
    assert pending.value == "on the host"
    assert pending.events == ()


def test_two_threads_may_complete_one_read(reader, output):
    pending = reader.submit(output(3))
    barrier = threading.Barrier(2)
    results = []

    def complete():
        barrier.wait()
        results.append(reader.complete(pending))

    threads = [threading.Thread(target=complete) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [values_of(result) for result in results] == [3, 3]
    reader.drain()
