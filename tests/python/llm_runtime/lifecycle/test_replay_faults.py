# SPDX-License-Identifier: Apache-2.0
"""Every device call of a replayed prefill or decode step fails once; what comes next says the truth."""

from __future__ import annotations

import pytest

from support.fault_sweep import Sweep, calls_of, failure_of, points
from support.one_layer_lane import OneLayerLane, check_equal

CALLS = {
    "prefill": ("prefill_forward", "prefill_call", {}),
    "wave": ("prefill_forward", "prefill_call", {"rows": 2}),
    "chunks": ("prefill_forward", "prefill_call", {"length": 200}),
    "first step": ("decode_forward", "decode_call", {"reset_batch": True}),
    "steady step": ("decode_forward", "decode_call", {"position": 41}),
}
REFRESH = ("copy_host_to_device_tensor", "execute_trace")
REFUSED = r"an earlier (replay|decode submission) failed|call cleanup"


class Step:
    """One call on a warmed lane; `renew` closes the lane, checking that nothing is left, and warms another."""

    def __init__(self, name, *, path, execution):
        self.name, self.path = name, path
        self._options = {
            "sampling": path != "logits",
            "execution": execution,
            "length": 256 if name == "chunks" else 128,
        }
        self._open()

    def run(self):
        call, arguments, options = CALLS[self.name]
        return getattr(self.lane.executor, call)(**getattr(self.lane, arguments)(path=self.path, **options))

    def renew(self):
        self.lane.close()
        self._open()

    def _open(self):
        self.lane = OneLayerLane(**self._options)
        self.lane.llama.warm_up()
        if self.name == "steady step":
            self.lane.executor.decode_forward(**self.lane.decode_call(path=self.path, reset_batch=True))


@pytest.mark.parametrize(
    ("name", "path", "execution"),
    [
        ("prefill", "logits", "immediate"),
        ("wave", "topk", "deferred"),
        ("chunks", "logits", "immediate"),
        ("first step", "logits", "deferred"),
        ("first step", "topk", "immediate"),
        ("steady step", "argmax", "immediate"),
        ("steady step", "argmax", "deferred"),
    ],
)
def test_replay(name, path, execution):
    step = Step(name, path=path, execution=execution)
    results = []
    calls = calls_of(step.lane.mesh, lambda: results.append(step.run()))
    step.renew()
    sweep = Sweep()
    for op, at in points(calls):
        lane = step.lane
        before, replays = lane.live(), lane.traces.replay_count
        with sweep.at(lane.mesh, op, at) as error:
            failure_of(step.run, error)
        with sweep.after(op, at):
            if "step" in name or op in REFRESH or lane.holds_orphans():
                with pytest.raises(RuntimeError, match=REFUSED):
                    step.run()
                if not lane.holds_orphans():
                    lane.check_live(before)
            elif lane.traces.replay_count - replays < calls["execute_trace"]:
                with pytest.raises(RuntimeError, match=REFUSED):
                    step.run()
            else:
                # The replay was complete: only its result was lost, and the call can be repeated.
                check_equal(step.run(), results[0])
                lane.check_live(before)
                continue
            assert lane.programs.trace_active
        step.renew()
    sweep.finish(at_least=3)
    check_equal(step.run(), results[0])
    step.lane.close()
