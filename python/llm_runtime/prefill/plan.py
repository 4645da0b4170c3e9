# SPDX-License-Identifier: Apache-2.0
"""Front of the prefill planner: host arrays in, immutable requests out. The rules live in the C++ core.

Follows chapter 10, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime._core import (
    PrefillChunk,
    PrefillPlanner,
    PrefillRequest,
    prefill_bucket_ladder,
)
from llm_runtime._core import max_prefill_chunk_size as _max_prefill_chunk_size
from llm_runtime._core import padded_prefill_length as _padded_prefill_length
from llm_runtime.host_arrays import host_array

__all__ = [
    "_TILE_SIZE",
    "PrefillChunk",
    "PrefillRequest",
    "_max_prefill_chunk_size",
    "_padded_prefill_length",
    "_plan_prefill_requests",
    "integer_array",
    "last_token_offset",
    "last_token_offsets",
    "plan_call",
    "prefill_bucket_ladder",
]

HostArray = npt.NDArray[Any]

#: Rows of one device tile.
_TILE_SIZE = 32

_INT64, _INT32 = np.dtype(np.int64), np.dtype(np.int32)


def _plan_prefill_requests(
    *,
    tokens: Any,
    page_table: Any,
    prompt_lens: Any = None,
    empty_slots: Sequence[int] | None = None,
    start_pos: Any = None,
    block_size: int,
    max_batch_size: int,
    max_prefill_chunk_size: int,
    supports_batched_prefill: bool = False,
    disable_batched_prefill: bool = False,
    max_prefill_batch_size: int = 8,
    max_actual_page_table_width: int | None = None,
    canonical_page_table_width: int | None = None,
    start_alignment: int | None = None,
) -> tuple[PrefillRequest, ...]:
    """Plan one lane's prefill call: padded waves first, then singles by ascending source row.

    ``tokens`` is ``[N, T]``, ``page_table`` ``[N, W]``, ``prompt_lens`` and ``start_pos`` ``[N]``: integer
    host arrays, read and never kept. ``start_alignment`` (tokens, default the block size) rounds cached
    offsets down; a row whose whole prompt is cached is computed from the largest aligned start below its
    last token. Raises ``ValueError`` naming the row for a length of 0, an unaligned start, a bad slot or a
    table that is too narrow; ``TypeError`` for an argument that is no host array.
    """
    planner = PrefillPlanner(
        block_size=block_size,
        max_batch_size=max_batch_size,
        max_prefill_chunk_size=max_prefill_chunk_size,
        supports_batched_prefill=supports_batched_prefill,
        disable_batched_prefill=disable_batched_prefill,
        max_prefill_batch_size=max_prefill_batch_size,
        max_actual_page_table_width=max_actual_page_table_width,
        canonical_page_table_width=canonical_page_table_width,
        start_alignment=block_size if start_alignment is None else start_alignment,
    )
    return plan_call(planner, tokens, page_table, prompt_lens, start_pos, empty_slots, False)


def plan_call(
    planner: PrefillPlanner,
    tokens: Any,
    page_table: Any,
    prompt_lens: Any,
    start_pos: Any,
    empty_slots: Sequence[int] | None,
    disable_batched_prefill: bool,
) -> tuple[PrefillRequest, ...]:
    """Plan one call of any host arrays; refused as in :func:`_plan_prefill_requests`."""
    try:
        return planner.plan(tokens, page_table, prompt_lens, start_pos, empty_slots, disable_batched_prefill)
    except (TypeError, ValueError):
        # Perhaps another kind of array than the core takes: convert below, or hear the same error.
        pass
    return planner.plan(
        integer_array(tokens, "tokens"),
        integer_array(page_table, "page_table"),
        None if prompt_lens is None else integer_array(prompt_lens, "prompt_lens"),
        None if start_pos is None else integer_array(start_pos, "start_pos"),
        None if empty_slots is None else [int(slot) for slot in empty_slots],
        disable_batched_prefill,
    )


def integer_array(value: Any, name: str) -> HostArray:
    """View ``value`` as a C-contiguous int32 or int64 array; copies only for another integer type or
    layout."""
    array: HostArray = value if type(value) is np.ndarray else host_array(value, name=name)
    dtype = array.dtype
    if dtype != _INT64 and dtype != _INT32:
        if dtype.kind not in "iu":
            raise ValueError(f"{name} must hold integers, got {dtype}")
        array = array.astype(np.int64)
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.require(array, requirements=("C", "A"))


def last_token_offset(request: PrefillRequest) -> int:
    """Position of the last token inside the step that computes it, in tokens.

    Chunked: relative to the final chunk. Regular: relative to the uncached tokens, the largest of the wave.
    """
    if request.uses_chunked_prefill:
        final = request.chunks[-1]
        return int(request.last_token_indices[0] - final.chunk_start_idx) % final.chunk_size
    return max(last_token_offsets(request))


def last_token_offsets(request: PrefillRequest) -> tuple[int, ...]:
    """Position of each active row's last token among its uncached tokens."""
    return tuple(last - cached for last, cached in zip(request.last_token_indices, request.cached_tokens, strict=True))
