# SPDX-License-Identifier: Apache-2.0
"""Registry, capture and replay of device traces over compiled programs (chapter 30, section 3)."""

from llm_runtime.digest import TraceKey
from llm_runtime.trace_compiler.compiler import TraceCompiler
from llm_runtime.trace_compiler.plan import (
    InputRefreshPolicy,
    PersistentInputs,
    RefreshDecision,
    TraceAliasRecord,
    TraceArtifact,
    TraceCapturePlan,
    TraceRecord,
)

__all__ = [
    "InputRefreshPolicy",
    "PersistentInputs",
    "RefreshDecision",
    "TraceAliasRecord",
    "TraceArtifact",
    "TraceCapturePlan",
    "TraceCompiler",
    "TraceKey",
    "TraceRecord",
]
