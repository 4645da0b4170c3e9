# SPDX-License-Identifier: Apache-2.0
"""Random calls of the prefill planner. `PLAN_ORACLE_EXAMPLES` sets how many a test makes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from llm_runtime import _core as core

EXAMPLES = int(os.environ.get("PLAN_ORACLE_EXAMPLES", "300"))
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
#: For the one comparison that every field of every plan depends on.
thousands = settings(many, max_examples=max(EXAMPLES, 2000))
Call = dict[str, Any]

BUCKET_EDGES = [1, *(edge + step for edge in (32, 128, 256, 1024, 2048, 4096) for step in (-1, 0, 1))]
CAPS = [128, 256, 512, 1024, 2048, 4096, 6144]
IDS = np.random.default_rng(7).permutation(200_000)


def lengths_up_to(limit: int) -> st.SearchStrategy[int]:
    return st.integers(1, limit) | st.sampled_from([n for n in BUCKET_EDGES if n <= limit])


@st.composite
def legal_calls(draw: st.DrawFn) -> Call:
    """Calls that a scheduler may make on a resolved layout: none of them may be refused."""
    block = draw(st.sampled_from([16, 32, 64, 128]))
    cap = draw(st.sampled_from(CAPS))
    limit = draw(st.integers(1, 5000))
    blocks = core.fit_paged_kv_num_blocks(draw(st.integers(1, 200)), max_seq_len=limit, block_size=block)
    layout = core.PageTableLayout.resolve(
        block_size=block,
        model_max_sequence_length=limit,
        physical_num_blocks=blocks,
        max_prefill_chunk_size=cap,
    )
    count = draw(st.integers(0, 5))
    alignment = block * draw(st.sampled_from([1, 1, 2, 3]))
    capacity = draw(st.integers(max(count, 1), 40))
    lengths = [draw(lengths_up_to(limit)) for _ in range(count)]
    starts = [draw(st.just(0) | st.integers(0, n // block).map(lambda b: b * block)) for n in lengths]
    width = max(lengths, default=0) + draw(st.integers(0, 3))
    columns = layout.raw_capacity_width + draw(st.integers(0, 3))
    return {
        **arrays(draw, count, width, columns),
        "prompt_lens": np.array(lengths, draw(integer_types)),
        "start_pos": np.array(starts, draw(integer_types)),
        "empty_slots": draw(st.permutations(range(capacity)))[:count],
        "block_size": block,
        "max_batch_size": capacity,
        "max_prefill_chunk_size": cap,
        "supports_batched_prefill": draw(st.booleans()),
        "disable_batched_prefill": draw(st.sampled_from([False, False, True])),
        "max_prefill_batch_size": draw(st.sampled_from([1, 2, 4, 8, 16, 32])),
        "max_actual_page_table_width": layout.raw_capacity_width,
        "canonical_page_table_width": layout.prefill_width,
        "start_alignment": alignment,
    }


integer_types = st.sampled_from([np.int32, np.int64])


def arrays(draw: st.DrawFn, count: int, width: int, columns: int) -> Call:
    """Distinct tokens and distinct block ids, so that every value tells where it came from."""
    tokens = np.arange(1, count * width + 1).reshape(count, width)
    table = IDS[: count * columns].reshape(count, columns)
    return {"tokens": tokens.astype(draw(integer_types)), "page_table": table.astype(draw(integer_types))}


@st.composite
def any_calls(draw: st.DrawFn) -> Call:
    """Legal calls with up to two things changed, often for the worse."""
    call = draw(legal_calls())
    count = len(call["tokens"])
    for _ in range(draw(st.integers(0, 2))):
        call.update(draw(st.sampled_from(CHANGES))(draw, call, count))
    return call


def _entry(draw: st.DrawFn, call: Call, name: str, values: list[int]) -> Call:
    changed = call[name].copy()
    if changed.size:
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.sampled_from(values))
    return {name: changed}


CHANGES: list[Any] = [
    lambda draw, call, n: {"prompt_lens": None},
    lambda draw, call, n: {"start_pos": None},
    lambda draw, call, n: {"empty_slots": None},
    lambda draw, call, n: {"empty_slots": draw(st.lists(st.integers(-1, 6), min_size=n, max_size=n))},
    lambda draw, call, n: {
        "prompt_lens": call["prompt_lens"][:-1] if call["prompt_lens"] is not None else None
    },
    lambda draw, call, n: {"max_actual_page_table_width": None, "canonical_page_table_width": None},
    lambda draw, call, n: {"canonical_page_table_width": draw(st.sampled_from([None, 4, 8, 16, 40, 64]))},
    lambda draw, call, n: {"max_actual_page_table_width": draw(st.sampled_from([None, 0, 1, 4]))},
    lambda draw, call, n: {
        "page_table": np.ascontiguousarray(call["page_table"][:, : draw(st.integers(0, 8))])
    },
    lambda draw, call, n: {"page_table": call["page_table"][:-1]},
    lambda draw, call, n: {"max_batch_size": draw(st.integers(0, 6))},
    lambda draw, call, n: {"max_prefill_chunk_size": draw(st.sampled_from([*CAPS, 0, 64, 100, 3000]))},
    lambda draw, call, n: {"start_alignment": draw(st.sampled_from([0, 16, 32, 96, 128, 512]))},
    lambda draw, call, n: {"block_size": draw(st.sampled_from([0, 1, 16, 48, 96, 256]))},
    lambda draw, call, n: (
        _entry(draw, call, "prompt_lens", [-1, 0, 1, 128, 9999]) if call["prompt_lens"] is not None else {}
    ),
    lambda draw, call, n: (
        _entry(draw, call, "start_pos", [-32, 1, 32, 64, 128, 9999]) if call["start_pos"] is not None else {}
    ),
    lambda draw, call, n: {"page_table": np.where(call["page_table"] % 97 == 5, -1, call["page_table"])},
]
