# SPDX-License-Identifier: Apache-2.0
"""Eager and traced executors: what they call, in which order, and what they refuse before any device work."""

from __future__ import annotations

import inspect
import json
import logging
import types

import numpy as np
import pytest

import ttnn_twin as ttnn
from llm_runtime._core import PrefillChunk, PrefillRequest
from llm_runtime.execution import EagerExecutor, TraceCoverageError, TracedExecutor
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.trace_compiler import RefreshDecision, TraceCompiler
from support.recording_runtimes import ProgramSignature, RecordingDecode, RecordingPrefill, Request, Step

TOKENS = np.zeros((2, 4), np.int64)
TABLE = np.zeros((2, 1), np.int32)
PREFILL = {"tokens": TOKENS, "page_table": TABLE}
DECODE = {"tokens": TOKENS[:, 0], "start_pos": TOKENS[:, 0], "page_table": TABLE}


class Lane:
    """One lane of recording runtimes with both executors; `log` holds the calls of both runtimes in order."""

    def __init__(self, mesh, *, trace_mode="all"):
        self.mesh = mesh
        self.log = []
        self.prefill = RecordingPrefill(mesh, self.log)
        self.decode = RecordingDecode(mesh, self.log)
        self.programs = ProgramCompiler(mesh, lambda: "bound cache")
        self.eager = EagerExecutor(prefill=self.prefill, decode=self.decode, program_compiler=self.programs)
        self.traces = TraceCompiler(self.programs)
        self.traced = TracedExecutor(eager=self.eager, trace_compiler=self.traces, trace_mode=trace_mode)

    def calls(self):
        return [entry[0] for entry in self.log]

    def warm(self, *requests, step=None):
        """Compile, register and capture requests and a step, then clear the log."""
        self.prefill.requests = requests
        self.traced.compile_prefill(**PREFILL)
        if step is not None:
            self.decode.step = step
            self.traced.compile_decode(**DECODE)
        self.traces.capture_all()
        self.log.clear()


@pytest.fixture
def lane(mesh):
    return Lane(mesh)


def public(executor):
    return [name for name in dir(executor) if not name.startswith("_")]


@pytest.mark.covers("EXE-01")
def test_executors_expose_what_they_compose(lane):
    assert lane.eager.prefill is lane.prefill
    assert lane.eager.decode is lane.decode
    assert lane.eager.program_compiler is lane.programs
    assert lane.traced.eager_executor is lane.eager
    assert lane.traced.trace_compiler is lane.traces
    assert not isinstance(lane.traced, EagerExecutor)
    assert not any("cleanup" in name or "release" in name for name in public(lane.eager) + public(lane.traced))


@pytest.mark.covers("EXE-02")
def test_a_trace_compiler_over_other_programs_is_refused(lane, mesh):
    other = TraceCompiler(ProgramCompiler(mesh, lambda: None))
    with pytest.raises(ValueError, match="eager executor's program compiler"):
        TracedExecutor(eager=lane.eager, trace_compiler=other)


def test_collaborators_and_mode_are_checked(lane):
    good = {"prefill": lane.prefill, "decode": lane.decode, "program_compiler": lane.programs}
    for name in good:
        with pytest.raises(TypeError, match=name):
            EagerExecutor(**{**good, name: object()})
    with pytest.raises(TypeError, match="eager"):
        TracedExecutor(eager=object(), trace_compiler=lane.traces)
    with pytest.raises(TypeError, match="trace_compiler"):
        TracedExecutor(eager=lane.eager, trace_compiler=object())
    with pytest.raises(ValueError, match="trace_mode"):
        TracedExecutor(eager=lane.eager, trace_compiler=lane.traces, trace_mode="none")


