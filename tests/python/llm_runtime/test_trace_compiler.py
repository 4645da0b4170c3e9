# SPDX-License-Identifier: Apache-2.0
"""The trace registry: registration, capture, replay and cleanup on the twin."""

from __future__ import annotations

import pytest

import ttnn_twin as ttnn
from llm_runtime.digest import ProgramKey, TraceKey
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.trace_compiler import (
    InputRefreshPolicy,
    PersistentInputs,
    RefreshDecision,
    TraceCapturePlan,
    TraceCompiler,
)
from support.trace_bench import Signature, TraceBench


@pytest.fixture
def bench(mesh):
    return TraceBench(mesh)


@pytest.fixture
def active(bench):
    """Decode traces `a` and `b`, captured."""
    bench.register("a")
    bench.register("b")
    bench.traces.capture_all()
    bench.events.clear()
    return bench


def decisions(bench):
    return [event[2] for event in bench.events if event[0] == "refresh"]


@pytest.mark.parametrize("wrong", [None, object(), "programs"])
def test_only_a_program_compiler_is_composed(wrong):
    with pytest.raises(TypeError, match="program_compiler must be a ProgramCompiler"):
        TraceCompiler(wrong)


@pytest.mark.covers("TRC-01")
def test_registration_associates_without_mixing_the_registries(bench):
    key = bench.register("a")
    assert bench.traces.program_compiler is bench.programs
    assert bench.traces.mesh_device is bench.mesh
    assert bench.traces.trace_key_for_program(bench.key("a")) is key
    program, trace = bench.programs.compiled_programs[0], bench.traces.get(key)
    assert not hasattr(program, "artifact")
    assert trace.artifact is None
    assert not any("program" in name for name in vars(trace))
    assert bench.traces.workspace_for_program(bench.key("a")) is None
    assert bench.events == []


@pytest.mark.covers("TRC-02")
def test_two_programs_share_one_trace(bench):
    first = bench.register("a", trace="shared")
    second = bench.register("b", trace="shared")
    assert first is second
    bench.traces.capture_all()
    assert bench.mesh.counters.calls["begin_trace_capture"] == 1
    assert (bench.traces.trace_count, bench.traces.trace_association_count) == (1, 2)
    assert bench.traces.registered_coverage("decode") == ((first, Signature("shared")),)
    assert bench.traces.registered_coverage("prefill") == ()
    assert [record.signature.name for record in bench.programs.compiled_programs] == ["a", "b"]
    assert bench.replay("a", 3) == bench.replay("b", 3) == [3] * 4
    with pytest.raises(ValueError, match="operation"):
        bench.traces.registered_coverage("train")


def test_the_first_plan_captures_and_every_program_has_its_workspace(bench):
    bench.register("a", trace="shared", workspace=True)
    bench.register("b", trace="shared", workspace=True)
    bench.traces.capture_all()
    assert [event for event in bench.events if event[0] == "capture"] == [("capture", "a")]
    for name in "ab":
        assert bench.traces.workspace_for_program(bench.key(name)) is bench.made[name, "workspace"]


def test_registering_again_changes_nothing(bench):
    first = bench.plan("a", workspace_fingerprint="w")
    key = bench.traces.register_capture_plan(first)
    assert bench.traces.register_capture_plan(bench.plan("a", workspace_fingerprint="w")) is key
    assert (bench.traces.trace_count, bench.traces.trace_association_count) == (1, 1)


@pytest.mark.covers("TRC-03")
@pytest.mark.parametrize(
    ("change", "error", "essence"),
    [
        ({"schema_fingerprint": "v2"}, ValueError, "different schema fingerprint"),
        ({"refresh_policy": InputRefreshPolicy(every_replay=("x",))}, ValueError, "refresh policy"),
        ({"operation": "prefill"}, RuntimeError, "decode trace, not prefill"),
    ],
)
def test_a_contradicting_alias_is_refused_and_changes_nothing(bench, change, error, essence):
    bench.register("a", trace="shared", schema_fingerprint="v1")
    fields = {"schema_fingerprint": "v1", **change}
    with pytest.raises(error, match=essence):
        bench.register("b", trace="shared", **fields)
    assert (bench.traces.trace_count, bench.traces.trace_association_count) == (1, 1)
    assert bench.traces.trace_key_for_program(bench.key("b")) is None
    bench.register("b", trace="shared", schema_fingerprint="v1")


