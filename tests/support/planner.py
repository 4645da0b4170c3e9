# SPDX-License-Identifier: Apache-2.0
"""One call of the core's planner with its limits and its batch side by side."""

from __future__ import annotations

from typing import Any

from llm_runtime._core import PrefillPlanner

BATCH = ("tokens", "page_table", "prompt_lens", "start_pos", "empty_slots")


def core_plan(**call: Any) -> Any:
    """The requests of a call; keywords of the batch and of the limits."""
    return _planner(call).plan(**_batch(call))


def core_explain(**call: Any) -> Any:
    """The requests of a call and why buckets are no waves."""
    return _planner(call).explain(**_batch(call))


def _planner(call: dict[str, Any]) -> PrefillPlanner:
    return PrefillPlanner(**{name: value for name, value in call.items() if name not in BATCH})


def _batch(call: dict[str, Any]) -> dict[str, Any]:
    return {name: call[name] for name in BATCH}
