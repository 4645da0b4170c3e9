# SPDX-License-Identifier: Apache-2.0
"""Warmup of all lanes: hints per lane, one barrier for captures, and failures on either side of it."""

from __future__ import annotations

import pytest

from support.recording_lanes import RecordingBarrier


def warm_decode(group, *, enable_trace=True, **hints):
    return group.warmup_model_decode(
        **{
            "kv_cache": None,
            "max_batch_size": 4,
            "num_blocks": 8,
            "can_sample_on_device": False,
            "enable_trace": enable_trace,
            **hints,
        }
    )


def warm_prefill(group, *, enable_trace=True, **hints):
    call = {"kv_cache": None, "can_sample_on_device": False, "enable_trace": enable_trace, **hints}
    return group.warmup_model_prefill(**call)


@pytest.mark.covers("LAN-09", "LAN-22")
def test_each_lane_gets_its_cache_and_its_rows(recording):
    group, lanes, _ = recording(traceable=False)
    assert warm_prefill(group, enable_trace=False, kv_cache=["cache 0", "cache 1"]) is None
    assert group.already_warmed_up_prefill is True
    assert warm_decode(group, enable_trace=False, kv_cache=["cache 0", "cache 1"]) is None
    for lane in lanes:
        prefill, decode = lane.calls["warm"]
        assert prefill["kv_cache"] == decode["kv_cache"] == f"cache {lane.index}"
        assert decode["max_batch_size"] == 2
        assert decode["num_blocks"] == 8
    group.already_warmed_up_prefill = False
    assert [lane.already_warmed_up_prefill for lane in lanes] == [False, False]


@pytest.mark.covers("LAN-10")
def test_a_traced_warmup_needs_a_barrier_on_every_lane(recording):
    group, lanes, log = recording()
    RecordingBarrier(lanes[0])
    with pytest.raises(RuntimeError, match=r"every lane must expose the trace activation barrier; lanes \[1\] do not"):
        warm_prefill(group)
    assert log == []
    assert not group.terminal


@pytest.mark.covers("LAN-11")
def test_no_lane_captures_before_all_have_registered(recording):
    group, lanes, log = recording()
    for lane in lanes:
        RecordingBarrier(lane)
    warm_decode(group)
    assert log == [
        ("enter", 0),
        ("enter", 1),
        ("warm", 0),
        ("register", 0),
        ("warm", 1),
        ("register", 1),
        ("capture", 0),
        ("capture", 1),
        ("exit", 1),
        ("exit", 0),
    ]


@pytest.mark.covers("LAN-12")
def test_a_lane_that_fails_after_registering_captures_nothing_anywhere(recording):
    group, lanes, log = recording()
    barriers = [RecordingBarrier(lane) for lane in lanes]
    error = OSError("after register")
    lanes[1].errors["after register"] = [error]
    with pytest.raises(OSError, match="after register") as caught:
        warm_decode(group)
    assert caught.value is error
    assert error.lane == 1
    assert ("capture", 0) not in log and ("capture", 1) not in log
    assert [barrier.capture_pending for barrier in barriers] == [False, False]
    assert log[-4:] == [("exit", 1), ("exit", 0), ("cleanup", 0), ("cleanup", 1)]
    assert group.terminal


@pytest.mark.covers("LAN-13")
def test_lanes_that_trace_nothing_are_warmed_without_the_barrier(recording):
    group, lanes, log = recording(traceable=False)
    for lane in lanes:
        RecordingBarrier(lane, registers=False)
    warm_prefill(group, enable_trace=False)
    assert log == [("warm", 0), ("warm", 1)]


def test_an_eager_call_over_lanes_that_trace_is_held_back_too(recording):
    """The eager call may complete the coverage; without the barrier lane 0 would capture before lane 1 compiles."""
    group, lanes, log = recording()
    for lane in lanes:
        RecordingBarrier(lane)
    warm_prefill(group, enable_trace=False)
    assert log[:2] == [("enter", 0), ("enter", 1)]
    assert log.index(("capture", 0)) > log.index(("register", 1))


def test_lanes_without_a_barrier_can_be_warmed_eagerly(recording):
    group, _, log = recording()
    warm_prefill(group, enable_trace=False)
    assert log == [("warm", 0), ("warm", 1)]


