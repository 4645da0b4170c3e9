# SPDX-License-Identifier: Apache-2.0
"""A program registry, a trace registry and tiny real trace bodies on one twin mesh."""

from __future__ import annotations

import dataclasses

import numpy as np

import ttnn_twin as ttnn
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.trace_compiler import TraceCapturePlan, TraceCompiler


@dataclasses.dataclass(frozen=True)
class Signature:
    """Identity is the name (and nothing else is compared)."""

    name: str

    def key_material(self):
        return (("name", self.name),)


class TraceBench:
    """Plans whose body copies a persistent input `x` into a persistent tensor `y`, which is the output.

    `events` lists what the plans' callables did, in order.
    """

    def __init__(self, mesh, *, bound_cache=lambda: "bound cache"):
        self.mesh = mesh
        self.programs = ProgramCompiler(mesh, bound_cache)
        self.traces = TraceCompiler(self.programs)
        self.events = []
        self.made = {}

    def tensor(self, value=0):
        return ttnn.to_device(ttnn.Tensor(np.full((4,), value, np.int32), ttnn.int32), device=self.mesh)

    def compile(self, name):
        def invoke(_context):
            source, target = self.tensor(), self.tensor()
            ttnn.copy(source, target)
            return [source, target]

        return self.programs.compile(Signature(name), invoke, output_spec=lambda output: _spec(output[1]))

    def plan(self, name, *, trace=None, operation="decode", primed=False, workspace=False, **changes):
        """A plan for the (compiled) program `name`; `changes` replace its fields."""
        record = self.compile(name)

        def prepare_inputs():
            self.events.append(("inputs", name))
            values = self.made[name] = {"x": self.tensor(), "y": self.tensor()}
            return values

        def body(kind):
            def run(persistent):
                self.events.append((kind, name))
                assert persistent.values is self.made[name]
                ttnn.copy(persistent.values["x"], persistent.values["y"])
                return persistent.values["y"] if kind == "capture" else self.made.setdefault("primed", "output")

            return run

        def release_prime_output(output):
            self.events.append(("release prime", name, output))
            return []

        def prepare_workspace():
            self.events.append(("workspace", name))
            self.made[name, "workspace"] = [self.tensor()]
            return self.made[name, "workspace"]

        fields = {
            "program_key": record.key,
            "trace_signature": Signature(trace or name),
            "operation": operation,
            "prepare_inputs": prepare_inputs,
            "capture": body("capture"),
        }
        if primed:
            fields |= {"prime": body("prime"), "release_prime_output": release_prime_output}
        if workspace:
            fields["prepare_workspace"] = prepare_workspace
        return TraceCapturePlan(**{**fields, **changes})

    def register(self, name, **options):
        plan = self.plan(name, **options)
        return self.traces.register_capture_plan(plan)

    def key(self, name):
        return self.programs.key_for(Signature(name))

    def write(self, name, value):
        """A refresh callback that writes `value` into the trace's input and notes the decision."""

        def refresh(artifact, decision):
            self.events.append(("refresh", name, decision))
            host = ttnn.Tensor(np.full((4,), value, np.int32), ttnn.int32)
            ttnn.copy_host_to_device_tensor(host, artifact.persistent_inputs.values["x"])

        return refresh

    def replay(self, name, value=1, **commands):
        output = self.traces.replay(self.key(name), self.write(name, value), **commands)
        return output.cpu().to_numpy().tolist()

    def live(self):
        """How many device tensors are allocated."""
        return len(self.mesh.live_tensors())


def _spec(tensor):
    from llm_runtime.program_compiler import OutputSpec

    return OutputSpec.from_value(tensor)
