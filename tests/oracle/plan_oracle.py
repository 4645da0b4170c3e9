# SPDX-License-Identifier: Apache-2.0
"""A slow prefill planner, written from the rules alone, to check the fast one against.

It favours the shape of chapter 10, section 5 over speed: every rule is one function, arrays are plain lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PHYSICAL_BATCHES = (1, 2, 4, 8, 16, 32)
WAVE_TOKEN_CEILING = 128 * 1024


class Refusal(ValueError):
    """Why a call is refused: `rule` names the broken rule, `row` the first bad row if there is one."""

    def __init__(self, rule: str, row: int | None = None) -> None:
        super().__init__(f"{rule} (row {row})")
        self.rule = rule
        self.row = row


@dataclass(frozen=True)
class Row:
    source: int
    slot: int
    length: int
    start: int

    @property
    def uncached(self) -> int:
        return self.length - self.start


@dataclass
class Chunk:
    token_slice: tuple[int, int]
    start: int
    size: int
    table: list[int] | None
    last: bool


@dataclass
class Request:
    kind: str
    rows: list[Row]
    tokens: list[list[int]]
    page_table: list[list[int]]
    chunks: list[Chunk] = field(default_factory=list)
    chunked: bool = False


@dataclass(frozen=True)
class Rules:
    block_size: int
    max_batch_size: int
    max_prefill_chunk_size: int
    supports_batched_prefill: bool
    disable_batched_prefill: bool
    max_prefill_batch_size: int
    max_actual_page_table_width: int | None
    canonical_page_table_width: int | None
    start_alignment: int


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def bucket(n: int) -> int:
    """Padded length of n tokens: 128, 1024, then the next power of two."""
    if n <= 128:
        return 128
    if n <= 1024:
        return 1024
    size = 2048
    while size < n:
        size *= 2
    return size


def is_legal_cap(cap: int) -> bool:
    powers = {2**n for n in range(7, 31)}
    return cap in powers or (cap > 0 and cap % 2048 == 0)


def chunk_size(padded: int, cap: int) -> int:
    step = 2048 if cap % 2048 == 0 else cap
    sizes = [size for size in range(step, min(padded, cap) + 1, step) if padded % size == 0]
    return max(sizes)


def check_rules(rules: Rules) -> None:
    if rules.block_size <= 0 or rules.max_batch_size <= 0:
        raise Refusal("positive")
    if not is_legal_cap(rules.max_prefill_chunk_size):
        raise Refusal("chunk cap")
    if rules.max_prefill_batch_size <= 0 or rules.start_alignment <= 0:
        raise Refusal("positive")
    if rules.start_alignment % rules.block_size:
        raise Refusal("start alignment")


def check_widths(rules: Rules) -> None:
    raw, canonical = rules.max_actual_page_table_width, rules.canonical_page_table_width
    if (raw is None) != (canonical is None):
        raise Refusal("widths come together")
    if raw is None or canonical is None:
        return
    if raw <= 0 or canonical < raw or canonical % 8:
        raise Refusal("widths")


def check_slots(slots: Sequence[int], count: int, capacity: int) -> None:
    if len(slots) != count:
        raise Refusal("slot count")
    if len(set(slots)) != count or any(not 0 <= slot < capacity for slot in slots):
        raise Refusal("slots")


def read_row(index: int, slot: int, length: int, cached: int, width: int, rules: Rules) -> Row:
    if cached < 0 or length < 0 or cached > length or length > width:
        raise Refusal("invalid lengths", index)
    if length == 0:
        raise Refusal("empty prompt", index)
    if cached % rules.block_size:
        raise Refusal("alignment", index)
    starts = [s for s in range(0, length, rules.start_alignment) if s <= cached]
    return Row(index, slot, length, max(starts))


def mapped_blocks(row: Row, table: list[list[int]], rules: Rules) -> int:
    blocks = ceil_div(row.length, rules.block_size)
    if rules.max_actual_page_table_width is not None and blocks > rules.max_actual_page_table_width:
        raise Refusal("capacity", row.source)
    if blocks > len(table[row.source]):
        raise Refusal("table too narrow", row.source)
    if any(not 0 <= block < 2**31 for block in table[row.source][:blocks]):
        raise Refusal("no block", row.source)
    return blocks


def padded_list(values: list[int], width: int, filler: int) -> list[int]:
    return values + [filler] * (width - len(values))


def singles_rule(members: list[Row], rules: Rules) -> str | None:
    """The first rule that makes the bucket's rows single requests, None for a wave."""
    padded, size = bucket(members[0].uncached), wave_size(members)
    broken = {
        "fewer_than_two_rows": len(members) < 2,
        "not_supported": not rules.supports_batched_prefill,
        "disabled": rules.disable_batched_prefill,
        "cached_tokens": any(row.start for row in members),
        "max_prefill_chunk_size": padded > rules.max_prefill_chunk_size,
        "physical_batch_sizes": size is None,
        "max_prefill_batch_size": size is not None and size > rules.max_prefill_batch_size,
        "max_batch_size": size is not None and size > rules.max_batch_size,
        "wave_token_ceiling": size is not None and size * padded >= WAVE_TOKEN_CEILING,
    }
    return next((rule for rule, is_broken in broken.items() if is_broken), None)


