# SPDX-License-Identifier: Apache-2.0
"""Eager and traced execution over one prefill and one decode runtime (chapter 30, section 4)."""

from llm_runtime.errors import TraceCoverageError
from llm_runtime.execution.eager import EagerExecutor
from llm_runtime.execution.evidence import PrefillReplayEvidence
from llm_runtime.execution.traced import TracedExecutor

__all__ = ["EagerExecutor", "PrefillReplayEvidence", "TraceCoverageError", "TracedExecutor"]
