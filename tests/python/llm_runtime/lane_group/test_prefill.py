# SPDX-License-Identifier: Apache-2.0
"""Prefill over lanes: who is called in which order, the checks before the first lane, and the merged result."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from llm_runtime.errors import TraceCoverageError
from llm_runtime.lane_group import LaneGroupExecutor

TOKENS = np.array([[10], [11], [12]])
TABLE = np.zeros((3, 1), np.int32)


def coverage_miss():
    return TraceCoverageError(
        operation="prefill",
        trace_mode="all",
        model="tiny",
        reason="not captured",
        signature_material=(),
        digest="d",
        program_key="p",
    )


@pytest.mark.covers("LAN-01")
def test_call_shapes():
    data = {"compile_prefill": 2, "prefill_forward": 2, "compile_decode": 3, "decode_forward": 3}
    keyword_only = {"warmup_model_prefill", "warmup_model_decode", "can_trace_prefill"}
    names = [*data, *keyword_only, "read_decode_output", "process_decode_output_host", "allocate_kv_cache"]
    names += ["configure_paged_kv_cache", "cleanup"]
    for name in names:
        signature = inspect.signature(getattr(LaneGroupExecutor, name))
        parameters = list(signature.parameters.values())[1:]
        assert all(parameter.annotation is not parameter.empty for parameter in parameters), name
        assert signature.return_annotation is not signature.empty, name
        positional = [parameter.name for parameter in parameters if parameter.kind != parameter.KEYWORD_ONLY]
        if name in data:
            assert positional == ["tokens", "page_table"] if data[name] == 2 else ["tokens", "start_pos", "page_table"]
        elif name in keyword_only:
            assert positional == []
        elif name.endswith(("output", "host")):
            assert positional == ["tt_out"]


@pytest.mark.covers("LAN-14", "LAN-22")
def test_compile_reaches_the_rows_of_each_lane(recording):
    group, lanes, log = recording()
    assert group.compile_prefill(TOKENS, TABLE, empty_slots=[3, 0, 2]) is None
    assert lanes[0].last("compile prefill")["tokens"].tolist() == [[11]]
    assert lanes[1].last("compile prefill")["tokens"].tolist() == [[10], [12]]
    assert group.compile_decode(10 + np.arange(4), np.zeros(4, int), np.zeros((4, 1), int)) is None
    assert lanes[0].last("compile decode")["tokens"].tolist() == [10, 11]
    assert lanes[1].last("compile decode")["tokens"].tolist() == [12, 13]
    assert [entry for entry in log if entry[0] == "compile decode"] == [("compile decode", 0), ("compile decode", 1)]


@pytest.mark.covers("LAN-15")
def test_compile_prefill_calls_only_lanes_with_rows(recording):
    group, _, log = recording()
    group.compile_prefill(TOKENS[:2], TABLE[:2], empty_slots=[1, 0])
    assert log == [("compile prefill", 0)]


def test_rows_come_back_in_order_of_the_call(recording):
    group, _, log = recording()
    tokens, log_probs = group.prefill_forward(TOKENS, TABLE, empty_slots=[3, 0, 2])
    assert tokens.tolist() == [110, 11, 112]
    assert tokens.dtype == np.int64
    assert log_probs is None
    assert log == [("prefill", 0), ("prefill", 1)]


@pytest.mark.covers("LAN-16")
def test_one_lane_that_cannot_trace_makes_the_group_untraceable(recording):
    group, lanes, _ = recording()
    lanes[1].traceable = False
    assert group.can_trace_prefill(tokens=TOKENS, empty_slots=[0, 1, 2]) is False
    assert group.can_trace_prefill(tokens=TOKENS[:2], empty_slots=[0, 1]) is True
    assert group.can_trace_prefill(tokens=TOKENS[:0]) is True


@pytest.mark.covers("LAN-17")
def test_eager_targets_run_whatever_can_be_traced(recording):
    group, lanes, log = recording()
    lanes[1].traceable = False
    tokens, _ = group.prefill_forward(TOKENS, TABLE, empty_slots=[2, 0, 3], execution=group.eager_execution)
    assert tokens.tolist() == [110, 11, 112]
    assert log == [("prefill", 0), ("prefill", 1)]
    assert [lane.last("prefill")["execution"] for lane in lanes] == ["eager 0", "eager 1"]


@pytest.mark.covers("LAN-18")
def test_the_traceability_query_sees_rows_in_order(recording):
    group, lanes, _ = recording(1)
    group.can_trace_prefill(
        tokens=TOKENS[:2], prompt_lens=np.array([5, 6]), start_pos=np.array([0, 32]), empty_slots=[1, 0]
    )
    call = lanes[0].last("can trace")
    assert set(call) == {"tokens", "prompt_lens", "start_pos"}
    assert call["tokens"].tolist() == [[10], [11]]
    assert call["prompt_lens"].tolist() == [5, 6]
    assert call["start_pos"].tolist() == [0, 32]


@pytest.mark.covers("LAN-20")
@pytest.mark.parametrize("name", ["page_table", "kv_cache", "sampling_params", "execution"])
def test_the_traceability_query_takes_geometry_only(recording, name):
    group, _, log = recording()
    with pytest.raises(TypeError, match=name):
        group.can_trace_prefill(tokens=TOKENS, **{name: None})
    assert log == []


@pytest.mark.covers("LAN-19")
def test_every_traced_lane_is_asked_before_the_first_runs(recording):
    group, _, log = recording()
    tokens, _ = group.prefill_forward(
        TOKENS[:2], TABLE[:2], empty_slots=[0, 2], execution=group.traced_prefill_execution
    )
    assert log == [("can trace", 0), ("can trace", 1), ("prefill", 0), ("prefill", 1)]
    assert tokens.tolist() == [10, 111]


def test_a_lane_that_declines_stops_the_call_before_it_starts(recording):
    group, lanes, log = recording()
    lanes[1].traceable = False
    with pytest.raises(RuntimeError, match="cannot trace its part of this prefill; no lane has executed") as caught:
        group.prefill_forward(TOKENS[:2], TABLE[:2], empty_slots=[0, 2], execution=group.traced_prefill_execution)
    assert caught.value.lane == 1
    assert caught.value.__notes__ == ["in lane 1 of the group, whose rows are rows [1] of the call"]
    assert log == [("can trace", 0), ("can trace", 1)]
    assert not group.terminal


@pytest.mark.covers("LAN-24")
def test_log_probabilities_of_a_lane_end_the_group(recording):
    group, lanes, log = recording()
    lanes[1].log_probs = np.zeros(1, np.float32)
    with pytest.raises(NotImplementedError, match="lane 1 returned log probabilities"):
        group.prefill_forward(TOKENS, TABLE, empty_slots=[3, 0, 1])
    assert log == [("prefill", 0), ("prefill", 1), ("cleanup", 0), ("cleanup", 1)]
    assert group.terminal


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        ((None, None), None),
        (((None, None), None), (None, None)),
        (("left", np.zeros(2)), ["left", np.zeros(2)]),
        ((np.array([True]), np.array([False, True])), [0, 1, 1]),
        ((np.full((1, 1, 2), 5.0), np.full((2, 1, 2), 7.0)), [[[7.0, 7.0]], [[5.0, 5.0]], [[7.0, 7.0]]]),
    ],
)
def test_other_kinds_of_results(recording, results, wanted):
    group, lanes, _ = recording()
    for lane, result in zip(lanes, results, strict=True):
        lane.results["prefill"] = result
    merged = group.prefill_forward(TOKENS, TABLE, empty_slots=[2, 0, 3])
    if isinstance(merged, np.ndarray):
        assert merged.tolist() == wanted
        assert merged.dtype == (np.int64 if results[0].dtype == bool else results[0].dtype)
    else:
        np.testing.assert_equal(merged, wanted)


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ((1, 2, 3), TypeError, "lane 1 returned 3 values"),
        (np.zeros(3, np.int64), ValueError, "lane 1 returned 3 rows for its 2 rows"),
        (np.zeros((2, 1, 8)), ValueError, "lane 1 returned rows of shape"),
    ],
)
def test_results_that_do_not_fit_end_the_group(recording, result, error, words):
    group, lanes, _ = recording()
    lanes[0].results["prefill"] = np.zeros((1, 1, 4))
    lanes[1].results["prefill"] = result
    with pytest.raises(error, match=words):
        group.prefill_forward(TOKENS, TABLE, empty_slots=[2, 0, 3])
    assert group.terminal


def test_a_call_without_rows(recording):
    group, _, log = recording()
    tokens = group.prefill_forward(np.zeros((0, 5), np.int64), np.zeros((0, 1), np.int32))
    assert tokens.dtype == np.int64
    assert tokens.shape == (0,)
    assert log == []


@pytest.mark.covers("LAN-27")
def test_lanes_and_their_facts(recording):
    mesh = object()
    group, lanes, _ = recording(mesh_device=mesh)
    assert group.mesh_device is mesh
    assert group.lanes == group.executors == lanes
    assert (group.tt_data_parallel, group.per_lane_max_batch_size, group.max_batch_size) == (2, 2, 4)
    assert group.mesh_devices == ["mesh 0", "mesh 1"]
    assert group.model == [lane.model for lane in lanes]
    assert group.model_args == ["arguments 0", "arguments 1"]
    assert group.eager_execution == ("eager 0", "eager 1")
    assert group.traced_decode_execution == ("traced decode 0", "traced decode 1")
    assert group.cache_path == "cache 0"
    assert group.paged_kv_cache_config == ("config 0", "config 1")
    assert group.requires_prefill_trace_warmup is True
    assert recording()[0].mesh_device == ("mesh 0", "mesh 1")
    assert recording(traceable=False)[0].traced_prefill_execution is None


def test_a_coverage_miss_of_the_first_lane_to_run_is_a_refusal(recording):
    """A lane that cannot be checked beforehand still says by the type that nothing has executed."""
    group, lanes, log = recording()
    lanes[0].errors["prefill"] = [coverage_miss()]
    with pytest.raises(TraceCoverageError, match="not available in lane 0"):
        group.prefill_forward(TOKENS, TABLE)
    assert not group.terminal
    lanes[1].errors["prefill"] = [coverage_miss()]
    with pytest.raises(TraceCoverageError) as caught:
        group.prefill_forward(TOKENS, TABLE)
    assert caught.value.lane == 1
    assert group.terminal
    assert log[-2:] == [("cleanup", 0), ("cleanup", 1)]


class PreparingTarget:
    """A traced target that prepares a call itself and has no runtimes that could be asked."""

    def __init__(self, lane, error=None):
        self.lane, self.error = lane, error

    def prepare_prefill(self, **fields):
        self.lane.note("prepare", **fields)
        return ("prepared", fields)

    def preflight_prefill(self, prepared):
        self.lane.note("preflight")
        if self.error is not None:
            raise self.error
        return ("covered", prepared)

    def execute_prepared_prefill(self, covered, *, batch_size, sampling_params, lane):
        self.lane.note("execute", batch_size=batch_size, sampling_params=sampling_params, lane=lane)
        assert covered[0] == "covered"
        return covered[1][1]["tokens"][:, 0] + 100 * lane


@pytest.mark.covers("LAN-19")
def test_prepared_work_is_what_runs_later(recording):
    group, lanes, log = recording()
    checked = []
    for lane in lanes:
        lane.traced_prefill_execution = PreparingTarget(lane)
        lane._validate_bound_cache = checked.append
    tokens = group.prefill_forward(
        TOKENS,
        TABLE,
        empty_slots=[3, 0, 2],
        kv_cache=["cache 0", "cache 1"],
        execution=[lane.traced_prefill_execution for lane in lanes],
    )
    assert tokens.tolist() == [110, 11, 112]
    order = [(name, lane) for name in ("prepare", "preflight") for lane in (0, 1)]
    assert log == [order[0], order[2], order[1], order[3], ("execute", 0), ("execute", 1)]
    assert checked == ["cache 0", "cache 1"]
    assert lanes[1].last("execute") == {"batch_size": 2, "sampling_params": None, "lane": 1}
    assert "kv_cache" not in lanes[1].last("prepare")


def test_a_miss_of_the_last_target_runs_nothing(recording):
    group, lanes, log = recording()
    lanes[0].traced_prefill_execution = PreparingTarget(lanes[0])
    lanes[1].traced_prefill_execution = PreparingTarget(lanes[1], coverage_miss())
    with pytest.raises(TraceCoverageError, match="not available in lane 1") as caught:
        group.prefill_forward(TOKENS, TABLE)
    assert caught.value.lane == 1
    assert not any(name == "execute" for name, _ in log)
    assert not group.terminal


def test_an_executor_that_keeps_the_result_of_its_target_cannot_be_checked(eager_lanes, monkeypatch):
    lane = eager_lanes.lanes[1]
    monkeypatch.setattr(lane, "prefill_forward", lambda **call: None)
    with pytest.raises(TypeError, match="prefill_forward must return what its execution target returns") as caught:
        eager_lanes.group.prefill_forward(TOKENS[:2], eager_lanes.serving.table[[0, 2]], empty_slots=[0, 2])
    assert caught.value.lane == 1
    assert not eager_lanes.group.terminal
