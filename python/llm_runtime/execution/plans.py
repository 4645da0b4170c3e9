# SPDX-License-Identifier: Apache-2.0
"""Adapts the capture plans of the prefill and decode runtimes to the trace registry's form.

The registry hands callables the `PersistentInputs` wrapper; the operations always get the values inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_runtime.digest import ProgramKey
from llm_runtime.trace_compiler import InputRefreshPolicy, PersistentInputs, TraceCapturePlan


def prefill_trace_plan(plan: Any, program_key: ProgramKey) -> TraceCapturePlan:
    """The registry's plan for `PrefillRuntime.capture_plan(...)`; its refresh fields become `every_replay`."""
    prime_workspace = getattr(plan, "prime_workspace", None)
    return TraceCapturePlan(
        program_key=program_key,
        trace_signature=plan.signature,
        operation="prefill",
        prepare_inputs=plan.prepare_inputs,
        capture=_on_values(plan.capture),
        refresh_policy=InputRefreshPolicy(every_replay=tuple(plan.refresh_fields)),
        schema_fingerprint=getattr(plan, "schema_fingerprint", None),
        prepare_workspace=getattr(plan, "prepare_workspace", None),
        workspace_fingerprint=getattr(plan, "workspace_fingerprint", None),
        prime=_optional(plan.prime),
        release_prime_output=plan.release_prime_output,
        prime_workspace=None
        if prime_workspace is None
        else lambda persistent, workspace: prime_workspace(persistent.values, workspace),
    )


def decode_trace_plan(plan: Any, program_key: ProgramKey, trace_signature: Any) -> TraceCapturePlan:
    """The registry's plan for `DecodeRuntime.capture_plan(...)`, with the operation's whole refresh policy."""
    policy = plan.refresh_policy
    return TraceCapturePlan(
        program_key=program_key,
        trace_signature=trace_signature,
        operation="decode",
        prepare_inputs=plan.prepare_inputs,
        capture=_on_values(plan.capture),
        refresh_policy=InputRefreshPolicy(
            every_replay=tuple(policy.every_replay),
            full_on_batch_reset=policy.full_on_batch_reset,
            full_on_graph_switch=policy.full_on_graph_switch,
            full_without_device_feedback=policy.full_without_device_feedback,
            refresh_page_table_on_change=policy.refresh_page_table_on_change,
        ),
        prepare_capture=_optional(getattr(plan, "prepare_capture", None)),
        prime=_optional(getattr(plan, "prime", None)),
        release_prime_output=getattr(plan, "release_prime_output", None),
    )


def _on_values(call: Callable[[Any], Any]) -> Callable[[PersistentInputs], Any]:
    return lambda persistent: call(persistent.values)


def _optional(call: Callable[[Any], Any] | None) -> Callable[[PersistentInputs], Any] | None:
    return None if call is None else _on_values(call)