def test_incomplete_and_activated_lanes_capture_nothing(recording):
    group, lanes, log = recording()
    barriers = [RecordingBarrier(lane, registers=False) for lane in lanes]
    warm_decode(group)
    for barrier in barriers:
        barrier.trace_activated = True
    warm_decode(group)
    assert not {("capture", 0), ("capture", 1)} & set(log)
    assert not group.terminal


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        ((True, False), "lane 0 pending, lane 1 incomplete"),
        ((False, True), "lane 0 incomplete, lane 1 pending"),
        (("activated", True), "lane 0 activated, lane 1 pending"),
    ],
)
def test_lanes_that_differ_in_readiness_end_the_group(recording, ready, words):
    group, lanes, log = recording()
    for lane, registers in zip(lanes, ready, strict=True):
        RecordingBarrier(lane, registers=registers is True).trace_activated = registers == "activated"
    with pytest.raises(RuntimeError, match=words):
        warm_decode(group)
    assert not {("capture", 0), ("capture", 1)} & set(log)
    assert log[-2:] == [("cleanup", 0), ("cleanup", 1)]


def test_a_capture_that_fails_on_the_second_lane_cleans_both(recording):
    group, lanes, log = recording()
    for lane in lanes:
        RecordingBarrier(lane)
    lanes[1].errors["capture"] = [RuntimeError("trace region is full")]
    with pytest.raises(RuntimeError, match="trace region is full") as caught:
        warm_decode(group)
    assert caught.value.lane == 1
    assert log[-6:] == [("capture", 0), ("capture", 1), ("exit", 1), ("exit", 0), ("cleanup", 0), ("cleanup", 1)]


def test_a_deferral_that_cannot_begin_is_a_refusal(recording):
    group, lanes, log = recording()
    for lane in lanes:
        RecordingBarrier(lane)
    lanes[1].errors["enter"] = [RuntimeError("capture is already deferred")]
    with pytest.raises(RuntimeError, match="already deferred"):
        warm_decode(group)
    assert log == [("enter", 0), ("enter", 1), ("exit", 0)]
    assert not group.terminal


@pytest.mark.parametrize(
    ("hints", "error", "words"),
    [
        ({"max_batch_size": 3}, ValueError, "max_batch_size 3 must be the group's 4 rows or a lane's 2"),
        ({"num_blocks": 0}, ValueError, "num_blocks must be a positive integer"),
        ({"enable_trace": 1}, TypeError, "enable_trace must be a bool"),
        ({"can_sample_on_device": None}, TypeError, "can_sample_on_device must be a bool"),
        ({"kv_cache": ["one"]}, ValueError, "kv_cache has 1 entries"),
    ],
)
def test_bad_hints_are_refused(recording, hints, error, words):
    group, _, log = recording(traceable=False)
    with pytest.raises(error, match=words):
        warm_decode(group, **{"enable_trace": False, **hints})
    assert log == []
    assert not group.terminal


def test_hints_beyond_the_policy_of_real_lanes_are_refused(twin_lanes):
    lanes = twin_lanes(device_sampling=False)
    with pytest.raises(ValueError, match="decode trace warmup exceeds the lane's trace policy"):
        warm_decode(lanes.group)
    with pytest.raises(ValueError, match="the lane was built without it"):
        warm_prefill(lanes.group, enable_trace=False, can_sample_on_device=True)
    with pytest.raises((TypeError, ValueError)):
        warm_prefill(lanes.group, enable_trace=False, kv_cache=lanes.kv_cache[::-1])
    assert not lanes.group.terminal
    assert all(mesh.counters.compiles == 0 for mesh in lanes.meshes)


@pytest.mark.parametrize("order", ["decode first", "prefill first"])
def test_real_lanes_capture_after_all_have_compiled(twin_lanes, monkeypatch, order):
    """Decode traced, prefill eager, in either order: the eager call may be the one that completes the coverage."""
    lanes = twin_lanes(trace_mode="decode_only", device_sampling=False)
    log = []
    for index, lane in enumerate(lanes.lanes):
        compile_program, capture = lane.program_compiler.compile, lane.trace_compiler.capture_all

        def compiling(*arguments, index=index, call=compile_program, **options):
            log.append(("compile", index))
            return call(*arguments, **options)

        def capturing(index=index, call=capture):
            log.append(("capture", index))
            return call()

        monkeypatch.setattr(lane.program_compiler, "compile", compiling)
        monkeypatch.setattr(lane.trace_compiler, "capture_all", capturing)
    calls = [
        lambda: warm_decode(lanes.group, kv_cache=lanes.kv_cache, num_blocks=4),
        lambda: warm_prefill(lanes.group, kv_cache=lanes.kv_cache, enable_trace=False),
    ]
    for call in calls if order == "decode first" else reversed(calls):
        call()
    assert log[-2:] == [("capture", 0), ("capture", 1)]
    assert {entry for entry in log[:-2]} == {("compile", 0), ("compile", 1)}
    assert [lane.warmup.trace_activated for lane in lanes.lanes] == [True, True]
