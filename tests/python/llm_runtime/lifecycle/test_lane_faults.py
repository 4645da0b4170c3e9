# SPDX-License-Identifier: Apache-2.0
"""Every device function fails once on each lane of a group: the group ends, every lane is cleaned, nothing stays."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from support.fault_sweep import Sweep, calls_of, failure_of, points
from support.lanes_model import TwinLanes, prompts_of

PROMPTS = prompts_of((9, 20))


class Lanes(TwinLanes):
    """Two lanes of one row; `weights` is what is on each mesh besides the executor's."""

    def __init__(self, *, warmed, **options):
        super().__init__(2, 1, device_sampling=False, trace_mode="all", **options)
        # The first calls make the model's tables; eagerly, so that nothing is registered.
        self.prefill(execution=self.group.eager_execution)
        self.step(execution=self.group.eager_execution)
        self.weights = self.kept()
        if warmed:
            self.warm_up()

    def kept(self):
        """Weights and tables per lane: what is allocated without the cache of two layers."""
        return [len(mesh.live_tensors()) - 4 for mesh in self.meshes]

    def prefill(self, **options):
        return self.serving.prefill(PROMPTS, (1, 0), **options)

    def step(self, **options):
        return self.serving.step({0: 5, 1: 6}, {0: 20, 1: 9}, reset_batch=True, **options)

    def async_step(self):
        host, _ = self.group.read_decode_output(self.step(read_from_device=False), async_read=True)
        return self.group.process_decode_output_host(host)

    def compile(self):
        self.group.compile_prefill(
            np.array([PROMPTS[0][:9], PROMPTS[1][:9]]), self.serving.table[[1, 0]], empty_slots=[1, 0]
        )

    def check_ended(self):
        assert self.group.terminal
        if [len(mesh.live_tensors()) for mesh in self.meshes] != self.weights:
            gc.collect()
        left = [len(mesh.live_tensors()) - weights for mesh, weights in zip(self.meshes, self.weights, strict=True)]
        assert left == [0, 0], f"tensors left on the lanes: {left}"
        assert [mesh.trace_region_used for mesh in self.meshes] == [0, 0]
        for call in (self.prefill, self.step):
            with pytest.raises(RuntimeError, match=r"cleaned up|terminal|ended"):
                call()


@pytest.mark.parametrize(
    ("call", "lane", "execution"),
    [
        ("prefill", 0, "immediate"),
        ("prefill", 1, "deferred"),
        ("step", 0, "deferred"),
        ("step", 1, "immediate"),
        ("async_step", 0, "immediate"),
        ("async_step", 1, "deferred"),
        ("compile", 1, "immediate"),
        ("warm_up", 0, "immediate"),
        ("warm_up", 1, "immediate"),
    ],
)
def test_a_fault_in_one_lane(call, lane, execution):
    options = {"warmed": call not in ("compile", "warm_up"), "execution": execution}
    lanes = Lanes(**options)
    calls = calls_of(lanes.meshes[lane], getattr(lanes, call))
    lanes.close()
    if call == "warm_up":
        calls = {op: calls[op] for op in ("to_device", "linear", "deallocate", "begin_trace_capture")}
    sweep = Sweep()
    for op, at in points(calls) if "step" in call else [(op, 1) for op in sorted(calls)]:
        lanes = Lanes(**options)
        with sweep.at(lanes.meshes[lane], op, at) as error:
            raised = failure_of(getattr(lanes, call), error)
            assert raised.lane == lane
        with sweep.after(op, at):
            lanes.check_ended()
        lanes.close()
    sweep.finish(at_least=4)
