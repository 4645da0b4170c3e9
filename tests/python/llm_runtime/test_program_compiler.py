# SPDX-License-Identifier: Apache-2.0
"""The program registry: identity, compilation, the gate, and what a failure leaves behind."""

from __future__ import annotations

import types

import numpy as np
import pytest

import llm_runtime.digest as digest_module
import ttnn_twin as ttnn
from llm_runtime.program_compiler import OutputSpec, ProgramCompiler, ProgramKey


class Signature:
    """Identity is `material`; `token` is run-time data that must not count."""

    def __init__(self, *material, token=0):
        self.material = material
        self.token = token

    def key_material(self):
        return self.material

    def __eq__(self, other):
        return isinstance(other, Signature) and self.material == other.material

    __hash__ = None


CONTEXT = types.SimpleNamespace(name="bound cache")


@pytest.fixture
def programs(mesh):
    return ProgramCompiler(mesh, lambda: CONTEXT)


@pytest.fixture
def run(device_tensor):
    """An invocation that returns one (2, 3) tensor and remembers its contexts."""

    def invoke(context):
        invoke.contexts.append(context)
        invoke.outputs.append(device_tensor(np.zeros((2, 3), np.float32)))
        return invoke.outputs[-1]

    invoke.contexts, invoke.outputs = [], []
    return invoke


@pytest.fixture
def counted_digests(monkeypatch):
    made = []
    real = digest_module._digest_of
    monkeypatch.setattr(digest_module, "_digest_of", lambda key, **kw: made.append(key) or real(key, **kw))
    return made


def spec_of(*shape):
    return OutputSpec(
        shape=shape, dtype=ttnn.float32, layout=ttnn.ROW_MAJOR_LAYOUT, memory_config=ttnn.DRAM_MEMORY_CONFIG
    )


@pytest.mark.covers("PGM-03", "PGM-17")
def test_identity_comes_from_material_only(programs):
    assert programs.key_for(Signature("a", 1)) is programs.key_for(Signature("a", 1, token=99))


@pytest.mark.covers("PGM-04")
def test_a_digest_is_computed_once_and_only_when_asked_for(programs, counted_digests):
    first, second = programs.key_for(Signature("a")), programs.key_for(Signature("a"))
    assert second is first
    assert counted_digests == []
    assert first.digest == second.digest
    assert len(counted_digests) == 1


@pytest.mark.covers("PGM-05")
def test_a_mutated_signature_gets_another_key(programs, counted_digests):
    signature = Signature(("value", 1))
    first = programs.key_for(signature)
    signature.material = (("value", 2),)
    second = programs.key_for(signature)
    assert programs.key_for(signature) is second
    assert first != second
    assert len({first.digest, second.digest}) == 2
    assert len(counted_digests) == 2


def test_keys_can_be_asked_for_after_cleanup(programs):
    digest = programs.key_for(Signature("a")).digest
    programs.cleanup()
    assert programs.key_for(Signature("a")).digest == digest


@pytest.mark.covers("PGM-08", "PGM-09", "T17")
def test_compile_runs_once_and_keeps_the_contract(programs, run, mesh):
    signature = Signature("decode", 32)
    record = programs.compile(signature, run, expected_output_spec=spec_of(2, 3))
    assert run.contexts == [CONTEXT]
    assert record.signature is signature
    assert record.output_spec == spec_of(2, 3)
    assert not run.outputs[0].is_allocated()
    assert programs.compile(Signature("decode", 32), run) is record
    assert len(run.contexts) == 1
    assert mesh.counters.calls["synchronize_device"] == 2
    assert programs.find(Signature("decode", 32)) == programs.id_of(record.key) == 0
    assert programs.program(0) is record
    assert programs.require_compiled(record.key, signature) is record
    assert programs.require_compiled(ProgramKey(record.key.digest)) is record


@pytest.mark.covers("PGM-10")
def test_another_output_contract_is_refused(programs, run):
    programs.compile(Signature("a"), run)
    with pytest.raises(ValueError, match="another output contract"):
        programs.compile(Signature("a"), run, expected_output_spec=spec_of(1))
    assert len(run.contexts) == 1


@pytest.mark.covers("PGM-11")
def test_snapshots_do_not_move(programs, run):
    first = programs.compile(Signature("first"), run)
    snapshot = programs.compiled_programs
    second = programs.compile(Signature("second"), run)
    assert snapshot == (first,)
    assert programs.compiled_programs == (first, second)


@pytest.mark.covers("PGM-12")
def test_value_and_owned_parts_are_selected(programs, device_tensor):
    value, owned = device_tensor(np.zeros((1, 2), np.float32)), device_tensor()
    result = types.SimpleNamespace(value=value, owned=[owned])
    record = programs.compile(
        Signature("a"),
        lambda _context: result,
        output_spec=lambda output: OutputSpec.from_value(output.value),
        release_output=lambda output: output.owned,
    )
    assert record.output_spec.shape == (1, 2)
    assert value.is_allocated()
    assert not owned.is_allocated()


