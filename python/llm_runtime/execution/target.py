# SPDX-License-Identifier: Apache-2.0
"""What the traced operations share: the executors they compose and the counting of coverage misses."""

from __future__ import annotations

from typing import Any

from llm_runtime._validation import require_instance
from llm_runtime.config import TraceMode
from llm_runtime.execution.coverage import coverage_error
from llm_runtime.execution.eager import EagerExecutor
from llm_runtime.trace_compiler import TraceCompiler


class TraceTarget:
    """One eager executor and the trace registry over its programs (both borrowed)."""

    def __init__(self, *, eager: EagerExecutor, trace_compiler: TraceCompiler, trace_mode: TraceMode = "all") -> None:
        require_instance(eager, EagerExecutor, name="eager")
        require_instance(trace_compiler, TraceCompiler, name="trace_compiler")
        if trace_compiler.program_compiler is not eager.program_compiler:
            raise ValueError("trace_compiler must compose the eager executor's program compiler")
        if trace_mode not in ("decode_only", "all"):
            raise ValueError(f"trace_mode must be 'decode_only' or 'all', got {trace_mode!r}")
        self.eager_executor = eager
        self.trace_compiler = trace_compiler
        self.trace_mode = trace_mode
        self._misses = 0

    @property
    def coverage_miss_count(self) -> int:
        """How many prepared requests were refused because they had no captured trace."""
        return self._misses

    def _miss(self, operation: str, runtime: Any, program_signature: Any, trace_signature: Any) -> RuntimeError:
        self._misses += 1
        return coverage_error(
            self.trace_compiler,
            operation=operation,
            trace_mode=self.trace_mode,
            runtime=runtime,
            program_signature=program_signature,
            trace_signature=trace_signature,
        )
