# SPDX-License-Identifier: Apache-2.0
"""Would a call's invocation lengths be traceable? Follows chapter 20, section 9.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_runtime.prefill.plan import _max_prefill_chunk_size, _padded_prefill_length, integer_array


def can_trace_rows(
    *,
    tokens: Any,
    prompt_lens: Any,
    start_pos: Any,
    block_size: int,
    start_alignment: int,
    max_prefill_chunk_size: int,
    can_enable_trace: Callable[[int, int], bool],
) -> bool:
    """Whether every row's invocation length may be traced; malformed input is False, never an error.

    Uses the planner's rules for starts (rounding down to the alignment, at least one computed token) but
    builds no plan, so it knows nothing of waves, page tables or sampling.
    """
    try:
        array = integer_array(tokens, "tokens")
        if array.ndim != 2 or array.shape[0] == 0:
            return False
        rows, width = array.shape
        lengths = [width] * rows if prompt_lens is None else _rows(prompt_lens, rows)
        starts = [0] * rows if start_pos is None else _rows(start_pos, rows)
    except (TypeError, ValueError):
        return False
    for length, start in zip(lengths, starts, strict=True):
        if not 0 < length <= width or not 0 <= start <= length or start % block_size:
            return False
        first = min(start, length - 1) // start_alignment * start_alignment
        padded = _padded_prefill_length(length - first)
        if padded > max_prefill_chunk_size:
            padded = _max_prefill_chunk_size(padded, max_prefill_chunk_size)
        if not can_enable_trace(padded, 0):
            return False
    return True


def _rows(value: Any, rows: int) -> list[int]:
    array = integer_array(value, "rows")
    if array.shape != (rows,):
        raise ValueError("one value per row is needed")
    values: list[int] = array.tolist()
    return values