def test_the_contract_is_read_while_the_output_lives(programs, run):
    alive = []

    def spec(output):
        alive.append(output.is_allocated())
        return OutputSpec.from_value(output)

    programs.compile(Signature("a"), run, output_spec=spec)
    assert alive == [True]


@pytest.mark.covers("PGM-07")
def test_equal_digests_of_different_signatures_collide(programs, run, monkeypatch):
    monkeypatch.setattr(digest_module, "_digest_of", lambda key, **kw: "a" * 64)
    programs.compile(Signature("a"), run)
    with pytest.raises(RuntimeError, match="collision"):
        programs.compile(Signature("b"), run)
    assert len(programs.compiled_programs) == 1


def test_equal_material_of_unequal_signatures_collides(programs, run):
    class Fussy(Signature):
        def __eq__(self, other):
            return self is other

        __hash__ = None

    record = programs.compile(Fussy("a"), run)
    with pytest.raises(RuntimeError, match="collision"):
        programs.compile(Fussy("a"), run)
    with pytest.raises(RuntimeError, match="collision"):
        programs.require_compiled(record.key, Fussy("a"))


@pytest.mark.covers("PGM-13")
def test_nothing_compiles_during_a_capture(programs, run):
    known = programs.compile(Signature("known"), run)
    programs.set_trace_capture_in_progress(True)
    with pytest.raises(RuntimeError, match="capture is in progress"):
        programs.compile(Signature("new"), run)
    assert programs.post_activation_compile_rejections == 0
    assert programs.compile(Signature("known"), run) is known
    assert programs.gate_closed
    with pytest.raises(RuntimeError):
        programs.set_trace_active(True)
    programs.set_trace_capture_in_progress(False)
    assert not programs.gate_closed


@pytest.mark.covers("PGM-14")
def test_nothing_new_compiles_while_traces_are_active(programs, run):
    known = programs.compile(Signature("known"), run)
    programs.set_trace_active(True)
    with pytest.raises(RuntimeError, match="after trace activation") as raised:
        programs.compile(Signature("new"), run)
    assert "Signature" in str(raised.value)
    assert programs.post_activation_compile_rejections == 1
    assert programs.compile(Signature("known"), run) is known
    with pytest.raises(RuntimeError, match="after trace activation"):
        programs.require_compiled(programs.key_for(Signature("new")))
    with pytest.raises(RuntimeError):
        programs.set_trace_capture_in_progress(True)
    programs.set_trace_active(False)
    programs.compile(Signature("new"), run)


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_gate_flags_are_bools(programs, value):
    with pytest.raises(TypeError, match="must be a bool"):
        programs.set_trace_active(value)
    with pytest.raises(TypeError, match="must be a bool"):
        programs.set_trace_capture_in_progress(value)


@pytest.mark.covers("PGM-15")
def test_cleanup_is_idempotent_and_terminal(programs, run):
    record = programs.compile(Signature("a"), run)
    programs.set_trace_active(True)
    programs.cleanup()
    programs.cleanup()
    assert not programs.trace_active
    assert programs.compiled_programs == (record,)
    for call in (
        lambda: programs.require_compiled(record.key),
        lambda: programs.compile(Signature("a"), run),
        lambda: programs.set_trace_active(False),
        lambda: programs.set_trace_capture_in_progress(False),
    ):
        with pytest.raises(RuntimeError, match="released"):
            call()


@pytest.mark.covers("PGM-16")
def test_without_a_bound_cache_nothing_runs(mesh, run):
    programs = ProgramCompiler(mesh, lambda: None)
    with pytest.raises(RuntimeError, match="not allocated and bound"):
        programs.compile(Signature("a"), run)
    assert run.contexts == []


def test_a_failing_invocation_leaves_nothing(programs, mesh, run):
    def broken(_context):
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        programs.compile(Signature("a"), broken)
    assert mesh.counters.calls["synchronize_device"] == 0
    assert (programs.compiled_programs, programs.compile_orphan_count) == ((), 0)
    programs.compile(Signature("a"), run)


def test_a_wrong_output_is_released_and_reported(programs, run, mesh):
    with pytest.raises(ValueError, match="expected"):
        programs.compile(Signature("a"), run, expected_output_spec=spec_of(1))
    assert not run.outputs[0].is_allocated()
    assert programs.compiled_programs == ()
    assert mesh.counters.calls["synchronize_device"] == 2


def test_a_failing_first_synchronise_releases_the_output(programs, run, mesh):
    mesh.faults.fail(op="synchronize_device", at=1, times=2, error=OSError("sync"))
    with pytest.raises(OSError, match="sync") as raised:
        programs.compile(Signature("a"), run)
    assert not run.outputs[0].is_allocated()
    assert len(raised.value.cleanup_failures) == 1
    assert programs.compiled_programs == ()


