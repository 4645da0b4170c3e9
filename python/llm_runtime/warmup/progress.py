# SPDX-License-Identifier: Apache-2.0
"""What a warmup has done of one operation, and what its last call decided.

Follows chapter 30, section 5.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llm_runtime.warmup.cases import WarmupCase
from llm_runtime.warmup.manifest import programs_of

__all__ = ["OperationProgress"]


@dataclass
class OperationProgress:
    """Done cases per target, the decisions of the last call (None before it), and the programs they need."""

    traced: bool | None = None
    sampled: bool | None = None
    eager_done: set[WarmupCase] = field(default_factory=set)
    trace_done: set[WarmupCase] = field(default_factory=set)
    required: dict[Any, None] = field(default_factory=dict)
    trace_required: dict[Any, None] = field(default_factory=dict)

    def decide(self, *, traced: bool, sampled: bool) -> None:
        """Take over the decisions of a warmup call."""
        self.traced = traced
        self.sampled = sampled

    def done(self, *, traced: bool) -> set[WarmupCase]:
        """The cases of one target."""
        return self.trace_done if traced else self.eager_done

    def covers(self, case: WarmupCase) -> bool:
        """Whether either target has compiled the case."""
        return case in self.eager_done or case in self.trace_done

    def record(self, case: WarmupCase, compiled: list[Any], *, traced: bool) -> None:
        """Mark a case done with the results of its compile calls."""
        keys = [program.key for result in compiled for program in programs_of(result)]
        self.required.update(dict.fromkeys(keys))
        if traced:
            self.trace_required.update(dict.fromkeys(keys))
        self.done(traced=traced).add(case)