def wave_size(members: list[Row]) -> int | None:
    """Physical rows of a wave of these rows, None if no size holds them."""
    return next((size for size in PHYSICAL_BATCHES if size >= len(members)), None)


def plan_wave(
    members: list[Row], size: int, tokens: list[list[int]], table: list[list[int]], rules: Rules
) -> Request:
    padded = bucket(members[0].uncached)
    width = rules.canonical_page_table_width or ceil_div(padded, rules.block_size)
    request = Request("batched", members, [], [])
    for row in members:
        blocks = mapped_blocks(row, table, rules)
        if padded > width * rules.block_size:
            raise Refusal("overhang", row.source)
        request.tokens.append(padded_list(tokens[row.source][: row.length], padded, 0))
        request.page_table.append(padded_list(table[row.source][:blocks], width, -1))
    for _ in range(size - len(members)):
        request.tokens.append([0] * padded)
        request.page_table.append([-1] * width)
    request.chunks.append(Chunk((0, padded), 0, padded, None, True))
    return request


def plan_single(row: Row, tokens: list[list[int]], table: list[list[int]], rules: Rules) -> Request:
    bs, cap = rules.block_size, rules.max_prefill_chunk_size
    padded = bucket(row.uncached)
    chunked = padded > cap or row.start > 0
    size = chunk_size(padded, cap) if padded > cap else padded
    starts = [start for start in range(0, padded, size) if start < row.uncached]
    width = rules.canonical_page_table_width or ceil_div(row.start + padded, bs)
    blocks = mapped_blocks(row, table, rules)
    if row.start + starts[-1] + size > width * bs:
        raise Refusal("overhang", row.source)
    if len(starts) > 1 and size % bs:
        raise Refusal("chunk inside block", row.source)
    ids = table[row.source][:blocks]
    request = Request(
        "single",
        [row],
        [padded_list(tokens[row.source][row.start : row.length], padded, 0)],
        [padded_list(ids, width, 0 if chunked else -1)],
        chunked=chunked,
    )
    for start in starts:
        first = (row.start + start) // bs
        columns = ceil_div(size, bs)
        fill = padded_list(ids[first : first + columns], columns, -1) if chunked else None
        last = start <= row.uncached - 1 < start + size
        request.chunks.append(Chunk((start, start + size), row.start + start, size, fill, last))
    return request


def explain(
    *,
    tokens: Any,
    page_table: Any,
    prompt_lens: Any = None,
    empty_slots: Sequence[int] | None = None,
    start_pos: Any = None,
    **policy: Any,
) -> tuple[list[Request], list[tuple[tuple[int, ...], str]]]:
    """The requests of one call, and (rows, rule) of each bucket without a wave; `Refusal` where the planner must
    raise `ValueError`."""
    rules = Rules(**policy)
    check_rules(rules)
    count, width = tokens.shape
    token_rows, table_rows = tokens.tolist(), page_table.tolist()
    if len(table_rows) != count:
        raise Refusal("row count")
    lengths = [width] * count if prompt_lens is None else prompt_lens.tolist()
    cached = [0] * count if start_pos is None else start_pos.tolist()
    if len(lengths) != count or len(cached) != count:
        raise Refusal("vector length")
    slots = list(range(count)) if empty_slots is None else list(empty_slots)
    check_slots(slots, count, rules.max_batch_size)
    check_widths(rules)

    buckets: dict[int, list[Row]] = {}
    for index in range(count):
        row = read_row(index, slots[index], lengths[index], cached[index], width, rules)
        buckets.setdefault(bucket(row.uncached), []).append(row)

    waves: list[Request] = []
    singles: list[Row] = []
    fallbacks: list[tuple[tuple[int, ...], str]] = []
    for members in buckets.values():
        rule, size = singles_rule(members, rules), wave_size(members)
        if rule is None and size is not None:
            waves.append(plan_wave(members, size, token_rows, table_rows, rules))
        else:
            singles += members
            fallbacks.append((tuple(row.source for row in members), str(rule)))
    singles.sort(key=lambda row: row.source)
    return waves + [plan_single(row, token_rows, table_rows, rules) for row in singles], fallbacks


def plan(**call: Any) -> list[Request]:
    """The requests of one call alone."""
    return explain(**call)[0]
