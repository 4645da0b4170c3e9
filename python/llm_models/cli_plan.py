# SPDX-License-Identifier: Apache-2.0
"""`llm-runtime plan`: what a prefill call becomes, and why, before any device exists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_models.cli_plan_output import show_json, show_tables
from llm_runtime.config import PageTableLayout, fit_paged_kv_num_blocks
from llm_runtime.prefill.explain import ExplainedPlan, explain_prefill
from llm_runtime.prefill.preparation import batching_disabled_by_environment

LONGEST_NUMBER = 10


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `llm-runtime plan`; the planner and the layout check them."""

    lengths: str
    cached: str | None
    slots: str | None
    block_size: int
    max_batch_size: int
    max_prefill_batch_size: int
    chunk: int
    max_seq_len: int | None
    num_blocks: int | None
    batching: bool
    alignment: int | None
    json: bool


def run_plan(options: PlanOptions) -> None:
    """Plan and print; a user's mistake is a `ValueError` with one clear line."""
    lengths = numbers(options.lengths, "--lengths")
    layout = resolve_layout(options, longest=max(*lengths, 1))
    try:
        plan = plan_call(options, lengths, layout)
    except MemoryError:
        raise ValueError(f"{len(lengths)} rows of up to {max(lengths)} tokens do not fit into memory") from None
    (show_json if options.json else show_tables)(plan, layout)


def numbers(text: str, option: str) -> list[int]:
    """The integers of a comma-separated option."""
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if not item.removeprefix("-").isdecimal():
            raise ValueError(f"{option} must be whole numbers separated by commas, got {item!r}")
        if len(item) > LONGEST_NUMBER:
            raise ValueError(f"{option} must hold numbers of at most {LONGEST_NUMBER} digits, got {item}")
    return [int(item) for item in items]


def resolve_layout(options: PlanOptions, *, longest: int) -> PageTableLayout:
    """The geometry of a lane that holds sequences of `max_seq_len` tokens (the longest prompt by default).

    The cache holds `num_blocks` blocks, by default enough for every slot.
    """
    max_seq_len = longest if options.max_seq_len is None else options.max_seq_len
    num_blocks = options.num_blocks
    if num_blocks is None and max_seq_len > 0 and options.block_size > 0:
        slots = max(options.max_batch_size, 1)
        num_blocks = slots * fit_paged_kv_num_blocks(1, max_seq_len=max_seq_len, block_size=options.block_size)
    return PageTableLayout.resolve(
        block_size=options.block_size,
        model_max_sequence_length=max_seq_len,
        physical_num_blocks=1 if num_blocks is None else num_blocks,
        max_prefill_chunk_size=options.chunk,
    )


def plan_call(options: PlanOptions, lengths: list[int], layout: PageTableLayout) -> ExplainedPlan:
    """Plan one row for each length. Row r owns the blocks r * width, r * width + 1, …"""
    rows, width = len(lengths), layout.raw_capacity_width
    cached = None if options.cached is None else numbers(options.cached, "--cached")
    return explain_prefill(
        tokens=np.zeros((rows, max(*lengths, 1)), np.int32),
        page_table=np.arange(rows * width, dtype=np.int64).reshape(rows, width),
        prompt_lens=np.array(lengths),
        start_pos=None if cached is None else np.array(cached),
        empty_slots=None if options.slots is None else numbers(options.slots, "--slots"),
        page_table_layout=layout,
        max_batch_size=options.max_batch_size,
        max_prefill_chunk_size=options.chunk,
        supports_batched_prefill=True,
        disable_batched_prefill=not options.batching or batching_disabled_by_environment(),
        max_prefill_batch_size=options.max_prefill_batch_size,
        prefill_start_alignment=options.alignment,
    )
