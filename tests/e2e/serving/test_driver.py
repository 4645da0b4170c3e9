# SPDX-License-Identifier: Apache-2.0
"""The serving driver notices a runtime that is wrong: each fault ends a short run with an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_models.vllm_generator import VLLMGenerator
from llm_runtime.decode.trace import DecodeTraceLifecycle
from llm_runtime.vllm_adapter import VLLMAdapter
from support.serving.deployment import Deployment
from support.serving.server import ServerOptions
from support.serving.traffic import make_traffic


def without_table_refresh(refresh: Any) -> Any:
    return lambda self, artifact, prepared, decision: refresh(
        self, artifact, prepared, type(decision)(full=decision.full, page_table=False, fields=decision.fields)
    )


def with_stale_inputs(refresh: Any) -> Any:
    return lambda self, artifact, prepared, decision: refresh(
        self, artifact, prepared, type(decision)(full=True, page_table=False, fields=decision.fields)
    )


def without_cached_prefix(normalize: Any) -> Any:
    return lambda *args, **fields: normalize(*args, **{**fields, "start_pos": None})


def with_idle_rows_at_zero(normalize: Any) -> Any:
    def changed(self: Any, tokens: Any, start_pos: Any, page_table: Any, **fields: Any) -> Any:
        return normalize(self, tokens, np.maximum(start_pos, 0), page_table, **fields)

    return changed


def with_rows_reversed(prefill: Any) -> Any:
    def changed(*args: Any, **fields: Any) -> Any:
        output = prefill(*args, **fields)
        return (output[0][::-1], output[1]) if isinstance(output, tuple) else output[::-1]

    return changed


@pytest.mark.covers("T32")
@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (DecodeTraceLifecycle, "refresh", without_table_refresh),
        (DecodeTraceLifecycle, "refresh", with_stale_inputs),
        (VLLMAdapter, "normalize_prefill", without_cached_prefix),
        (VLLMAdapter, "normalize_decode", with_idle_rows_at_zero),
        (VLLMGenerator, "prefill_forward", with_rows_reversed),
    ],
    ids=["table", "inputs", "prefix", "idle", "rows"],
)
def test_faults_are_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable[[Any], Any]
) -> None:
    options = ServerOptions(trace_mode="all", sample_on_device_mode="all", rows=8, seed=5)
    deployment = Deployment(folder, options)
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    server = deployment.server()
    with pytest.raises((AssertionError, RuntimeError)):
        reference = deployment.reference()
        for request in server.serve(make_traffic(120, seed=5, max_model_len=options.max_model_len)):
            reference.check(request)
    monkeypatch.undo()
    server.workers.shutdown()
    deployment.stop()