@pytest.mark.covers("EXE-03")
def test_eager_and_traced_calls_have_one_shape(lane):
    prefill = {
        "prompt_lens": None,
        "start_pos": None,
        "empty_slots": None,
        "sampling_params": None,
        "prompt_tokens": None,
        "output_tokens": None,
        "slot_remap": None,
    }
    decode = {
        "sampling_params": None,
        "prompt_tokens": None,
        "output_tokens": None,
        "slot_remap": None,
        "reset_batch": False,
        "reload_inputs": None,
        "reload_page_table": False,
        "reload_sampling_params": False,
        "reset_sampling_state": False,
    }
    shapes = {
        "prefill_forward": (["tokens", "page_table"], prefill),
        "compile_prefill": (["tokens", "page_table"], prefill),
        "decode_forward": (["tokens", "start_pos", "page_table"], {**decode, "read_from_device": True}),
        "compile_decode": (["tokens", "start_pos", "page_table"], decode),
    }
    for executor in (lane.eager, lane.traced):
        for name, (required, optional) in shapes.items():
            parameters = inspect.signature(getattr(executor, name)).parameters.values()
            assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
            defaults = {parameter.name: parameter.default for parameter in parameters}
            assert [key for key, value in defaults.items() if value is inspect.Parameter.empty] == required
            assert {key: value for key, value in defaults.items() if key not in required} == optional


@pytest.mark.covers("EXE-04")
@pytest.mark.parametrize("target", ["eager", "traced"])
@pytest.mark.parametrize("call", ["prefill_forward", "compile_prefill", "decode_forward", "compile_decode"])
def test_kv_cache_is_no_argument(lane, target, call):
    arguments = PREFILL if "prefill" in call else DECODE
    with pytest.raises(TypeError, match="kv_cache"):
        getattr(getattr(lane, target), call)(**arguments, kv_cache=[])
    assert lane.log == []


@pytest.mark.covers("EXE-05")
def test_eager_compile_runs_the_request_once_per_program(lane):
    request = Request("a", programs=("a0", "a1"))
    lane.prefill.requests = (request,)
    fields = dict.fromkeys(("prompt_lens", "start_pos", "empty_slots", "sampling_params"), "given")
    records = lane.eager.compile_prefill(**PREFILL, **fields)
    assert lane.log == [
        ("prepare",),
        ("invoke", request, {"count_tokens": False}),
        ("invoke", request, {"count_tokens": False}),
    ]
    assert lane.prefill.arguments == {**PREFILL, **fields}
    assert [record.signature for record in records] == [ProgramSignature("a0"), ProgramSignature("a1")]
    assert records[0].output_spec.shape == (4,)
    assert lane.mesh.live_tensors() == []
    assert lane.eager.eager_prefill_count == 0


def test_request_state_reaches_prepare_only_when_given(lane):
    lane.prefill.requests = ()
    lane.eager.prefill_forward(**PREFILL, prompt_tokens="p", slot_remap="r")
    assert lane.prefill.arguments["prompt_tokens"] == "p"
    assert lane.prefill.arguments["slot_remap"] == "r"
    assert "output_tokens" not in lane.prefill.arguments
    lane.eager.decode_forward(**DECODE, output_tokens="o")
    assert lane.decode.arguments["output_tokens"] == "o"
    assert "prompt_tokens" not in lane.decode.arguments


@pytest.mark.parametrize(
    "given",
    [
        {"reload_inputs": False},
        {"reload_page_table": True},
        {"reload_sampling_params": True},
        {"reset_sampling_state": True},
    ],
)
def test_decode_commands_travel_as_a_group_or_not_at_all(lane, given):
    group = {
        "reload_inputs": None,
        "reload_page_table": False,
        "reload_sampling_params": False,
        "reset_sampling_state": False,
    }
    lane.eager.decode_forward(**DECODE)
    assert not set(group) & set(lane.decode.arguments)
    lane.eager.decode_forward(**DECODE, **given)
    assert {name: lane.decode.arguments[name] for name in group} == {**group, **given}


def test_eager_prefill_runs_and_counts_requests(lane):
    lane.prefill.requests = (Request("a", 3), Request("b", 4))
    assert lane.eager.prefill_forward(**PREFILL, sampling_params="s") == [3, 4]
    assert lane.log[-1] == ("assembled", 2, "s")
    assert lane.eager.eager_prefill_count == 2
    assert lane.programs.compiled_programs == ()


