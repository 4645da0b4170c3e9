# SPDX-License-Identifier: Apache-2.0
"""Taking lanes over, KV cache fanout, what ends a group and what does not, and cleanup that can be retried."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.lane_group import LaneGroupExecutor
from support.recording_lanes import RecordingLane

TOKENS, TABLE = np.array([[10], [11], [12]]), np.zeros((3, 1), np.int32)
BOTH_CLEANED = [("cleanup", 0), ("cleanup", 1)]


def prefill(group):
    return group.prefill_forward(TOKENS, TABLE)


def test_a_group_needs_a_lane():
    with pytest.raises(ValueError, match="at least one lane"):
        LaneGroupExecutor([])


@pytest.mark.covers("LAN-23")
@pytest.mark.parametrize(
    ("capacities", "words"),
    [((2, 4), "same fixed capacity: lane 0 has 2 rows, lane 1 has 4"), ((0, 0), "lane 0: capacity must be positive")],
)
def test_lanes_must_be_alike(capacities, words):
    log = []
    lanes = [RecordingLane(index, log, capacity=capacity) for index, capacity in enumerate(capacities)]
    with pytest.raises(ValueError, match=words):
        LaneGroupExecutor(lanes)
    assert log == BOTH_CLEANED


def test_a_lane_given_twice_is_cleaned_once():
    log = []
    lane = RecordingLane(0, log)
    with pytest.raises(ValueError, match="a lane was given twice"):
        LaneGroupExecutor([lane, lane])
    assert log == [("cleanup", 0)]


def test_what_fails_while_a_refused_group_is_cleaned_is_attached():
    log = []
    lanes = [RecordingLane(index, log, capacity=2 + index) for index in range(2)]
    failure = RuntimeError("busy")
    lanes[0].errors["cleanup"] = [failure]
    with pytest.raises(ValueError, match="same fixed capacity") as caught:
        LaneGroupExecutor(lanes)
    assert caught.value.cleanup_failures == (failure,)
    assert log == BOTH_CLEANED


@pytest.mark.covers("LAN-21", "LAN-22")
def test_cache_config_and_allocation_reach_every_lane(recording):
    group, lanes, _ = recording()
    config = PagedKVCacheConfig(block_size=32, max_num_blocks=16, dtype="bfloat16", num_blocks=8)
    assert group.configure_paged_kv_cache(config) is None
    given = [lane.last("configure")["config"] for lane in lanes]
    assert [each.num_blocks for each in given] == [8, 8]
    assert given[0] == given[1] == config
    assert len({id(each) for each in (*given, config)}) == 3
    assert group.allocate_kv_cache((8, 2, 32, 64), "bfloat16", 2) == ["handle 0", "handle 1"]
    for lane in lanes:
        assert lane.last("allocate") == {"kv_cache_shape": (8, 2, 32, 64), "dtype": "bfloat16", "num_layers": 2}
    group.configure_paged_kv_cache(["left", "right"])
    assert [lane.last("configure")["config"] for lane in lanes] == ["left", "right"]
    with pytest.raises(ValueError, match="config has 3 entries"):
        group.configure_paged_kv_cache([config] * 3)
    assert not group.terminal


def test_an_open_capacity_of_any_lane_is_refused(recording):
    group, lanes, log = recording()
    lanes[1].paged_kv_cache_config = PagedKVCacheConfig(block_size=32, max_num_blocks=16, dtype="bfloat16")
    with pytest.raises(RuntimeError, match="lane 1 does not know its number of KV blocks"):
        group.allocate_kv_cache()
    assert log == []
    assert not group.terminal
    assert group.allocate_kv_cache((8, 2, 32, 64), "bfloat16", 2) == ["handle 0", "handle 1"]


@pytest.mark.parametrize("operation", ["configure", "allocate"])
def test_a_refusal_by_the_first_lane_is_no_end_but_by_the_second_it_is(recording, operation):
    group, lanes, log = recording()

    def call():
        if operation == "configure":
            group.configure_paged_kv_cache("config")
        else:
            group.allocate_kv_cache()

    lanes[0].errors[operation] = [ValueError("too many blocks")]
    with pytest.raises(ValueError, match="too many blocks"):
        call()
    assert log == [(operation, 0)]
    assert not group.terminal
    lanes[1].errors[operation] = [ValueError("too many blocks")]
    with pytest.raises(ValueError, match="too many blocks") as caught:
        call()
    assert caught.value.lane == 1
    assert log[-2:] == BOTH_CLEANED
    assert group.terminal


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("prefill", prefill),
        ("decode", lambda group: group.decode_forward(np.arange(4), np.arange(4), np.zeros((4, 1), int))),
        ("compile prefill", lambda group: group.compile_prefill(TOKENS, TABLE)),
        ("compile decode", lambda group: group.compile_decode(np.arange(4), np.arange(4), np.zeros((4, 1), int))),
        ("allocate", lambda group: group.allocate_kv_cache()),
    ],
)
@pytest.mark.parametrize("lane", [0, 1])
def test_a_failure_of_one_lane_ends_the_group(recording, operation, call, lane):
    group, lanes, log = recording()
    error, other = RuntimeError("device lost"), OSError("busy")
    lanes[lane].errors[operation] = [error]
    lanes[1].errors["cleanup"] = [other]
    with pytest.raises(RuntimeError, match="device lost") as caught:
        call(group)
    assert caught.value is error
    assert error.lane == lane
    assert error.cleanup_failures == (other,)
    assert log == [(operation, index) for index in range(lane + 1)] + BOTH_CLEANED
    assert group.terminal
    with pytest.raises(RuntimeError, match="terminal: it failed with RuntimeError: device lost"):
        call(group)
    group.cleanup()
    assert log[-1] == ("cleanup", 1)
    assert len([entry for entry in log if entry[0] == "cleanup"]) == 3


def test_an_interrupt_ends_the_group_as_well(recording):
    group, lanes, log = recording()
    lanes[1].errors["prefill"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        prefill(group)
    assert log[-2:] == BOTH_CLEANED


@pytest.mark.covers("LAN-25")
def test_cleanup_twice_then_work(recording):
    group, _, log = recording()
    group.cleanup()
    group.cleanup()
    assert log == BOTH_CLEANED
    assert group.terminal
    for call in (
        prefill,
        lambda group: group.can_trace_prefill(tokens=TOKENS),
        lambda group: group.decode_forward(np.arange(4), np.arange(4), np.zeros((4, 1), int)),
        lambda group: group.read_decode_output(["a", "b"]),
        lambda group: group.process_decode_output_host(["a", "b"]),
        lambda group: group.allocate_kv_cache(),
        lambda group: group.configure_paged_kv_cache("config"),
        lambda group: group.warmup_model_prefill(kv_cache=None, can_sample_on_device=False, enable_trace=False),
    ):
        with pytest.raises(RuntimeError, match="terminal: it was cleaned up"):
            call(group)
    assert log == BOTH_CLEANED


@pytest.mark.covers("LAN-26")
def test_cleanup_retries_only_the_lane_that_failed(recording):
    group, lanes, log = recording()
    error = RuntimeError("busy")
    lanes[0].errors["cleanup"] = [error]
    with pytest.raises(RuntimeError, match="busy") as caught:
        group.cleanup()
    assert caught.value is error
    assert group.terminal
    assert log == BOTH_CLEANED
    group.cleanup()
    group.cleanup()
    assert log == [*BOTH_CLEANED, ("cleanup", 0)]


def test_every_cleanup_failure_is_told(recording):
    group, lanes, _ = recording()
    first, second = RuntimeError("lane 0"), RuntimeError("lane 1")
    lanes[0].errors["cleanup"], lanes[1].errors["cleanup"] = [first], [second]
    with pytest.raises(RuntimeError) as caught:
        group.cleanup()
    assert caught.value is first
    assert first.cleanup_failures == (second,)
    assert (first.lane, second.lane) == (0, 1)


@pytest.mark.covers("LAN-28")
def test_cleanup_retries_the_worker_pool_without_the_lanes(recording, monkeypatch):
    group, _, log = recording()
    shutdown, calls = ThreadPoolExecutor.shutdown, []

    def failing_once(pool, *arguments, **options):
        calls.append(pool)
        if len(calls) == 1:
            raise OSError("pool")
        return shutdown(pool, *arguments, **options)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", failing_once)
    with pytest.raises(OSError, match="pool"):
        group.cleanup()
    assert group.terminal
    assert log == BOTH_CLEANED
    group.cleanup()
    assert len(calls) == 2
    group.cleanup()
    assert len(calls) == 2
    assert log == BOTH_CLEANED


def test_errors_that_hold_no_attributes_are_raised_unchanged(recording):
    class Fixed(Exception):
        __slots__ = ()

        def __setattr__(self, name, value):
            if name == "lane":
                raise AttributeError(name)
            super().__setattr__(name, value)

    group, lanes, _ = recording()
    lanes[0].errors["prefill"] = [Fixed("fixed")]
    with pytest.raises(Fixed, match="fixed") as caught:
        prefill(group)
    assert "in lane 0 of the group" in caught.value.__notes__[0]
