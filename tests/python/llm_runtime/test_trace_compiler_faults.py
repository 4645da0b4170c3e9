# SPDX-License-Identifier: Apache-2.0
"""What a failed capture leaves behind, step by step."""

from __future__ import annotations

import pytest

import ttnn_twin as ttnn
from support.trace_bench import TraceBench


class Broken(Exception):
    """The injected error."""


def broken(*_args):
    raise Broken("plan")


@pytest.fixture
def bench(mesh):
    return TraceBench(mesh)


def prepare(bench, **changes):
    """Traces `a` (prefill) and `b` (decode), both with workspaces, primed, `b` with the changes."""
    bench.register("a", operation="prefill", primed=True, workspace=True)
    bench.register("b", primed=True, workspace=True, **changes)


def mended(bench):
    """Make every plan usable again: plans are kept by the registry, so the broken callables are replaced."""
    book = bench.traces._book
    for trace_id, name in enumerate("ab"):
        operation = book.records[trace_id].operation
        plan = bench.plan(name, operation=operation, primed=True, workspace=True)
        book.plans[trace_id] = plan
    for alias, name in zip(book.aliases.values(), "ab", strict=True):
        alias.prepare_workspace = bench.plan(name, workspace=True).prepare_workspace
        alias.prime_workspace = None
    bench.mesh.faults.clear()


def check_clean_and_retry(bench):
    assert bench.live() == 0
    assert bench.mesh.trace_region_used == 0
    assert not bench.traces.trace_active and not bench.traces.needs_cleanup
    assert not bench.programs.gate_closed
    assert bench.traces.trace_association_count == 2
    mended(bench)
    bench.traces.capture_all()
    assert bench.replay("a", 3) == [3] * 4
    assert bench.replay("b", 4) == [4] * 4
    bench.traces.cleanup()
    assert bench.live() == 0


@pytest.mark.covers("TRC-06")
@pytest.mark.parametrize(
    "changes",
    [
        {"prepare_inputs": broken},
        {"prepare_workspace": broken},
        {"prepare_capture": broken},
        {"prime": broken},
        {"release_prime_output": broken},
        {"release_prime_output": lambda output: [Broken("returned")]},
        {"prime_workspace": broken},
        {"capture": broken},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_failing_plan_step_leaves_nothing(bench, changes):
    prepare(bench, **changes)
    with pytest.raises(Broken) as raised:
        bench.traces.capture_all()
    if "capture" in changes:
        assert any("decode" in note and "1 of 2" in note for note in raised.value.__notes__)
    else:
        assert bench.mesh.counters.calls["begin_trace_capture"] == 0
    check_clean_and_retry(bench)


def test_prepare_capture_failing_the_second_time(bench):
    runs = []

    def prepare_capture(_persistent):
        runs.append(bench.mesh.counters.calls["begin_trace_capture"])
        if len(runs) == 2:
            raise Broken

    prepare(bench, prepare_capture=prepare_capture)
    with pytest.raises(Broken):
        bench.traces.capture_all()
    assert runs == [0, 0]
    check_clean_and_retry(bench)


@pytest.mark.covers("T21", "T16")
@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("synchronize_device", 1),
        ("synchronize_device", 2),
        ("begin_trace_capture", 1),
        ("begin_trace_capture", 2),
        ("end_trace_capture", 1),
        ("end_trace_capture", 2),
        ("synchronize_device", 5),
        ("synchronize_device", 6),
        ("synchronize_device", 7),
    ],
)
def test_a_failing_device_step_leaves_nothing(bench, op, call):
    prepare(bench)
    calls = bench.mesh.counters.calls
    before = calls.copy()
    bench.mesh.faults.fail(op=op, at=call, error=Broken(op))
    with pytest.raises(Broken):
        bench.traces.capture_all()
    began = calls["begin_trace_capture"] - before["begin_trace_capture"] - (op == "begin_trace_capture")
    ended = calls["end_trace_capture"] - before["end_trace_capture"] - (op == "end_trace_capture")
    assert ended == began, "every recording is closed exactly once"
    assert calls["release_trace"] == began
    check_clean_and_retry(bench)