def test_a_failing_eager_request_leaves_nothing_of_the_earlier_ones(lane):
    run = lane.prefill.body.run

    def tracked(value):
        if value:
            raise OSError("second")
        return run(value)

    lane.prefill.body.run = tracked
    lane.prefill.requests = (Request("a"), Request("b", 1))
    with pytest.raises(OSError, match="second"):
        lane.eager.prefill_forward(**PREFILL)
    assert lane.mesh.live_tensors() == []
    assert lane.eager.eager_prefill_count == 1


@pytest.mark.covers("EXE-20")
def test_eager_after_activation_runs_known_programs_only(lane):
    lane.warm(Request("known", 1))
    assert lane.eager.prefill_forward(**PREFILL) == [1]
    lane.decode.step = Step("never compiled")
    with pytest.raises(RuntimeError, match="has not been compiled"):
        lane.eager.decode_forward(**DECODE)
    assert "decode invoke" not in lane.calls()


def test_the_whole_eager_call_is_checked_before_its_first_request_runs(lane):
    lane.warm(Request("known", 1))
    lane.prefill.requests = (Request("known", 1), Request("unknown"))
    with pytest.raises(RuntimeError, match="unknown"):
        lane.eager.prefill_forward(**PREFILL)
    assert lane.calls() == ["prepare", "ensure trace safe"]
    assert lane.eager.eager_prefill_count == 0


@pytest.mark.covers("EXE-06")
def test_traced_compile_registers_one_plan(lane):
    request = Request("a")
    lane.prefill.requests = (request,)
    lane.traced.compile_prefill(**PREFILL)
    assert lane.calls() == ["prepare", "invoke", "capture plan"]
    assert lane.log[1][1] is lane.log[2][1] is request
    assert lane.traces.trace_count == lane.traces.trace_association_count == 1
    record = lane.traces.registered_coverage("prefill")
    assert [signature.name for _, signature in record] == ["a"]


@pytest.mark.covers("EXE-07", "EXE-08")
def test_programs_with_a_trace_are_not_registered_again(lane):
    lane.prefill.requests = (Request("a"),)
    lane.traced.compile_prefill(**PREFILL)
    lane.traced.compile_decode(**DECODE)
    lane.log.clear()
    lane.traced.compile_prefill(**PREFILL)
    lane.traced.compile_decode(**DECODE)
    assert lane.calls() == ["prepare", "decode prepare"]
    lane.traces.capture_all()
    lane.traced.compile_prefill(**PREFILL)
    lane.traced.compile_decode(**DECODE)
    assert lane.traces.trace_count == 2


@pytest.mark.covers("EXE-09")
def test_the_eager_executor_behind_a_traced_one_stays_eager(lane):
    lane.warm(Request("a", 5))
    assert lane.traced.eager_executor.prefill_forward(**PREFILL) == [5]
    assert lane.calls().count("invoke") == 1
    assert lane.traces.replay_count == 0


@pytest.mark.covers("EXE-10")
def test_eager_decode_without_readback(lane):
    step = Step("d", 2)
    lane.decode.step = step
    output = lane.eager.decode_forward(**DECODE, reset_batch=True, read_from_device=False)
    assert lane.decode.arguments["reset_batch"] is True
    assert lane.calls() == ["decode prepare", "ensure trace safe", "decode invoke", "consume"]
    assert lane.log[2] == ("decode invoke", step, {"device_feedback": False})
    assert lane.log[3][1].value is output
    assert lane.log[3][2] is False
    assert lane.traces.replay_count == 0


def test_eager_compile_of_decode_uses_the_steps_feedback(lane):
    lane.decode.step = Step("d", device_feedback=True)
    lane.eager.compile_decode(**DECODE)
    assert lane.log[-1] == ("decode invoke", lane.decode.step, {"device_feedback": True, "count_tokens": False})
    assert lane.mesh.live_tensors() == []


