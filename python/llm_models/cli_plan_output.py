# SPDX-License-Identifier: Apache-2.0
"""What `llm-runtime plan` shows: tables for people, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from llm_runtime.config import PageTableLayout
from llm_runtime.prefill.explain import ExplainedPlan, ExplainedRequest
from llm_runtime.prefill.plan import PrefillChunk, PrefillRequest

#: Entries of a table row that are shown at its head and before its filler.
SHOWN_BLOCKS = 3
SENTINELS = {-1: "do not write", 0: "any block"}


def show_json(plan: ExplainedPlan, layout: PageTableLayout) -> None:
    """Print the whole plan as one JSON object; arrays are nested lists."""
    print(
        json.dumps(
            {
                "layout": {
                    "block_size": layout.block_size,
                    "raw_capacity_width": layout.raw_capacity_width,
                    "prefill_width": layout.prefill_width,
                    "decode_width": layout.decode_width,
                },
                "requests": [request_values(item) for item in plan.requests],
                "fallbacks": [
                    {"rows": item.rows, "rule": item.rule, "detail": item.detail} for item in plan.fallbacks
                ],
            }
        )
    )


def request_values(item: ExplainedRequest) -> dict[str, Any]:
    """A request without its tokens, which are made up."""
    request = item.request
    return {
        "kind": request.kind,
        "source_rows": request.source_rows,
        "slots": request.slots,
        "padded_batch_size": request.padded_batch_size,
        "padded_sequence_length": request.padded_sequence_length,
        "prompt_lengths": request.prompt_lengths,
        "cached_tokens": request.cached_tokens,
        "uses_chunked_prefill": request.uses_chunked_prefill,
        "page_table": request.page_table.tolist(),
        "chunks": [
            {
                "start": chunk.chunk_start_idx,
                "size": chunk.chunk_size,
                "token_slice": [chunk.token_slice.start, chunk.token_slice.stop],
                "contains_last_token": chunk.contains_last_token,
                "page_table": None if chunk.chunk_page_table is None else chunk.chunk_page_table.tolist(),
            }
            for chunk in request.chunks
        ],
        "program_digest": item.program_digest,
        "trace_digest": item.trace_digest,
    }


def show_tables(plan: ExplainedPlan, layout: PageTableLayout) -> None:
    """Print one block a request, then the reasons of the buckets that are no waves."""
    console = Console(highlight=False)
    console.print(
        f"{layout.raw_capacity_width} blocks of {layout.block_size} tokens a sequence; "
        f"table columns: prefill {layout.prefill_width}, decode {layout.decode_width}"
    )
    for index, item in enumerate(plan.requests):
        console.print(request_table(index, item, layout.block_size))
    if plan.fallbacks:
        console.print(fallback_table(plan))


def request_table(index: int, item: ExplainedRequest, block_size: int) -> Table:
    """One request: a label and a value a line."""
    request = item.request
    table = Table(
        title=f"request {index}: {variant(request)}",
        title_justify="left",
        title_style="bold",
        show_header=False,
        box=None,
        padding=(0, 1, 0, 0),  # a digest fits into 80 columns
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("rows", joined(request.source_rows))
    table.add_row("slots", joined(request.slots))
    table.add_row("wave", wave(request))
    table.add_row("tokens", f"{joined(request.prompt_lengths)}, cached {joined(request.cached_tokens)}")
    table.add_row("padded length", str(request.padded_sequence_length))
    for label, chunk in labelled("chunks", request.chunks):
        table.add_row(label, chunk_line(chunk))
    for label, row in labelled("page table", range(request.padded_batch_size)):
        table.add_row(label, blocks_line(request.page_table[row].tolist(), mapped_blocks(request, row, block_size)))
    table.add_row("program", item.program_digest)
    table.add_row("trace", item.trace_digest)
    return table


def fallback_table(plan: ExplainedPlan) -> Table:
    """One line for each padded length whose rows are no wave."""
    table = Table(
        "rows", "rule", "numbers", title="not batched", title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
    for item in plan.fallbacks:
        table.add_row(joined(item.rows), item.rule, item.detail)
    return table


def variant(request: PrefillRequest) -> str:
    """What kind of invocation the request is, in words."""
    if request.kind == "batched":
        return "wave"
    return "single, chunked" if request.uses_chunked_prefill else "single"


def wave(request: PrefillRequest) -> str:
    """Active and physical rows of a wave."""
    if request.kind != "batched":
        return "none"
    return f"{len(request.source_rows)} active rows of {request.padded_batch_size}"


def chunk_line(chunk: PrefillChunk) -> str:
    """Positions in the sequence, columns of the request's tokens, and the blocks to fill."""
    start, stop = chunk.token_slice.start, chunk.token_slice.stop
    first = chunk.chunk_start_idx
    text = f"positions {first} to {first + chunk.chunk_size - 1}, tokens {start} to {stop - 1}"
    if chunk.chunk_page_table is not None:
        blocks = chunk.chunk_page_table[0].tolist()
        text += f", fills {blocks_line(blocks, sum(block >= 0 for block in blocks))}"
    return f"{text}, last token" if chunk.contains_last_token else text


def mapped_blocks(request: PrefillRequest, row: int, block_size: int) -> int:
    """Entries of a table row that belong to the prompt; none in a padding row."""
    if row >= len(request.prompt_lengths):
        return 0
    return -(-request.prompt_lengths[row] // block_size)


def blocks_line(blocks: Sequence[int], mapped: int) -> str:
    """The head of a table row, its last mapped block, and how often which sentinel follows."""
    head = [str(block) for block in blocks[:mapped]]
    if mapped > SHOWN_BLOCKS + 1:
        head = [*head[:SHOWN_BLOCKS], "…", head[-1]]
    if mapped == len(blocks):
        return " ".join(head)
    filler = blocks[mapped]
    tail = f"{len(blocks) - mapped} x {filler} ({SENTINELS[filler]})"
    return f"{' '.join(head)} then {tail}" if head else tail


def labelled(label: str, values: Any) -> list[tuple[str, Any]]:
    """The values with the label on the first of them only."""
    return [(label if index == 0 else "", value) for index, value in enumerate(values)]


def joined(values: Sequence[int]) -> str:
    """Numbers with spaces between them."""
    return " ".join(map(str, values))