@pytest.mark.covers("TRC-08")
def test_the_second_capture_failing_releases_the_first(bench):
    error = Broken("second")

    def capture(_persistent):
        raise error

    bench.register("a")
    bench.register("b", capture=capture)
    freed = bench.mesh.counters.calls["deallocate"]
    with pytest.raises(Broken) as raised:
        bench.traces.capture_all()
    assert raised.value is error
    assert not hasattr(error, "cleanup_failures")
    assert bench.mesh.counters.calls["deallocate"] - freed == 4
    assert bench.live() == 0
    assert not bench.traces.trace_active
    for name in "ab":
        key = bench.traces.trace_key_for_program(bench.key(name))
        assert bench.traces.get(key).artifact is None


def test_a_failing_body_and_a_failing_end_are_both_seen(bench):
    prepare(bench, capture=broken)
    end = OSError("end")
    bench.mesh.faults.fail(op="end_trace_capture", at=1, error=end)
    with pytest.raises(Broken, match="plan") as raised:
        bench.traces.capture_all()
    assert raised.value.cleanup_failures[0] is end


@pytest.mark.parametrize("drift", ["before capture", "during capture"])
def test_a_growing_program_cache_rolls_back(bench, monkeypatch, drift):
    counts = iter([1, 2] if drift == "before capture" else [1, 1, 2])
    monkeypatch.setattr(bench.programs, "device_program_cache_entries", lambda: (next(counts),))
    prepare(bench)
    with pytest.raises(RuntimeError, match=drift):
        bench.traces.capture_all()
    assert bench.mesh.counters.calls["begin_trace_capture"] == (drift == "during capture")
    assert bench.mesh.counters.calls["end_trace_capture"] == (drift == "during capture")
    monkeypatch.undo()
    check_clean_and_retry(bench)


def test_a_failing_acknowledgement_rolls_back(bench, monkeypatch):
    monkeypatch.setattr(ttnn.tools.trace_allocation_tracker, "acknowledge_corruptible", broken)
    prepare(bench)
    with pytest.raises(Broken):
        bench.traces.capture_all()
    monkeypatch.undo()
    check_clean_and_retry(bench)