@pytest.mark.covers("EXE-11")
def test_traced_prefill_of_one_request(lane):
    request = Request("a", 7, workspace=False)
    lane.warm(request)
    assert lane.traced.prefill_forward(**PREFILL) == [7]
    assert lane.calls() == ["prepare", "ensure trace safe", "refresh", "finish", "read", "assembled"]
    persistent = lane.prefill.body.persistent[0]
    assert lane.log[2] == ("refresh", request, persistent, persistent, 0)
    assert lane.log[2][2] is lane.log[2][3] is persistent
    assert lane.log[3][2] is persistent["y"]
    assert lane.log[3][3] is persistent
    assert lane.traces.replay_counts == {"prefill": 1, "decode": 0}


@pytest.mark.covers("EXE-21")
def test_chunks_are_replayed_in_order_and_finished_once(lane):
    request = Request("a", 10, chunks=(0, 1, 2))
    lane.warm(request)
    assert lane.traced.prefill_forward(**PREFILL) == [12]
    steps = [entry for entry in lane.log if entry[0] in ("refresh", "finish")]
    assert [entry[0] for entry in steps] == ["refresh"] * 3 + ["finish"]
    assert [entry[4] for entry in steps[:3]] == [0, 1, 2]
    workspaces = [entry[3] for entry in steps]
    assert all(workspace is workspaces[0] for workspace in workspaces)
    assert workspaces[0] == ["workspace", "a"]
    assert lane.traces.replay_count == 3


def test_requests_of_one_trace_are_consumed_one_by_one(lane):
    first, second = Request("a", 1), Request("a", 2)
    lane.warm(first)
    lane.prefill.requests = (first, second)
    assert lane.traced.prefill_forward(**PREFILL) == [1, 2]
    order = [(entry[0], entry[1].value) for entry in lane.log if entry[0] in ("refresh", "read")]
    assert order == [("refresh", 1), ("read", 1), ("refresh", 2), ("read", 2)]


@pytest.mark.covers("EXE-12", "T22")
def test_a_registered_but_uncaptured_prefill_is_a_coverage_error(lane):
    lane.prefill.requests = (Request("a"),)
    (program,) = lane.traced.compile_prefill(**PREFILL)
    lane.log.clear()
    with pytest.raises(RuntimeError, match="required prefill trace") as raised:
        lane.traced.prefill_forward(**PREFILL)
    error = raised.value
    assert isinstance(error, TraceCoverageError)
    trace_digest = lane.traces.trace_key_for_program(program.key).digest
    assert (error.operation, error.trace_mode, error.model) == ("prefill", "all", "numpy.random._generator.Generator")
    assert error.signature_material == (("name", "a"),)
    assert error.digest == error.trace_key == trace_digest
    assert error.program_key == program.key.digest
    assert error.coverage == ((trace_digest, (("name", "a"),), False),)
    for part in (
        "operation=prefill",
        "trace mode=all",
        "('name', 'a')",
        trace_digest,
        program.key.digest,
        "registered, not captured",
        "barrier was not reached",
        "trace mode none",
    ):
        assert part in str(error)
    assert lane.traced.coverage_miss_count == 1
    assert lane.calls() == ["prepare"]


@pytest.mark.covers("EXE-13")
def test_an_ineligible_request_is_refused_although_its_program_is_traced(lane):
    lane.warm(Request("a"))
    lane.prefill.requests = (Request("a", traceable=False),)
    with pytest.raises(TraceCoverageError, match="not trace-eligible"):
        lane.traced.prefill_forward(**PREFILL)
    assert lane.traces.replay_count == 0
    assert lane.calls() == ["prepare"]


@pytest.mark.covers("EXE-19")
def test_one_uncovered_request_stops_the_whole_call(lane):
    lane.warm(Request("a"), Request("b"))
    writes = lane.mesh.counters.bytes_to_device
    lane.prefill.requests = (Request("a"), Request("b"), Request("c"))
    with pytest.raises(TraceCoverageError) as raised:
        lane.traced.prefill_forward(**PREFILL)
    assert raised.value.signature_material == (("name", "c"),)
    assert raised.value.nearest == ("name", "c", "a")
    assert [captured for _, _, captured in raised.value.coverage] == [True, True]
    assert raised.value.trace_key == "unavailable"
    assert lane.traced.coverage_miss_count == 1
    assert lane.traces.replay_count == 0
    assert lane.calls() == ["prepare"]
    assert lane.mesh.counters.bytes_to_device == writes


