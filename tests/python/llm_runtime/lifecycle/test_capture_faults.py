# SPDX-License-Identifier: Apache-2.0
"""Every device call between the last compile and an open replay fails once, in a real lane's warmup."""

from __future__ import annotations

import pytest

from support.fault_sweep import Sweep, calls_of, failure_of, points
from support.one_layer_lane import OneLayerLane


def compiled_lane(**options):
    """A lane with everything compiled and registered, whose next warmup call only captures."""
    lane = OneLayerLane(**options)
    with lane.executor.warmup.defer_capture():
        lane.llama.warm_up()
        assert lane.executor.warmup.capture_pending
    assert lane.traces.trace_count > 0
    return lane


def check_not_captured(lane):
    warmup, traces = lane.executor.warmup, lane.traces
    assert not warmup.trace_activated
    assert warmup.coverage_manifest is None
    assert not traces.trace_active
    assert not lane.programs.trace_capture_in_progress
    assert lane.programs.trace_active == traces.needs_cleanup, "the gate is closed exactly while traces hold something"


@pytest.mark.parametrize(
    ("sampling", "execution", "every"),
    [(False, "immediate", True), (False, "deferred", False), (True, "immediate", False)],
)
def test_capture(sampling, execution, every):
    options = {"sampling": sampling, "execution": execution}
    lane = compiled_lane(**options)
    calls = calls_of(lane.mesh, lane.llama.warm_up)
    assert calls["begin_trace_capture"] == calls["end_trace_capture"] == lane.traces.trace_count
    lane.close()
    lane = compiled_lane(**options)
    sweep = Sweep()
    for op, at in points(calls, every=every):
        before = lane.live()
        with sweep.at(lane.mesh, op, at) as error:
            failure_of(lane.llama.warm_up, error)
            check_not_captured(lane)
            if not lane.holds_orphans() and not lane.traces.needs_cleanup:
                lane.check_live(before)
                assert lane.mesh.trace_region_used == 0
                continue
            assert op == "deallocate"
            with pytest.raises(RuntimeError, match=r"call cleanup"):
                lane.llama.warm_up()
        lane.close()
        lane = compiled_lane(**options)
    sweep.finish(at_least=70)
    lane.llama.warm_up()
    lane.check_serving()
    lane.close()


@pytest.mark.parametrize("op", ["release_trace", "deallocate"])
def test_what_a_rollback_cannot_release_keeps_the_gate_closed(op, monkeypatch):
    """The last recording fails, and so does every release behind it, until cleanup succeeds."""
    lane = compiled_lane()
    lane.mesh.faults.fail("end_trace_capture", at=lane.traces.trace_count, times=2, error=RuntimeError("recording"))
    release = lane.traces._book.release_all

    def failing_release(*arguments):
        lane.mesh.faults.fail(op, times=None, error=OSError(op))
        return release(*arguments)

    monkeypatch.setattr(lane.traces._book, "release_all", failing_release)
    with pytest.raises(RuntimeError, match="recording") as raised:
        lane.llama.warm_up()
    told = [str(failure) for failure in raised.value.cleanup_failures]
    assert "recording" in told, "the attempt to stop the recording failed as well"
    assert op in told
    check_not_captured(lane)
    assert lane.traces.needs_cleanup
    for call in (lane.llama.warm_up, lambda: lane.executor.prefill_forward(**lane.prefill_call())):
        with pytest.raises(RuntimeError, match=r"call cleanup|not captured"):
            call()
    with pytest.raises(RuntimeError, match="failed to release trace resources"):
        lane.traces.cleanup()
    monkeypatch.undo()
    lane.close()
