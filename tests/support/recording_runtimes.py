# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode runtimes without a model: bodies copy one device tensor, every call is logged.

They show how executors compose the runtimes; what the runtimes compute is tested with the real ones.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np

import ttnn_twin as ttnn
from llm_runtime.decode import DecodeRuntime
from llm_runtime.decode.values import DecodeRefreshPolicy
from llm_runtime.prefill.runtime import PrefillRuntime
from support.trace_bench import Signature


@dataclasses.dataclass(frozen=True)
class ProgramSignature(Signature):
    operation_variant: str = "regular-single"


@dataclasses.dataclass(frozen=True)
class Request:
    """One prepared prefill request whose replay of chunk `c` computes `value + c`."""

    name: str
    value: int = 0
    chunks: tuple[int, ...] = (0,)
    programs: tuple[str, ...] = ()
    traceable: bool = True
    workspace: bool = True
    sampling_path: str = "logits"

    @property
    def request(self) -> Any:
        return types.SimpleNamespace(chunks=self.chunks, source_rows=(0,))

    @property
    def program_signatures(self) -> tuple[ProgramSignature, ...]:
        return tuple(ProgramSignature(name) for name in self.programs or (self.name,))

    @property
    def trace_signature(self) -> Signature | None:
        return Signature(self.name) if self.traceable else None


@dataclasses.dataclass(frozen=True)
class Step:
    """One prepared decode step that computes `value`."""

    name: str
    value: int = 0
    device_feedback: bool = True
    reset_batch: bool = False
    page_table_changed: bool = False
    sampling_params: Any = None
    reload_inputs: bool | None = None
    reload_page_table: bool = False
    reload_sampling_params: bool = False


class _Body:
    """Device side of both runtimes: copies `x` into `y`."""

    def __init__(self, mesh: Any, log: list[Any]) -> None:
        self.mesh = mesh
        self.log = log
        self.persistent: list[Any] = []
        self.fail: dict[str, BaseException] = {}

    def called(self, name: str, *details: Any) -> None:
        self.log.append((name, *details))
        if name in self.fail:
            raise self.fail[name]

    def tensor(self, value: int = 0) -> Any:
        return ttnn.to_device(ttnn.Tensor(np.full((4,), value, np.int32), ttnn.int32), device=self.mesh)

    def run(self, value: int) -> tuple[Any, Any]:
        source, target = self.tensor(value), self.tensor()
        ttnn.copy(source, target)
        return source, target

    def inputs(self) -> dict[str, Any]:
        self.persistent.append({"x": self.tensor(), "y": self.tensor()})
        return self.persistent[-1]

    def capture(self, values: dict[str, Any]) -> Any:
        ttnn.copy(values["x"], values["y"])
        return values["y"]

    def write(self, values: dict[str, Any], value: int) -> None:
        host = ttnn.Tensor(np.full((4,), value, np.int32), ttnn.int32)
        ttnn.copy_host_to_device_tensor(host, values["x"])


class RecordingPrefill(PrefillRuntime):
    """Returns the `requests` it was given, whatever the arguments; `arguments` keeps the latest ones."""

    config = types.SimpleNamespace(model=np.random.default_rng(0))

    def __init__(self, mesh: Any, log: list[Any]) -> None:
        self.body = _Body(mesh, log)
        self.requests: tuple[Request, ...] = ()
        self.arguments: dict[str, Any] = {}

    def prepare(self, **arguments: Any) -> Any:
        self.arguments = arguments
        self.body.called("prepare")
        return self.requests

    def invoke(self, prepared: Any, **options: Any) -> Any:
        self.body.called("invoke", prepared, options)
        source, target = self.body.run(prepared.value)
        return types.SimpleNamespace(value=target, owned=[source, target])

    def capture_plan(self, prepared: Any) -> Any:
        self.body.called("capture plan", prepared)
        return types.SimpleNamespace(
            signature=prepared.trace_signature,
            prepare_inputs=self.body.inputs,
            capture=self.body.capture,
            refresh_fields=("tokens",),
            prime=None,
            release_prime_output=None,
            prepare_workspace=(lambda: ["workspace", prepared.name]) if prepared.workspace else None,
        )

    def refresh_trace(self, prepared: Any, persistent: Any, workspace: Any, chunk: Any = None) -> None:
        self.body.called("refresh", prepared, persistent, workspace, chunk)
        self.body.write(persistent, prepared.value + chunk)

    def finish_trace(self, prepared: Any, hidden: Any, workspace: Any) -> Any:
        self.body.called("finish", prepared, hidden, workspace)
        return types.SimpleNamespace(value=hidden, owned=None)

    def assemble(self, prepared_results: Any, *, batch_size: int, sampling_params: Any = None) -> Any:
        rows = []
        for prepared, result in prepared_results:
            self.body.called("read", prepared)
            rows.append(int(result.value.cpu().to_numpy()[0]))
            for tensor in result.owned or ():
                ttnn.deallocate(tensor)
        self.body.called("assembled", batch_size, sampling_params)
        return rows


class RecordingDecode(DecodeRuntime):
    """Returns the `step` it was given, whatever the arguments; `arguments` keeps the latest ones."""

    def __init__(self, mesh: Any, log: list[Any]) -> None:
        self.body = _Body(mesh, log)
        self.config = types.SimpleNamespace(position_feedback_capable=True)
        self.step = Step("decode")
        self.arguments: dict[str, Any] = {}

    def prepare(self, tokens: Any, start_pos: Any, page_table: Any, **arguments: Any) -> Any:
        self.arguments = {"tokens": tokens, "start_pos": start_pos, "page_table": page_table, **arguments}
        self.body.called("decode prepare")
        return self.step

    def program_signature(self, prepared: Any) -> Any:
        return ProgramSignature(prepared.name)

    def trace_signature(self, prepared: Any) -> Any:
        return Signature(prepared.name)

    def ensure_trace_safe(self) -> None:
        self.body.called("ensure trace safe")

    def validate_submission(self, prepared: Any) -> None:
        self.body.called("validate", prepared)

    def invoke(self, prepared: Any, **options: Any) -> Any:
        self.body.called("decode invoke", prepared, options)
        source, target = self.body.run(prepared.value)
        return types.SimpleNamespace(value=target, owned=[source, target])

    def capture_plan(self, prepared: Any) -> Any:
        self.body.called("decode capture plan", prepared)
        return types.SimpleNamespace(
            prepare_inputs=self.body.inputs, capture=self.body.capture, refresh_policy=DecodeRefreshPolicy()
        )

    def refresh_trace(self, artifact: Any, prepared: Any, decision: Any) -> None:
        self.body.called("decode refresh", prepared, decision)
        self.body.write(artifact.persistent_inputs.values, prepared.value)

    def note_submitted(self, prepared: Any) -> None:
        self.body.called("note submitted", prepared)

    def invalidate_after_failed_submission(self) -> None:
        self.body.called("invalidate")

    def consume(self, result: Any, *, read_from_device: bool = True) -> Any:
        self.body.called("consume", result, read_from_device)
        value = result.value
        return value.cpu().to_numpy().tolist() if read_from_device else value