def test_a_lane_can_be_added_to_a_coverage_error(lane):
    lane.prefill.requests = (Request("a"),)
    with pytest.raises(TraceCoverageError) as raised:
        lane.traced.prefill_forward(**PREFILL)
    assert "lane" not in str(raised.value)
    raised.value.lane = 3
    assert "in lane 3" in str(raised.value)


@pytest.mark.covers("EXE-14")
def test_a_decode_miss_comes_before_any_other_call(mesh):
    lane = Lane(mesh, trace_mode="decode_only")
    lane.decode.step = Step("d")
    with pytest.raises(TraceCoverageError, match="required decode trace") as raised:
        lane.traced.decode_forward(**DECODE)
    program_digest = lane.programs.key_for(ProgramSignature("d")).digest
    for part in ("operation=decode", "trace mode=decode_only", program_digest, "trace key=unavailable", "coverage=[]"):
        assert part in str(raised.value)
    assert raised.value.model == "RecordingDecode"
    assert lane.traced.coverage_miss_count == 1
    assert lane.calls() == ["decode prepare"]


@pytest.mark.covers("EXE-18")
def test_mode_decode_only_leaves_prefill_to_the_eager_executor(mesh):
    lane = Lane(mesh, trace_mode="decode_only")
    lane.prefill.requests = (Request("a", 2),)
    lane.eager.compile_prefill(**PREFILL)
    lane.traced.compile_decode(**DECODE)
    lane.traces.capture_all()
    assert lane.traced.eager_executor.prefill_forward(**PREFILL) == [2]
    assert lane.traced.coverage_miss_count == 0
    assert lane.traced.decode_forward(**DECODE) == [0] * 4


def real_request(*, rows, chunks=1):
    """A real planned request of 15 active rows padded to 16, or a smaller one."""
    padded = 1 << (rows - 1).bit_length()
    table = np.full((padded, 8), -1, np.int32)
    return PrefillRequest(
        kind="batched" if rows > 1 else "single",
        source_rows=tuple(range(rows)),
        slots=tuple(range(rows)),
        prompt_lengths=(100,) * rows,
        cached_tokens=(0,) * rows,
        last_token_indices=(99,) * rows,
        tokens=np.zeros((padded, 128), np.int64),
        page_table=table,
        padded_sequence_length=128,
        padded_batch_size=padded,
        chunks=(
            PrefillChunk(
                token_slice=slice(0, 128),
                chunk_start_idx=0,
                chunk_size=128,
                chunk_page_table=None,
                contains_last_token=True,
            ),
        ),
        uses_chunked_prefill=False,
    )


class PlannedRequest(Request):
    """A recording request around a really planned one; its single chunk adds nothing."""

    request = real_request(rows=15)

    @property
    def program_signatures(self):
        return (ProgramSignature(self.name, "regular-batched"),)


@pytest.fixture
def planned(lane, monkeypatch):
    write = lane.prefill.refresh_trace
    monkeypatch.setattr(
        lane.prefill,
        "refresh_trace",
        lambda prepared, persistent, workspace, chunk: write(prepared, persistent, workspace, 0),
    )
    request = PlannedRequest("wave", sampling_path="topk")
    lane.warm(request)
    return request