def test_a_program_keeps_its_trace_and_its_workspace_fingerprint(bench):
    bench.register("a", workspace_fingerprint="v1")
    with pytest.raises(ValueError, match="already has trace"):
        bench.register("a", trace="other", workspace_fingerprint="v1")
    with pytest.raises(ValueError, match="workspace fingerprint 'v1', not 'v2'"):
        bench.register("a", workspace_fingerprint="v2")
    assert bench.traces.trace_count == 1


def test_equal_material_of_unequal_signatures_collides(bench):
    class Fussy:
        def key_material(self):
            return ("same",)

    bench.register("a", trace_signature=Fussy())
    with pytest.raises(RuntimeError, match="collision"):
        bench.register("b", trace_signature=Fussy())


@pytest.mark.covers("T18")
def test_a_program_that_is_not_compiled_cannot_be_registered(bench):
    plan = bench.plan("a")
    unknown = TraceCapturePlan(
        program_key=ProgramKey("a" * 64),
        trace_signature=Signature("a"),
        operation="decode",
        prepare_inputs=plan.prepare_inputs,
        capture=plan.capture,
    )
    with pytest.raises(RuntimeError, match="has not been compiled"):
        bench.traces.register_capture_plan(unknown)
    assert bench.traces.trace_count == 0


def test_plans_are_checked():
    fields = {
        "program_key": ProgramKey("a" * 64),
        "trace_signature": Signature("a"),
        "operation": "decode",
        "prepare_inputs": list,
        "capture": list,
    }
    assert TraceCapturePlan(**fields).refresh_policy == InputRefreshPolicy()
    with pytest.raises(ValueError, match="operation"):
        TraceCapturePlan(**{**fields, "operation": "train"})
    for half in ("prime", "release_prime_output"):
        with pytest.raises(ValueError, match="together"):
            TraceCapturePlan(**fields, **{half: list})


def test_queries_about_unknown_things(bench):
    bench.compile("a")
    assert bench.traces.get(TraceKey("a" * 64)) is None
    assert bench.traces.trace_key_for_program(bench.key("a")) is None
    assert bench.traces.trace_key_for_program(bench.key("never compiled")) is None
    with pytest.raises(RuntimeError, match="no trace association"):
        bench.traces.workspace_for_program(bench.key("a"))


def test_capturing_nothing_does_not_activate(bench):
    bench.traces.capture_all()
    assert not bench.traces.trace_active
    assert not bench.programs.gate_closed
    bench.register("a")


@pytest.mark.covers("TRC-04", "T02", "T04", "T05")
def test_all_inputs_exist_before_the_first_capture(bench):
    live_during_capture = []

    def capture(persistent):
        live_during_capture.append(bench.live())
        assert bench.programs.trace_capture_in_progress
        with pytest.raises(RuntimeError, match="capture is in progress"):
            bench.compile("new")
        with pytest.raises(RuntimeError, match="capturing"):
            bench.traces.register_capture_plan(plan)
        ttnn.copy(persistent.values["x"], persistent.values["y"])
        return persistent.values["y"]

    plan = bench.plan("a", capture=capture)
    bench.traces.register_capture_plan(plan)
    bench.register("b", capture=capture, workspace=True)
    bench.traces.capture_all()
    assert live_during_capture == [5, 5]
    assert bench.live() == 5
    assert bench.traces.trace_active and bench.programs.trace_active
    assert not bench.programs.trace_capture_in_progress
    with pytest.raises(RuntimeError, match="after trace activation"):
        bench.compile("new")
    with pytest.raises(RuntimeError, match="active"):
        bench.traces.register_capture_plan(plan)
    assert bench.mesh.counters.compiles == 1
    bench.traces.capture_all()
    assert bench.mesh.counters.captures == 2
    artifact = bench.traces.get(bench.traces.trace_key_for_program(bench.key("a"))).artifact
    assert artifact.persistent_inputs.values is bench.made["a"]


@pytest.mark.covers("TRC-05")
def test_priming_precedes_every_capture(bench):
    device_calls = bench.mesh.counters.calls

    def logged(event):
        return lambda *args: bench.events.append((event, device_calls["synchronize_device"], *args[1:]))

    bench.register(
        "a", primed=True, workspace=True, prepare_capture=logged("prepare"), prime_workspace=logged("prime workspace")
    )
    bench.register("b", primed=True)
    start = device_calls["synchronize_device"]
    bench.traces.capture_all()
    assert bench.events == [
        ("inputs", "a"),
        ("inputs", "b"),
        ("workspace", "a"),
        ("prepare", start),
        ("prime", "a"),
        ("release prime", "a", "output"),
        ("prime", "b"),
        ("release prime", "b", "output"),
        ("prime workspace", start + 4, bench.made["a", "workspace"]),
        ("prepare", start + 4),
        ("capture", "a"),
        ("capture", "b"),
    ]