def test_an_interrupt_rolls_back_too(bench):
    def interrupted(_persistent):
        raise KeyboardInterrupt

    prepare(bench, capture=interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.traces.capture_all()
    check_clean_and_retry(bench)


def test_a_dirty_rollback_never_looks_active(bench):
    """Something is still held: the gate stays closed, and neither capture nor replay claims success."""
    prepare(bench, capture=broken)
    bench.mesh.faults.fail(op="release_trace", at=1, times=2)
    with pytest.raises(Broken) as raised:
        bench.traces.capture_all()
    assert len(raised.value.cleanup_failures) == 2
    assert bench.live() == 2
    assert bench.traces.needs_cleanup
    assert not bench.traces.trace_active
    assert bench.programs.trace_active, "nothing may compile over what is still held"
    for call in (bench.traces.capture_all, lambda: bench.replay("a"), lambda: bench.register("a")):
        with pytest.raises(RuntimeError):
            call()
    bench.traces.cleanup()
    assert bench.live() == 0
    assert not bench.programs.gate_closed


def test_uncaptured_inputs_that_stay_become_orphans(bench):
    bench.register("a")
    bench.register("b", prepare_inputs=broken)
    bench.mesh.faults.fail(op="deallocate", at=2)
    with pytest.raises(Broken) as raised:
        bench.traces.capture_all()
    assert len(raised.value.cleanup_failures) == 1
    assert bench.live() == 1
    assert bench.traces.needs_cleanup
    bench.mesh.faults.fail(op="deallocate", at=1)
    with pytest.raises(RuntimeError, match="1 failure"):
        bench.traces.cleanup()
    bench.traces.cleanup()
    assert bench.live() == 0


def test_a_released_trace_is_not_captured_even_while_its_tensors_wait(bench):
    bench.register("a")
    bench.traces.capture_all()
    bench.mesh.faults.fail(op="deallocate", at=1)
    with pytest.raises(RuntimeError, match="1 failure"):
        bench.traces.cleanup()
    record = bench.traces.get(bench.traces.trace_key_for_program(bench.key("a")))
    assert record.artifact is not None
    assert record.artifact.trace_released
    assert not record.captured
    assert not bench.traces.is_captured(bench.programs.id_of(bench.key("a")))
    with pytest.raises(RuntimeError):
        bench.replay("a")
    assert bench.mesh.counters.replays == 0
    bench.traces.cleanup()
    assert bench.mesh.counters.calls["release_trace"] == 1
    assert bench.live() == 0


def test_progress_ids_do_not_survive_their_tensors(bench):
    """A tensor of a second attempt may get the Python id of one freed in the first; it must be freed all the same."""
    prepare(bench, capture=broken)
    with pytest.raises(Broken):
        bench.traces.capture_all()
    for alias in bench.traces._book.aliases.values():
        assert alias.deallocated_tensor_ids == set()
    check_clean_and_retry(bench)


def test_a_capture_inside_a_capture_is_refused(bench):
    seen = []

    def prepare_inputs():
        for call in (bench.traces.capture_all, bench.traces.cleanup):
            with pytest.raises(RuntimeError, match="captur") as raised:
                call()
            seen.append(str(raised.value))
        return bench.made.setdefault("a", {"x": bench.tensor(), "y": bench.tensor()})

    bench.register("a", prepare_inputs=prepare_inputs)
    bench.traces.capture_all()
    assert len(seen) == 2
    assert bench.replay("a", 1) == [1] * 4


def test_an_unreleased_compile_output_blocks_capture(bench):
    bench.register("a")
    bench.mesh.faults.fail(op="deallocate", at=1)
    with pytest.raises(RuntimeError, match="1 failure"):
        bench.compile("b")
    with pytest.raises(RuntimeError, match="wait for release"):
        bench.traces.capture_all()
    assert bench.events == []
    assert not bench.traces.trace_active


@pytest.fixture
def region():
    """Makes benches with four traces on meshes with a trace region of so many bytes."""
    benches = []

    def make(size):
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), trace_region_size=size)
        benches.append(TraceBench(mesh))
        for name in "abcd":
            benches[-1].register(name)
        return benches[-1]

    yield make
    for bench in benches:
        bench.traces.cleanup()
        assert bench.live() == 0
        ttnn.close_mesh_device(bench.mesh)


@pytest.mark.covers("T21")
def test_too_little_trace_memory_names_the_trace_and_the_bytes(region):
    """The first trace that does not fit, what is used, and the size that all four need; that size then does."""
    roomy = region(1 << 20)
    roomy.traces.capture_all()
    total = roomy.mesh.trace_region_used
    one = total // 4
    for fitting in (3, 1, 0):
        bench = region(fitting * one + one - 1)
        with pytest.raises(RuntimeError, match=rf"asks for {one} bytes .*; {fitting * one} of ") as raised:
            bench.traces.capture_all()
        assert f"trace_region_size={total} or more" in str(raised.value)
        first = "abcd"[fitting]
        digest = bench.traces.trace_key_for_program(bench.key(first)).digest
        assert any(f"{fitting + 1} of 4" in note and digest in note for note in raised.value.__notes__)
        assert not hasattr(raised.value, "cleanup_failures")
        assert bench.mesh.trace_region_used == 0
        assert bench.live() == 0
        assert not bench.programs.gate_closed
    exact = region(total)
    exact.traces.capture_all()
    assert exact.replay("d", 3) == [3] * 4


@pytest.mark.parametrize("op", ["begin_trace_capture", "end_trace_capture"])
def test_a_fault_behind_a_trace_that_did_not_fit_is_told_beside_it(region, op):
    bench = region(100)
    bench.mesh.faults.fail(op, at=3, error=Broken(op))
    with pytest.raises(RuntimeError, match="trace region") as raised:
        bench.traces.capture_all()
    assert [str(error) for error in raised.value.cleanup_failures] == [op]
    assert bench.live() == 0
    assert not bench.traces.needs_cleanup