@pytest.mark.covers("EXE-15")
def test_evidence_of_a_replayed_wave(lane, planned, caplog):
    prepared = lane.traced.prepare_prefill(**PREFILL)
    preflighted = lane.traced.preflight_prefill(prepared)
    ((program_key, record),) = preflighted[0][1]
    assert record.captured
    with caplog.at_level(logging.INFO, logger="llm_runtime"):
        lane.traced.execute_prepared_prefill(preflighted, batch_size=15, lane=3)
    (evidence,) = lane.traced.recent_prefill_replay_evidence
    trace_key = lane.traces.trace_key_for_program(program_key)
    assert vars(evidence) == {
        "operation": "prefill",
        "variant": "regular-batched",
        "sampling_path": "topk",
        "execution": "trace_replay",
        "active_batch_size": 15,
        "padded_batch_size": 16,
        "padded_sequence_length": 128,
        "lane": 3,
        "rank": 3,
        "program_key": program_key.digest,
        "trace_key": trace_key.digest,
        "replay_steps": 1,
    }
    (line,) = [entry.getMessage() for entry in caplog.records if "EVIDENCE" in entry.getMessage()]
    tag, payload = line.split(" ", 1)
    assert tag == "TTTV2_RUNTIME_EVIDENCE"
    assert json.loads(payload) == vars(evidence)


def test_evidence_is_empty_after_a_failed_call(lane, planned):
    lane.traced.prefill_forward(**PREFILL)
    assert len(lane.traced.recent_prefill_replay_evidence) == 1
    lane.prefill.body.fail["assembled"] = OSError("late")
    with pytest.raises(OSError, match="late"):
        lane.traced.prefill_forward(**PREFILL)
    assert lane.traced.recent_prefill_replay_evidence == ()


@pytest.mark.covers("EXE-16")
def test_summary_before_any_use(lane, caplog):
    expected = {
        "eager_prefill_executions": 0,
        "semantic_program_count": 0,
        "rejected_post_activation_compile_attempts": 0,
        "ttnn_program_cache_count": 0,
        "successful_trace_replays": 0,
        "trace_replays_by_operation": {"prefill": 0, "decode": 0},
        "strict_coverage_misses": 0,
        "semantic_trace_count": 0,
        "trace_association_count": 0,
    }
    assert lane.traced.runtime_summary() == expected
    with caplog.at_level(logging.INFO, logger="llm_runtime"):
        assert lane.traced.log_runtime_summary(phase="start") == {**expected, "phase": "start"}
    (message,) = caplog.messages
    assert message == "TTTV2_RUNTIME_SUMMARY " + json.dumps({**expected, "phase": "start"}, sort_keys=True)


def test_summary_after_use(lane):
    lane.warm(Request("a"), step=Step("d"))
    lane.traced.prefill_forward(**PREFILL)
    lane.traced.decode_forward(**DECODE)
    lane.eager.prefill_forward(**PREFILL)
    lane.decode.step = Step("unknown")
    with pytest.raises(TraceCoverageError):
        lane.traced.decode_forward(**DECODE)
    with pytest.raises(RuntimeError):
        lane.eager.compile_decode(**DECODE)
    assert lane.traced.runtime_summary() == {
        "eager_prefill_executions": 1,
        "semantic_program_count": 2,
        "rejected_post_activation_compile_attempts": 1,
        "ttnn_program_cache_count": 1,
        "successful_trace_replays": 2,
        "trace_replays_by_operation": {"prefill": 1, "decode": 1},
        "strict_coverage_misses": 1,
        "semantic_trace_count": 2,
        "trace_association_count": 2,
    }


@pytest.mark.covers("EXE-17")
def test_traced_decode_without_readback(lane):
    lane.warm(step=Step("d", 6, reset_batch=True))
    output = lane.traced.decode_forward(**DECODE, reset_batch=True, read_from_device=False)
    step = lane.decode.step
    assert lane.log[:5] == [
        ("decode prepare",),
        ("ensure trace safe",),
        ("validate", step),
        ("decode refresh", step, RefreshDecision(True, False, ("sampling",))),
        ("note submitted", step),
    ]
    name, result, read = lane.log[5]
    assert (name, read) == ("consume", False)
    assert result.owned is None
    assert result.is_tokens is False
    assert result.value is output
    assert output.cpu().to_numpy().tolist() == [6] * 4


def test_a_sampled_step_hands_out_tokens(lane):
    lane.warm(step=Step("d", sampling_params="greedy"))
    lane.traced.decode_forward(**DECODE, sampling_params="greedy")
    assert lane.log[-1][1].is_tokens is True