def test_a_failing_second_synchronise_registers_nothing(programs, run, mesh):
    mesh.faults.fail(op="synchronize_device", at=2, error=OSError("sync"))
    with pytest.raises(OSError, match="sync"):
        programs.compile(Signature("a"), run)
    assert programs.compiled_programs == ()
    programs.compile(Signature("a"), run)


def test_an_unreleased_output_blocks_compilation_until_cleanup(programs, run, mesh):
    known = programs.compile(Signature("known"), run)
    mesh.faults.fail(op="deallocate", at=1, error=OSError("stuck"))
    with pytest.raises(RuntimeError, match="1 failure") as raised:
        programs.compile(Signature("a"), run)
    assert isinstance(raised.value.__cause__, OSError)
    assert mesh.counters.calls["synchronize_device"] == 4
    assert programs.compile_orphan_count == 1
    for signature in (Signature("a"), Signature("known")):
        with pytest.raises(RuntimeError, match="wait for release"):
            programs.compile(signature, run)
    assert programs.require_compiled(known.key) is known
    mesh.faults.fail(op="deallocate", at=1, error=OSError("stuck"))
    with pytest.raises(RuntimeError, match="1 failure"):
        programs.cleanup()
    assert programs.require_compiled(known.key) is known
    programs.cleanup()
    assert programs.compile_orphan_count == 0
    assert not run.outputs[1].is_allocated()
    assert mesh.counters.calls["deallocate"] == 4


def test_a_retry_after_a_failed_compile_repeats_only_what_failed(programs, run, mesh):
    names = ("first", "second", "third")
    mesh.faults.fail(op="synchronize_device", at=3)
    with pytest.raises(RuntimeError):
        for name in names:
            programs.compile(Signature(name), run)
    for name in names:
        programs.compile(Signature(name), run)
    assert [record.signature.material for record in programs.compiled_programs] == [(name,) for name in names]
    assert len(run.contexts) == 4


def test_unknown_programs_are_named(programs):
    key = programs.key_for(Signature("a"))
    with pytest.raises(RuntimeError, match=key.digest):
        programs.require_compiled(key)
    assert programs.find(Signature("a")) == -1
    assert programs.id_of(ProgramKey("a" * 64)) == -1


class Device:
    def __init__(self, count):
        self.count = count

    def num_program_cache_entries(self):
        return self.count


def counting_mesh(*devices):
    return types.SimpleNamespace(get_devices=lambda: devices)


def test_program_cache_counts():
    assert ProgramCompiler(counting_mesh(Device(3), Device(4)), None).device_program_cache_entries() == (3, 4)
    assert ProgramCompiler(counting_mesh(Device(3), object()), None).device_program_cache_entries() is None
    assert ProgramCompiler(Device(5), None).device_program_cache_entries() == (5,)
    assert ProgramCompiler(object(), None).device_program_cache_entries() is None


@pytest.mark.parametrize("now", [4, 2])
def test_a_changed_program_cache_is_refused(now):
    device = Device(3)
    programs = ProgramCompiler(counting_mesh(device), None)
    before = programs.device_program_cache_entries()
    programs.require_unchanged_device_program_cache(before, phase="before capture")
    device.count = now
    programs.require_unchanged_device_program_cache(None, phase="before capture")
    with pytest.raises(RuntimeError, match="before capture"):
        programs.require_unchanged_device_program_cache(before, phase="before capture")


def test_a_program_cache_that_became_unreadable_is_refused():
    devices = [Device(3)]
    programs = ProgramCompiler(counting_mesh(*devices), None)
    programs.mesh_device.get_devices = lambda: [object()]
    with pytest.raises(RuntimeError, match="while refreshing"):
        programs.require_unchanged_device_program_cache((3,), phase="while refreshing")


class TestOutputSpec:
    def test_device_tensors_have_a_placement(self, device_tensor):
        assert OutputSpec.from_value(device_tensor(np.zeros((2, 3), np.float32))) == spec_of(2, 3)

    def test_freed_tensors_have_none(self, device_tensor):
        tensor = device_tensor()
        ttnn.deallocate(tensor)
        assert OutputSpec.from_value(tensor).memory_config is None

    def test_host_arrays_have_shape_and_dtype(self):
        spec = OutputSpec.from_value(np.zeros((4, 5), np.int64))
        assert spec == OutputSpec(shape=(4, 5), dtype=np.dtype(np.int64))

    def test_only_the_first_entry_of_a_tuple_counts(self):
        spec = OutputSpec.from_value((np.zeros(3, np.int32), None))
        assert spec == OutputSpec(shape=(3,), dtype=np.dtype(np.int32))

    def test_an_empty_tuple_is_refused(self):
        with pytest.raises(ValueError, match="empty tuple"):
            OutputSpec.from_value(())

    @pytest.mark.parametrize("value", [None, [np.zeros(1)], ((np.zeros(1),),), "x"])
    def test_other_values_are_refused(self, value):
        with pytest.raises(TypeError, match="cannot derive an output spec"):
            OutputSpec.from_value(value)
