# SPDX-License-Identifier: Apache-2.0
"""How planning and lookups grow: with rows, with the table's width, and with the number of registered programs."""

from __future__ import annotations

from typing import Any

from lane import BLOCK, ROWS, prefill_call
from timing import Effort, median_us

from llm_runtime._core import PrefillProgramSignature
from llm_runtime.prefill.plan import _plan_prefill_requests
from llm_runtime.program_compiler import ProgramCompiler

ROW_COUNTS = (1, 2, 4, 8, 16, 32)
TABLE_WIDTHS = (64, 256, 1024, 4096)
REGISTRY_SIZES = (1, 10, 100, 1000)


def planning_growth(effort: Effort) -> dict[str, dict[int, float]]:
    """Median microseconds by size."""
    return {
        "plan_us_by_rows": {rows: _plan_us(effort, rows=rows, width=64) for rows in ROW_COUNTS},
        "plan_us_by_table_width": {width: _plan_us(effort, rows=8, width=width) for width in TABLE_WIDTHS},
        "lookup_us_by_programs": {size: _lookup_us(effort, size) for size in REGISTRY_SIZES},
    }


def _plan_us(effort: Effort, *, rows: int, width: int) -> float:
    call: dict[str, Any] = {
        **prefill_call(rows, 128),
        "block_size": BLOCK,
        "max_batch_size": ROWS,
        "max_prefill_chunk_size": 2048,
        "max_actual_page_table_width": width,
        "canonical_page_table_width": width,
    }
    return median_us(lambda: _plan_prefill_requests(**call), effort)


def _lookup_us(effort: Effort, programs: int) -> float:
    from null_device import LOGITS, open_mesh_device

    compiler = ProgramCompiler(open_mesh_device(), lambda: "bound")
    for width in range(1, programs + 1):
        compiler.compile(_signature(width), lambda _context: LOGITS)
    wanted = _signature((programs + 1) // 2)
    return median_us(lambda: compiler.find(wanted), effort)


def _signature(width: int) -> PrefillProgramSignature:
    return PrefillProgramSignature("regular-single", 1, 128, width, None, "topk")