def test_the_gate_is_open_while_priming(bench):
    gates = []

    def prime(persistent):
        gates.append((bench.programs.gate_closed, isinstance(persistent, PersistentInputs)))

    bench.register("a", prime=prime, release_prime_output=lambda output: [])
    bench.traces.capture_all()
    assert gates == [(False, True)]


@pytest.mark.covers("TRC-07", "T01")
def test_decode_is_captured_before_prefill_in_registration_order(bench):
    for name, operation in (("p1", "prefill"), ("d1", "decode"), ("p2", "prefill"), ("d2", "decode")):
        bench.register(name, operation=operation)
    bench.traces.capture_all()
    assert [name for kind, name in bench.events if kind == "inputs"] == ["p1", "d1", "p2", "d2"]
    assert [name for kind, name in bench.events if kind == "capture"] == ["d1", "d2", "p1", "p2"]
    for value, name in enumerate(("p1", "d1", "p2", "d2")):
        assert bench.replay(name, value) == [value] * 4


def test_retained_outputs_are_acknowledged(bench, monkeypatch):
    kept = []
    monkeypatch.setattr(ttnn.tools.trace_allocation_tracker, "acknowledge_corruptible", kept.append)

    def capture(persistent):
        ttnn.copy(persistent.values["x"], persistent.values["y"])
        return {"nested": (persistent.values["y"], [persistent.values["x"]]), "none": None}

    bench.register("a", capture=capture)
    bench.traces.capture_all()
    assert [tensor is bench.made["a"][name] for tensor, name in zip(kept, "yx", strict=True)] == [True, True]


def test_a_device_library_without_a_tracker_is_fine(bench, monkeypatch):
    monkeypatch.delattr(ttnn, "tools")
    monkeypatch.delattr(ttnn, "acknowledge_corruptible", raising=False)
    bench.register("a")
    bench.traces.capture_all()
    assert bench.traces.trace_active


FEEDBACK = {"device_feedback_enabled": True, "feedback_compatible": True}


@pytest.mark.covers("TRC-09", "TRC-12", "TRC-14", "TRC-15")
def test_refresh_decisions(mesh, monkeypatch):
    bench = TraceBench(mesh)
    policy = InputRefreshPolicy(every_replay=("position", "sampling"))
    for name in "ab":
        bench.register(name, refresh_policy=policy)
    bench.traces.capture_all()
    submitted = []
    real = ttnn.execute_trace
    monkeypatch.setattr(ttnn, "execute_trace", lambda mesh, tid, **kw: (submitted.append(kw), real(mesh, tid, **kw)))
    bench.replay("a", **FEEDBACK)
    bench.replay("a", **FEEDBACK, page_table_changed=True)
    bench.replay("b", **FEEDBACK)
    bench.replay("b")
    bench.replay("b", **FEEDBACK)
    bench.replay("b", **FEEDBACK, reset_batch=True)
    bench.replay("b", device_feedback_enabled=True)
    fields = ("position", "sampling")
    flags = [(True, False), (False, True), (True, False), (True, False), (False, False), (True, False), (True, False)]
    assert decisions(bench) == [RefreshDecision(full, table, fields) for full, table in flags]
    assert bench.traces.replay_count == 7
    assert bench.traces.replay_counts == {"prefill": 0, "decode": 7}
    assert submitted == [{"cq_id": 0, "blocking": False}] * 7


def test_going_to_another_trace_and_back_is_a_switch(active):
    for name in ("a", "a", "b", "a"):
        active.replay(name, **FEEDBACK)
    assert [decision.full for decision in decisions(active)] == [True, False, True, True]


def test_policy_flags_switch_their_rule_off(bench):
    off = InputRefreshPolicy(
        full_on_batch_reset=False,
        full_on_graph_switch=False,
        full_without_device_feedback=False,
        refresh_page_table_on_change=False,
    )
    bench.register("a", refresh_policy=off)
    bench.traces.capture_all()
    bench.replay("a", reset_batch=True, page_table_changed=True)
    assert decisions(bench) == [RefreshDecision(False, False, ())]


def test_explicit_commands_replace_the_policy(bench):
    bench.register("a", refresh_policy=InputRefreshPolicy(every_replay=("position",)))
    bench.traces.capture_all()
    bench.replay("a", **FEEDBACK, reload_inputs=True)
    bench.replay("a", **FEEDBACK, reload_inputs=False, reload_page_table=True, page_table_changed=True)
    bench.replay("a", **FEEDBACK, reload_inputs=False, reload_sampling_params=True, reset_batch=True)
    assert decisions(bench) == [
        RefreshDecision(True, False, ()),
        RefreshDecision(False, True, ()),
        RefreshDecision(False, False, ("sampling",)),
    ]


