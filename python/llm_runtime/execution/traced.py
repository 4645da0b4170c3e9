# SPDX-License-Identifier: Apache-2.0
"""Traced execution over exactly one eager executor. Never falls back to eager."""

from __future__ import annotations

from typing import Any

from llm_runtime.execution.evidence import log_summary
from llm_runtime.execution.traced_decode import TracedDecode
from llm_runtime.execution.traced_prefill import TracedPrefill


class TracedExecutor(TracedPrefill, TracedDecode):
    """Replays captured traces over the programs of exactly one eager executor (both borrowed).

    `trace_mode` ("decode_only" or "all") serves diagnostics; which operation is traced is decided by the caller.
    Once an operation is sent here, a request without a captured trace raises `TraceCoverageError` before any device
    work of the call. `TypeError` for a foreign collaborator, `ValueError` for another mode or a trace compiler over
    other programs. Follows chapter 30, section 4.4.
    """

    def runtime_summary(self) -> dict[str, Any]:
        """Counters of the eager executor and of the trace registry, ready for JSON."""
        traces = self.trace_compiler
        return {
            **self.eager_executor.runtime_summary(),
            "successful_trace_replays": traces.replay_count,
            "trace_replays_by_operation": traces.replay_counts,
            "strict_coverage_misses": self._misses,
            "semantic_trace_count": traces.trace_count,
            "trace_association_count": traces.trace_association_count,
        }

    def log_runtime_summary(self, *, phase: str | None = None) -> dict[str, Any]:
        """Log the summary as one line of JSON, with `phase` when given, and return it."""
        summary = self.runtime_summary()
        if phase is not None:
            summary["phase"] = phase
        log_summary(summary)
        return summary
