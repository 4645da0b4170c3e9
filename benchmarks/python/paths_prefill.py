# SPDX-License-Identifier: Apache-2.0
"""Hot paths of prefill: planning alone, preparing with sampling, and from signatures to programs and traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from lane import BLOCK, RAW_WIDTH, BenchLane, greedy_params, prefill_call, top_k_params
from null_device import ROWS
from paths import Path

from llm_runtime._core import PrefillPlanner
from llm_runtime.prefill.sampling_params import SamplingParams
from oracle.plan_oracle import plan

#: The four cases: rows, tokens, whether rows may share a wave, and the budgets of planning and of preparing.
CASES = {
    "1 row of 100": (1, 100, True, 3.0, 8.0),
    "32 rows of 128 in one wave": (32, 128, True, 25.0, 45.0),
    "32 singles": (32, 128, False, 60.0, 150.0),
    "8192 in 4 chunks": (1, 8192, True, 8.0, 15.0),
}


def planning_paths() -> list[Path]:
    """Planning alone, against the pure-Python oracle on the same arguments."""
    return [_planning(f"plan: {name}", *case[:4]) for name, case in CASES.items()]


def prepare_paths(lanes: dict[bool, BenchLane], torch: Any = None) -> list[Path]:
    """Plan, sampling rows and signatures, with NumPy inputs and (given torch) with torch tensors.

    torch inputs may take twice the budget.
    """
    paths = []
    for name, (rows, length, batched, _, budget) in CASES.items():
        prepare = lanes[batched].prefill.prepare
        paths.append(_preparing(f"prefill prepare: {name}", prepare, rows, length, budget, None))
        if torch is not None:
            named = f"prefill prepare, torch: {name}"
            paths.append(_preparing(named, prepare, rows, length, 2 * budget, torch.from_numpy))
    return paths


def lookup_path(lane: BenchLane) -> Path:
    """Signatures to program to trace of one request; `lane` must have captured a greedy row of 100."""
    prepared = lane.prefill.prepare(**prefill_call(1, 100), sampling_params=greedy_params())
    preflight = lane.traced.preflight_prefill
    return Path(name="signatures to program to trace", call=lambda: preflight(prepared), budget_us=1.0)


def sampling_for(rows: int) -> SamplingParams:
    """Parameters for `rows` rows in new lists."""
    params = top_k_params()
    return SamplingParams(
        temperature=params.temperature[:rows],
        top_k=params.top_k[:rows],
        top_p=params.top_p[:rows],
        seed=params.seed[:rows],
    )


def mixed_prompts() -> dict[str, Any]:
    """One call of 32 prompts between 1 and 2048 tokens, a third of them with a cached prefix."""
    lengths = np.linspace(1, 2048, ROWS).astype(np.int64)
    starts = np.where(np.arange(ROWS) % 3 == 0, lengths // 2 // BLOCK * BLOCK, 0)
    call = prefill_call(ROWS, 2048)
    return {**call, "prompt_lens": lengths, "start_pos": starts}


def _planning(name: str, rows: int, length: int, batched: bool, budget: float) -> Path:
    batch = {**prefill_call(rows, length), "start_pos": None}
    limits: dict[str, Any] = {
        "block_size": BLOCK,
        "max_batch_size": ROWS,
        "max_prefill_chunk_size": 2048,
        "supports_batched_prefill": batched,
        "disable_batched_prefill": False,
        "max_prefill_batch_size": ROWS,
        "max_actual_page_table_width": RAW_WIDTH,
        "canonical_page_table_width": RAW_WIDTH + 64,
        "start_alignment": BLOCK,
    }
    planner = PrefillPlanner(**limits)
    arguments = [batch[name] for name in ("tokens", "page_table", "prompt_lens", "start_pos", "empty_slots")]
    return Path(
        name=name, call=lambda: planner.plan(*arguments), oracle=lambda: plan(**batch, **limits), budget_us=budget
    )


def _preparing(name: str, prepare: Callable[..., Any], rows: int, length: int, budget: float, convert: Any) -> Path:
    call = prefill_call(rows, length, convert=convert)
    params = sampling_for(rows)
    return Path(name=name, call=lambda: prepare(**call, sampling_params=params), budget_us=budget)