def test_impossible_commands_are_refused_without_poisoning(active):
    with pytest.raises(ValueError):
        active.replay("a", **FEEDBACK, reload_inputs=True, reload_page_table=True)
    with pytest.raises(RuntimeError):
        active.replay("a", **FEEDBACK, reload_inputs=False)
    assert active.replay("a", 4) == [4] * 4
    with pytest.raises(RuntimeError):
        active.replay("a", reload_inputs=False)
    assert active.replay("a", 5) == [5] * 4
    assert active.traces.replay_count == 2


@pytest.mark.covers("T32")
def test_a_replay_computes_into_one_output_object(active):
    outputs = [active.traces.replay(active.key("a"), active.write("a", value)) for value in (7, 8)]
    assert outputs[0] is outputs[1] is active.made["a"]["y"]
    assert outputs[0].cpu().to_numpy().tolist() == [8] * 4


def test_replays_by_program_id(active):
    program_id = active.programs.find(Signature("a"))
    assert active.traces.is_captured(program_id)
    output = active.traces.replay_program(program_id, active.write("a", 6))
    assert output.cpu().to_numpy().tolist() == [6] * 4
    assert active.traces.replay_count == 1


@pytest.mark.covers("T22")
def test_what_is_not_captured_is_not_replayed(bench):
    bench.compile("loose")
    bench.register("a")
    for name, essence in (("a", "has not been captured"), ("loose", "no trace association")):
        with pytest.raises(RuntimeError, match=essence):
            bench.replay(name)
    with pytest.raises(RuntimeError, match="has not been compiled"):
        bench.replay("never")
    assert bench.events == []
    assert bench.mesh.counters.replays == 0


@pytest.mark.covers("TRC-10")
@pytest.mark.parametrize("op", ["execute_trace", "copy_host_to_device_tensor"])
def test_a_failed_replay_poisons_every_trace(active, op):
    active.replay("a")
    active.mesh.faults.fail(op=op, at=1, error=OSError("device"))
    with pytest.raises(OSError, match="device"):
        active.replay("b")
    assert active.traces.replay_counts == {"prefill": 0, "decode": 1}
    for name in "ab":
        with pytest.raises(RuntimeError, match="earlier replay failed"):
            active.replay(name)
    assert active.mesh.counters.replays == 1
    active.traces.cleanup()
    assert active.live() == 0


def test_a_failed_first_submission_counts_nothing(active):
    active.mesh.faults.fail(op="execute_trace", at=1)
    with pytest.raises(RuntimeError, match="execute_trace"):
        active.replay("a")
    assert active.traces.replay_counts == {"prefill": 0, "decode": 0}


@pytest.mark.covers("T13")
def test_a_trace_belongs_to_the_cache_it_was_captured_over(mesh):
    """Another context is refused, naming both, before anything is refreshed; with its own the trace goes on."""

    class Context:
        pass

    contexts = [Context(), Context()]
    bound = contexts[:1]
    bench = TraceBench(mesh, bound_cache=lambda: bound[0] if bound else None)
    bench.register("a", operation="prefill")
    bench.traces.capture_all()
    record = bench.traces.get(bench.traces.trace_key_for_program(bench.key("a")))
    assert record.artifact.context is contexts[0]
    assert bench.replay("a", 3) == [3] * 4
    for other in (contexts[1:], []):
        bound[:] = other
        with pytest.raises(RuntimeError, match="cannot replay: a trace over") as raised:
            bench.replay("a", 4)
        assert f"{id(contexts[0]):#x}" in str(raised.value)
        assert (f"{id(contexts[1]):#x}" if other else "no KV cache") in str(raised.value)
    bound[:] = contexts[:1]
    assert record.artifact.outputs.cpu().to_numpy().tolist() == [3] * 4
    assert bench.replay("a", 5) == [5] * 4


def test_a_drifted_program_cache_stops_a_replay(active):
    counts = [active.programs.device_program_cache_entries()]
    active.programs.device_program_cache_entries = lambda: counts[-1]
    counts.append((99,))
    with pytest.raises(RuntimeError, match="before replay"):
        active.replay("a")
    counts.pop()
    assert active.replay("a", 2) == [2] * 4

    def refresh(artifact, decision):
        counts.append((99,))

    with pytest.raises(RuntimeError, match="while refreshing"):
        active.traces.replay(active.key("a"), refresh)
    counts.pop()
    with pytest.raises(RuntimeError, match="earlier replay failed"):
        active.replay("a")


