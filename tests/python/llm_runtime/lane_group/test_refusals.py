# SPDX-License-Identifier: Apache-2.0
"""What real lanes refuse before any of them has worked, and what ends the group once one has."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.errors import TraceCoverageError
from llm_runtime.prefill.sampling_params import SamplingParams
from support.lanes_model import prompts_of

PROMPTS = prompts_of((20, 5, 33, 70))
SLOTS = (3, 0, 2, 1)
GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)


def calls_of(lanes):
    return [dict(mesh.counters.calls) for mesh in lanes.meshes]


@pytest.fixture
def untouched():
    """A context: no device of the lanes is called inside, and the group stays usable."""

    class Untouched:
        def __init__(self, lanes):
            self.lanes, self.before = lanes, calls_of(lanes)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            assert error == (None, None, None)
            assert calls_of(self.lanes) == self.before
            assert not self.lanes.group.terminal

    return Untouched


def test_a_step_that_only_the_last_lane_cannot_replay(traced_lanes, untouched):
    """Row 3 asks for a stochastic token, whose decode trace is not part of the coverage; lane 0 could go on."""
    serving = traced_lanes.serving
    before = serving.generate(PROMPTS, SLOTS, steps=2, sampled=True)
    stochastic = SamplingParams(temperature=[0.0, 0.0, 0.0, 1.0], top_k=[1, 1, 1, 8], top_p=1.0)
    misses = [target.coverage_miss_count for target in traced_lanes.group.traced_decode_execution]
    with untouched(traced_lanes), pytest.raises(TraceCoverageError) as caught:
        serving.step(dict.fromkeys(range(4), 1), dict.fromkeys(range(4), 40), sampling_params=stochastic)
    error = caught.value
    assert (error.operation, error.lane) == ("decode", 1)
    assert "required decode trace is not available in lane 1" in str(error)
    assert error.__notes__ == ["in lane 1 of the group, whose rows are rows [2, 3] of the call"]
    after = [target.coverage_miss_count for target in traced_lanes.group.traced_decode_execution]
    assert after == [misses[0], misses[1] + 1]
    assert serving.generate(PROMPTS, SLOTS, steps=2, sampled=True) == before


def test_a_prefill_that_only_the_last_lane_cannot_replay(twin_lanes, untouched):
    """Lane 0 was warmed and captured by itself, lane 1 not at all."""
    lanes = twin_lanes(2, 1, trace_mode="all", device_sampling=False)
    lanes.llamas[0].warm_up()
    with untouched(lanes), pytest.raises(TraceCoverageError) as caught:
        lanes.serving.prefill(PROMPTS[:2], (0, 1))
    assert (caught.value.operation, caught.value.lane) == ("prefill", 1)
    assert lanes.serving.prefill(PROMPTS[:1], (0,)).shape == (1, 1, 256)
    explicit = lanes.group.traced_prefill_execution
    with untouched(lanes), pytest.raises(TraceCoverageError, match="lane 1"):
        lanes.serving.prefill(PROMPTS[:2], (0, 1), execution=explicit)


@pytest.mark.parametrize("group", ["eager_lanes", "traced_lanes"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_lens": np.array([20, 5, 0, 70])}, "row 1: the prompt is empty"),
        ({"start_pos": np.array([0, 0, 7, 0])}, "start"),
        ({"page_table": np.zeros((4, 1), np.int32)}, "page"),
        ({"sampling_params": SamplingParams(temperature=1.0, top_k=[8, 8, 500, 8], top_p=1.0)}, "top_k 500"),
        ({"sampling_params": SamplingParams(temperature=[0.0, 0.0, -1.0, 0.0], top_k=1, top_p=1.0)}, "negative"),
    ],
)
def test_a_bad_row_of_the_second_lane_stops_the_first(request, untouched, group, change, words):
    lanes = request.getfixturevalue(group)
    serving = lanes.serving
    serving.prefill(PROMPTS, SLOTS, sampling_params=GREEDY)  # sampler buffers exist from here on
    tokens = np.zeros((4, 70), np.int64)
    call = {
        "tokens": tokens,
        "page_table": serving.table[list(SLOTS)],
        "prompt_lens": np.array([20, 5, 33, 70]),
        "empty_slots": list(SLOTS),
        **change,
    }
    if "page_table" in change:
        # Only the rows of lane 1 are too long for one block.
        call["prompt_lens"], call["empty_slots"] = np.array([40, 5, 33, 20]), [3, 0, 2, 1]
    for operation in (lanes.group.prefill_forward, lanes.group.compile_prefill):
        with untouched(lanes), pytest.raises(ValueError, match=words) as caught:
            operation(**call)
        assert caught.value.lane == 1
        assert "rows are rows [0, 2] of the call" in caught.value.__notes__[0]


@pytest.mark.parametrize("group", ["eager_lanes", "traced_lanes"])
@pytest.mark.parametrize(
    ("rows", "change", "words"),
    [
        ({3: 129}, {}, "129|128"),
        ({3: 5}, {"sampling_params": SamplingParams(temperature=1.0, top_k=[8, 8, 8, 500], top_p=1.0)}, "top_k 500"),
        ({3: 5}, {"reset_batch": True, "reload_inputs": True}, "reset_batch"),
    ],
)
def test_a_bad_step_of_the_second_lane_stops_the_first(request, untouched, group, rows, change, words):
    lanes = request.getfixturevalue(group)
    lanes.serving.prefill(PROMPTS, SLOTS, sampling_params=GREEDY)
    positions = {0: 5, 1: 5, 2: 5, **rows}
    if "reset_batch" in change:
        lane = 0
    else:
        lane = 1
        if "sampling_params" in change and group == "traced_lanes":
            positions = {3: 5}  # lane 0 would miss its trace first
        elif "sampling_params" in change:
            change = {**change, "reset_batch": True}
    with untouched(lanes), pytest.raises(ValueError, match=words) as caught:
        lanes.serving.step(dict.fromkeys(positions, 1), positions, **change)
    assert caught.value.lane == lane


@pytest.mark.parametrize("group", ["eager_lanes", "traced_lanes"])
def test_a_row_without_a_reset_in_the_second_lane_stops_the_first(request, untouched, group):
    """Lane 0 steps on; lane 1, left out so far, gets a row whose random stream nobody has set up."""
    lanes = request.getfixturevalue(group)
    serving = lanes.serving
    serving.prefill(PROMPTS, SLOTS, sampling_params=GREEDY)
    serving.step({3: 1}, {3: 70}, sampling_params=GREEDY, reset_batch=True)
    serving.step({0: 1, 1: 1}, {0: 70, 1: 70}, sampling_params=GREEDY, reset_batch=True)
    serving.step({0: 1, 1: 1}, {0: 71, 1: 71}, sampling_params=GREEDY)
    everywhere = ({0: 1, 1: 1, 2: 1}, {0: 72, 1: 72, 2: 70})
    with untouched(lanes), pytest.raises(RuntimeError, match="reset_batch=True") as caught:
        serving.step(*everywhere, sampling_params=GREEDY)
    assert caught.value.lane == 1
    tokens, _ = serving.step(*everywhere, sampling_params=GREEDY, reset_batch=True)
    assert tokens.shape == (4,)


def test_a_cache_of_another_lane_is_refused(eager_lanes, untouched):
    with untouched(eager_lanes), pytest.raises((TypeError, ValueError)) as caught:
        eager_lanes.serving.prefill(PROMPTS, SLOTS, kv_cache=eager_lanes.kv_cache[::-1])
    assert caught.value.lane == 0


@pytest.mark.parametrize("group", ["eager_lanes", "traced_lanes"])
def test_an_unread_step_of_one_lane_stops_every_lane(request, untouched, group):
    lanes = request.getfixturevalue(group)
    serving = lanes.serving
    serving.prefill(PROMPTS, SLOTS)
    positions = dict.fromkeys(range(4), 70)
    raw = serving.step(dict.fromkeys(range(4), 1), positions, read_from_device=False)
    lanes.lanes[0].process_decode_output_host(raw[0])
    with untouched(lanes):
        for operation in (
            lambda: serving.prefill(PROMPTS, SLOTS),
            lambda: serving.step(dict.fromkeys(range(4), 1), positions),
        ):
            with pytest.raises(RuntimeError, match="not been read") as caught:
                operation()
            assert caught.value.lane == 1
    lanes.lanes[1].process_decode_output_host(raw[1])
    assert serving.step(dict.fromkeys(range(4), 1), positions)[0].shape == (4, 1, 256)


def test_sampling_that_lanes_were_built_without(twin_lanes, untouched):
    lanes = twin_lanes(device_sampling=False)
    with untouched(lanes), pytest.raises(ValueError, match="device sampling is disabled"):
        lanes.serving.prefill(PROMPTS, SLOTS, sampling_params=GREEDY)
    with untouched(lanes), pytest.raises(ValueError, match="device sampling is disabled"):
        lanes.serving.step({0: 1}, {0: 1}, sampling_params=GREEDY)


def test_an_unseen_program_of_the_second_lane_stops_the_first(twin_lanes, untouched):
    """With traces active nothing may compile; here the registry of lane 1 has lost what it knew."""
    lanes = twin_lanes(2, 2, trace_mode="decode_only", device_sampling=False)
    lanes.warm_up()
    eager = lanes.group.eager_execution
    lanes.group.prefill_forward(
        np.zeros((3, 5), np.int64), lanes.serving.table[[0, 2, 3]], empty_slots=[0, 2, 3], execution=eager
    )
    find = lanes.lanes[1].program_compiler.find
    lanes.lanes[1].program_compiler.find = lambda signature: -1
    try:
        for operation in (lanes.group.prefill_forward, lanes.group.compile_prefill):
            with untouched(lanes), pytest.raises(RuntimeError, match="has not been compiled") as caught:
                operation(np.zeros((3, 5), np.int64), lanes.serving.table[[0, 2, 3]], empty_slots=[0, 2, 3])
            assert caught.value.lane == 1
    finally:
        lanes.lanes[1].program_compiler.find = find


@pytest.mark.parametrize(
    "work",
    [
        lambda lanes: lanes.serving.prefill(PROMPTS, SLOTS),
        lambda lanes: lanes.serving.step(dict.fromkeys(range(4), 1), dict.fromkeys(range(4), 9)),
        lambda lanes: lanes.group.compile_prefill(np.ones((4, 3), np.int64), lanes.serving.table),
    ],
)
def test_a_device_failure_of_the_second_lane_ends_the_group(twin_lanes, work):
    lanes = twin_lanes()
    caches = [{tensor.buffer_id for layer in handle for tensor in layer} for handle in lanes.kv_cache]
    lanes.meshes[1].faults.fail("linear", at=3)
    with pytest.raises(RuntimeError, match="injected fault: linear") as caught:
        work(lanes)
    assert caught.value.lane == 1
    assert not hasattr(caught.value, "cleanup_failures")
    assert lanes.group.terminal
    assert [lane.terminal for lane in lanes.lanes] == [True, True]
    for mesh, cache in zip(lanes.meshes, caches, strict=True):
        assert len(cache) == 4
        assert not cache & {tensor.buffer_id for tensor in mesh.live_tensors()}
    with pytest.raises(RuntimeError, match="terminal: it failed with RuntimeError: injected fault: linear"):
        work(lanes)
    lanes.meshes[1].faults.clear()  # the fault's error holds the frames, and those the tensors, of the failed call


def test_what_a_dying_lane_cannot_release_is_told_and_retried(twin_lanes):
    lanes = twin_lanes()
    cache = {tensor.buffer_id for layer in lanes.kv_cache[0] for tensor in layer}
    # The second lane fails when the first is done, so from then on every release on the first is part of its cleanup.
    fault = RuntimeError("device lost")
    target = lanes.lanes[1].eager_execution
    run = target.prefill_forward

    def fail(**call):
        lanes.meshes[0].faults.fail("deallocate", times=None, error=OSError("stuck"))
        raise fault

    target.prefill_forward = fail
    with pytest.raises(RuntimeError, match="device lost") as caught:
        lanes.serving.prefill(PROMPTS, SLOTS)
    target.prefill_forward = run
    assert caught.value is fault
    (stuck,) = fault.cleanup_failures
    assert [str(each) for each in stuck.cleanup_failures] == ["stuck"] * 4
    assert (fault.lane, stuck.lane) == (1, 0)
    assert cache <= {tensor.buffer_id for tensor in lanes.meshes[0].live_tensors()}
    with pytest.raises(RuntimeError, match="4 KV cache tensor"):
        lanes.group.cleanup()
    lanes.meshes[0].faults.clear()
    lanes.group.cleanup()
    assert not cache & {tensor.buffer_id for tensor in lanes.meshes[0].live_tensors()}


def test_a_second_allocation_of_another_shape_is_no_end(twin_lanes):
    """Lanes are allocated already: every further allocation is refused by the first lane."""
    lanes = twin_lanes()
    shape = (1, 1, 32, 32)
    with pytest.raises(ValueError, match="1") as caught:
        lanes.group.allocate_kv_cache(shape, np.dtype("float32"), 2)
    assert caught.value.lane == 0
    assert not lanes.group.terminal