def test_steady_decode_decisions(lane):
    lane.warm(Request("a"), step=Step("d"))

    def decide(**fields):
        lane.decode.step = Step("d", **fields)
        lane.log.clear()
        lane.traced.decode_forward(**DECODE)
        decision = next(entry[2] for entry in lane.log if entry[0] == "decode refresh")
        return decision.full, decision.page_table

    assert decide() == (True, False)
    assert decide() == (False, False)
    assert decide(page_table_changed=True) == (False, True)
    assert decide(reset_batch=True) == (True, False)
    assert decide(device_feedback=False) == (True, False)
    lane.traced.prefill_forward(**PREFILL)
    assert decide() == (True, False)
    assert decide(reload_inputs=False, reload_page_table=True) == (False, True)
    assert decide(reload_inputs=True, page_table_changed=True) == (True, False)
    lane.decode.config = types.SimpleNamespace(position_feedback_capable=False)
    assert decide() == (True, False)


@pytest.mark.parametrize("when", ["validate", "ensure trace safe"])
def test_a_refusal_before_the_refresh_leaves_decode_usable(lane, when):
    lane.warm(step=Step("d", 1))
    lane.decode.body.fail[when] = LookupError("no")
    with pytest.raises(LookupError):
        lane.traced.decode_forward(**DECODE)
    lane.decode.body.fail.clear()
    lane.decode.step = Step("d", 1, reload_inputs=False)
    with pytest.raises(RuntimeError):
        lane.traced.decode_forward(**DECODE)
    assert "invalidate" not in lane.calls()
    lane.decode.step = Step("d", 1)
    assert lane.traced.decode_forward(**DECODE) == [1] * 4


@pytest.mark.parametrize("op", ["copy_host_to_device_tensor", "execute_trace"])
def test_a_failure_after_the_refresh_began_invalidates_decode(lane, op):
    lane.warm(step=Step("d", 1))
    lane.mesh.faults.fail(op=op, error=OSError("device"))
    with pytest.raises(OSError, match="device"):
        lane.traced.decode_forward(**DECODE)
    assert lane.calls()[-1] == "invalidate"
    assert "note submitted" not in lane.calls()
    with pytest.raises(RuntimeError, match="earlier replay failed"):
        lane.traced.decode_forward(**DECODE)
    lane.traces.cleanup()
    assert lane.mesh.live_tensors() == []


def test_a_failure_of_a_later_chunk_poisons_the_traces(lane):
    lane.warm(Request("a", chunks=(0, 1)))
    lane.mesh.faults.fail(op="execute_trace", at=2, error=OSError("device"))
    with pytest.raises(OSError, match="device"):
        lane.traced.prefill_forward(**PREFILL)
    assert lane.calls()[-1] == "refresh"
    with pytest.raises(RuntimeError, match="earlier replay failed"):
        lane.traced.prefill_forward(**PREFILL)


def test_a_request_without_chunks_or_with_two_programs_is_refused(lane):
    two = Request("two", programs=("p", "q"))
    lane.warm(Request("a"), two)
    lane.prefill.requests = (two,)
    with pytest.raises(RuntimeError, match="exactly one program geometry"):
        lane.traced.prefill_forward(**PREFILL)
    lane.prefill.requests = (Request("a", chunks=()),)
    with pytest.raises(RuntimeError, match="no chunk"):
        lane.traced.prefill_forward(**PREFILL)
    assert lane.traces.replay_count == 0


def test_executors_on_two_lanes_do_not_share_state():
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), trace_region_size=1 << 20)
    lanes = [Lane(submesh) for submesh in mesh.create_submeshes(ttnn.MeshShape(1, 1))]
    lanes[0].warm(step=Step("d", 1))
    lanes[1].warm(step=Step("d", 2))
    assert [lane.traced.decode_forward(**DECODE) for lane in lanes] == [[1] * 4, [2] * 4]
    assert [lane.traces.replay_count for lane in lanes] == [1, 1]
    ttnn.close_mesh_device(mesh)