@pytest.mark.covers("TRC-11")
def test_cleanup_frees_shared_tensors_once(mesh):
    bench = TraceBench(mesh)
    decode = [bench.tensor() for _ in range(7)]
    prefill = [bench.tensor() for _ in range(6)]
    workspace = [bench.tensor() for _ in range(7)]
    shared = workspace[0]

    def capture(persistent):
        ttnn.copy(persistent.values[0], persistent.values[1])
        return persistent.values[1]

    bench.register("d", prepare_inputs=lambda: tuple(decode), capture=capture)
    bench.register(
        "p",
        operation="prefill",
        prepare_inputs=lambda: tuple(prefill),
        capture=capture,
        prepare_workspace=lambda: {"kpt": workspace, "again": (shared, [shared]), "input": prefill[2]},
    )
    bench.traces.capture_all()
    before = mesh.counters.calls["deallocate"]
    bench.traces.cleanup()
    assert mesh.counters.calls["deallocate"] - before == 20
    assert bench.live() == 0


@pytest.mark.covers("TRC-13", "T15")
def test_cleanup_releases_everything_and_is_terminal(active):
    key = active.traces.trace_key_for_program(active.key("a"))
    active.replay("a")
    active.traces.cleanup()
    active.traces.cleanup()
    assert active.mesh.trace_region_used == 0
    assert active.live() == 0
    assert not active.traces.trace_active
    assert not active.programs.gate_closed
    assert active.traces.get(key).artifact is None
    assert active.traces.replay_count == 1
    assert active.traces.trace_key_for_program(active.key("a")) is key
    for call in (
        active.traces.capture_all,
        lambda: active.replay("a"),
        lambda: active.traces.register_capture_plan(active.plan("a")),
    ):
        with pytest.raises(RuntimeError, match="released"):
            call()
    active.compile("new")
    active.programs.cleanup()


def test_cleanup_after_the_program_registry_frees_and_reports(active):
    active.programs.cleanup()
    with pytest.raises(RuntimeError, match="released"):
        active.traces.cleanup()
    assert active.live() == 0
    assert active.mesh.trace_region_used == 0
    active.traces.cleanup()


def test_a_partial_cleanup_is_finished_by_the_next_one(active):
    calls = active.mesh.counters.calls
    active.mesh.faults.fail(op="release_trace", at=1)
    active.mesh.faults.fail(op="deallocate", at=5)
    with pytest.raises(RuntimeError, match="1 failure") as raised:
        active.traces.cleanup()
    assert "release_trace" in str(raised.value.__cause__)
    assert active.live() == 2, "tensors of a trace that could not be released are not touched"
    assert active.traces.needs_cleanup and not active.traces.trace_active
    assert active.programs.trace_active
    for call in (active.traces.capture_all, lambda: active.replay("b")):
        with pytest.raises(RuntimeError, match="call cleanup"):
            call()
    active.traces.cleanup()
    assert active.live() == 0
    assert calls["release_trace"] == 3
    assert not active.programs.gate_closed


def test_a_retried_cleanup_does_not_blame_the_programs_that_ended_in_between(active):
    """An executor tries every step of its teardown, so the programs are gone when the traces get their second try."""
    active.mesh.faults.fail(op="release_trace", at=1, times=3)
    with pytest.raises(RuntimeError, match="2 failure"):
        active.traces.cleanup()
    active.programs.cleanup()
    with pytest.raises(RuntimeError, match="failed to release trace resources: 1 failure"):
        active.traces.cleanup()
    active.traces.cleanup()
    assert active.live() == 0
    assert active.mesh.trace_region_used == 0


def test_two_trace_compilers_are_independent(mesh):
    lanes = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), trace_region_size=1 << 20)
    benches = [TraceBench(lane) for lane in lanes.create_submeshes(ttnn.MeshShape(1, 1))]
    for bench in benches:
        bench.register("a")
        bench.traces.capture_all()
    assert [bench.replay("a", value) for value, bench in enumerate(benches)] == [[0] * 4, [1] * 4]
    benches[0].traces.cleanup()
    assert benches[1].replay("a", 5) == [5] * 4
    ttnn.close_mesh_device(lanes)


def test_the_compiler_takes_subclasses(mesh):
    class Programs(ProgramCompiler):
        pass

    assert TraceCompiler(Programs(mesh, lambda: None)).trace_count == 0
