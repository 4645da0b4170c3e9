# SPDX-License-Identifier: Apache-2.0
"""Reads of all lanes at once: the combined result, real concurrency, and which failure is told."""

from __future__ import annotations

import threading

import numpy as np
import pytest


@pytest.mark.covers("LAN-08")
def test_async_read_then_host_processing(recording):
    group, lanes, _ = recording()
    host, events = group.read_decode_output(["raw 0", "raw 1"], async_read=True)
    assert host == ["host of raw 0", "host of raw 1"]
    assert events == ["event 0", "event 1"]
    tokens, log_probs = group.process_decode_output_host(host, is_tokens=True)
    assert tokens.tolist() == [0, 1, 2, 3]
    assert tokens.dtype == np.int64
    assert log_probs is None
    assert lanes[1].last("process") == {"tt_out": "host of raw 1", "is_tokens": True}


def test_blocking_read_gives_one_value_per_lane(recording):
    group, _, _ = recording()
    assert group.read_decode_output(("raw 0", "raw 1")) == ["host of raw 0", "host of raw 1"]


def test_events_come_flat(recording):
    group, lanes, _ = recording()
    lanes[0].results["read"] = ("left", None)
    lanes[1].results["read"] = ("right", ["a", None, ("b", ["c"])])
    assert group.read_decode_output(["raw 0", "raw 1"], async_read=True) == (["left", "right"], ["a", "b", "c"])


def test_sampled_ids_are_flattened(recording):
    group, lanes, _ = recording()
    for lane in lanes:
        lane.results["process"] = np.full((2, 1), lane.index, np.float32)
    assert group.process_decode_output_host(["a", "b"], is_tokens=True)[0].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("operation", ["read", "process"])
def test_lanes_work_at_the_same_time(recording, operation):
    """Each lane waits until all lanes have arrived, which a sequential fanout never reaches."""
    group, lanes, _ = recording(3)
    together = threading.Barrier(3, timeout=20)
    names = set()
    for lane in lanes:
        plain = lane.note

        def note(name, plain=plain, **call):
            names.add(threading.current_thread().name)
            together.wait()
            return plain(name, **call)

        lane.note = note
    if operation == "read":
        assert group.read_decode_output(["a", "b", "c"]) == ["host of a", "host of b", "host of c"]
    else:
        assert group.process_decode_output_host(["a", "b", "c"], is_tokens=True)[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(names) == 3
    assert all(name.startswith("lane-output") for name in names)


def test_a_completion_that_waits_does_not_hold_up_the_next_read(recording):
    group, lanes, _ = recording()
    release = threading.Event()
    for lane in lanes:
        lane.process_decode_output_host = lambda **_: release.wait(20) and np.zeros(2, np.int64)
    results = []
    step = threading.Thread(target=lambda: results.append(group.process_decode_output_host(["a", "b"], is_tokens=True)))
    step.start()
    try:
        assert group.read_decode_output(["c", "d"]) == ["host of c", "host of d"]
        assert results == []
    finally:
        release.set()
        step.join(20)
    assert results[0][0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("operation", ["read", "process"])
def test_every_lane_is_read_and_the_first_failure_is_told(recording, operation):
    group, lanes, log = recording(3)
    first, second = RuntimeError("lane one"), ValueError("lane two")
    lanes[1].errors[operation] = [first]
    lanes[2].errors[operation] = [second]
    with pytest.raises(RuntimeError, match="lane one") as caught:
        if operation == "read":
            group.read_decode_output(["a", "b", "c"], async_read=True)
        else:
            group.process_decode_output_host(["a", "b", "c"])
    assert caught.value is first
    assert caught.value.lane_failures == (second,)
    assert (first.lane, second.lane) == (1, 2)
    assert not hasattr(first, "cleanup_failures")
    assert sorted(log) == sorted([(operation, lane) for lane in range(3)] + [("cleanup", lane) for lane in range(3)])
    assert group.terminal
    with pytest.raises(RuntimeError, match="terminal: it failed with RuntimeError: lane one"):
        group.read_decode_output(["a", "b", "c"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane-output")]


@pytest.mark.parametrize("result", ["no pair", ("host", [], "more")])
def test_an_async_read_that_is_no_pair_ends_the_group(recording, result):
    group, lanes, _ = recording()
    lanes[1].results["read"] = result
    with pytest.raises(TypeError, match="lane 1: an async read must return"):
        group.read_decode_output(["a", "b"], async_read=True)
    assert group.terminal


@pytest.mark.parametrize(
    ("outputs", "error", "words"),
    [
        (["a"], ValueError, "tt_out has 1 entries, the group has 2 lanes"),
        ("ab", TypeError, "tt_out must be a list or tuple"),
        (None, TypeError, "tt_out must be a list or tuple with one output per lane, got None"),
        (np.zeros(2), TypeError, "tt_out must be a list or tuple"),
    ],
)
def test_outputs_of_another_group_are_refused(recording, outputs, error, words):
    group, _, log = recording()
    with pytest.raises(error, match=words):
        group.read_decode_output(outputs)
    with pytest.raises(error, match=words):
        group.process_decode_output_host(outputs)
    assert log == []
    assert not group.terminal


def test_cleanup_waits_for_reads_of_other_threads(recording):
    group, lanes, log = recording()
    started, release = threading.Event(), threading.Event()

    def slow(**_):
        started.set()
        release.wait(20)
        log.append(("read ended", 0))
        return "host"

    lanes[0].read_decode_output = slow
    values = []
    reader = threading.Thread(target=lambda: values.append(group.read_decode_output(["a", "b"])))
    reader.start()
    assert started.wait(20)
    threading.Timer(0.05, release.set).start()
    group.cleanup()
    reader.join(20)
    assert values == [["host", "host of b"]]
    assert log.index(("read ended", 0)) < log.index(("cleanup", 0))
