# SPDX-License-Identifier: Apache-2.0
"""Every device call of a compile fails once: nothing is registered, nothing stays, and the next compile works."""

from __future__ import annotations

import pytest

from support.fault_sweep import Sweep, calls_of, failure_of, points
from support.one_layer_lane import OneLayerLane

GEOMETRIES = {
    "prefill": ("compile_prefill", "prefill_call", {}),
    "wave": ("compile_prefill", "prefill_call", {"rows": 2}),
    "chunks": ("compile_prefill", "prefill_call", {"length": 200, "start": 32}),
    "decode": ("compile_decode", "decode_call", {}),
}


class Compile:
    """One compile call, on whichever lane is current: a lane that holds orphans is closed and replaced."""

    def __init__(self, geometry, path, execution):
        self._call, self._arguments, self._options = GEOMETRIES[geometry]
        self._options = {**self._options, "path": path}
        self._lane_options = {
            "sampling": path != "logits",
            "execution": execution,
            "length": 256 if geometry == "chunks" else 128,
        }
        self.lane = OneLayerLane(**self._lane_options)

    def run(self):
        executor = self.lane.executor
        return getattr(executor, self._call)(**getattr(self.lane, self._arguments)(**self._options))

    def renew(self):
        self.lane.close()
        self.lane = OneLayerLane(**self._lane_options)


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
@pytest.mark.parametrize(
    ("geometry", "path"),
    [("prefill", "logits"), ("prefill", "argmax"), ("wave", "topk"), ("chunks", "topk"), ("decode", "argmax")],
)
def test_compile(geometry, path, execution):
    step = Compile(geometry, path, execution)
    calls = calls_of(step.lane.mesh, step.run)
    step.renew()
    sweep = Sweep()
    for op, at in points(calls):
        lane = step.lane
        before, programs = lane.live(), lane.programs.compiled_programs
        with sweep.at(lane.mesh, op, at) as error:
            failure_of(step.run, error)
            assert lane.programs.compiled_programs == programs
            assert not lane.programs.gate_closed
            if not lane.holds_orphans():
                lane.check_live(before)
                continue
            assert op == "deallocate"
            with pytest.raises(RuntimeError, match=r"could not be released|wait for release"):
                step.run()
        step.renew()
    sweep.finish(at_least=60)
    step.run()
    step.lane.llama.warm_up()
    step.lane.check_serving()
    step.lane.close()
