# SPDX-License-Identifier: Apache-2.0
"""The planner against a slow one on random calls, and the laws that every plan keeps.

`PLAN_ORACLE_EXAMPLES` sets the number of random calls.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llm_runtime import _core as core
from oracle.plan_oracle import Refusal, Request, ceil_div, plan

EXAMPLES = int(os.environ.get("PLAN_ORACLE_EXAMPLES", "300"))
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
Call = dict[str, Any]

BUCKET_EDGES = [
    1,
    31,
    32,
    33,
    64,
    127,
    128,
    129,
    255,
    256,
    257,
    300,
    900,
    1023,
    1024,
    1025,
    2047,
    2048,
    2049,
    4097,
]
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


def fields_of(request: Any) -> Any:
    return (
        request.kind,
        request.source_rows,
        request.slots,
        request.prompt_lengths,
        request.cached_tokens,
        request.last_token_indices,
        request.tokens.dtype,
        request.tokens.tolist(),
        request.page_table.dtype,
        request.page_table.tolist(),
        request.page_table_width,
        request.padded_sequence_length,
        request.padded_batch_size,
        request.uses_chunked_prefill,
        [
            (
                chunk.token_slice,
                chunk.chunk_start_idx,
                chunk.chunk_size,
                None if chunk.chunk_page_table is None else chunk.chunk_page_table.tolist(),
                chunk.contains_last_token,
            )
            for chunk in request.chunks
        ],
    )


def expected_fields(request: Request) -> Any:
    return (
        request.kind,
        tuple(row.source for row in request.rows),
        tuple(row.slot for row in request.rows),
        tuple(row.length for row in request.rows),
        tuple(row.start for row in request.rows),
        tuple(row.length - 1 for row in request.rows),
        np.dtype(np.int64),
        request.tokens,
        np.dtype(np.int32),
        request.page_table,
        len(request.page_table[0]),
        len(request.tokens[0]),
        len(request.tokens),
        request.chunked,
        [
            (
                slice(*chunk.token_slice),
                chunk.start,
                chunk.size,
                None if chunk.table is None else [chunk.table],
                chunk.last,
            )
            for chunk in request.chunks
        ],
    )


@many
@given(any_calls())
def test_plans_and_refusals_equal_the_oracle(call: Call) -> None:
    try:
        expected = [expected_fields(request) for request in plan(**call)]
    except Refusal as refusal:
        with pytest.raises(ValueError) as caught:
            core.plan_prefill(**call)
        if refusal.row is not None:
            assert f"row {refusal.row}" in str(caught.value)
        return
    assert [fields_of(request) for request in core.plan_prefill(**call)] == expected


@pytest.mark.covers("P30", "P31")
@many
@given(legal_calls())
def test_a_legal_call_is_never_refused_and_its_input_never_written(call: Call) -> None:
    before = {name: value.copy() for name, value in call.items() if isinstance(value, np.ndarray)}
    for value in call.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    requests = core.plan_prefill(**call)
    for name, value in before.items():
        assert np.array_equal(call[name], value)
    planned = [row for request in requests for row in request.source_rows]
    assert sorted(planned) == list(range(len(call["tokens"])))


def writes_of(request: Any, block_size: int) -> list[tuple[int, int, int, int]]:
    """(row in the request, token, block, offset) of everything that the device would fill."""
    result = []
    for chunk in request.chunks:
        fill = request.page_table if chunk.chunk_page_table is None else chunk.chunk_page_table
        for row in range(request.padded_batch_size):
            for i, token in enumerate(request.tokens[row, chunk.token_slice].tolist()):
                block = int(fill[row, i // block_size])
                if block >= 0:
                    result.append((row, token, block, i % block_size))
    return result


@pytest.mark.covers("P01", "P03", "P16", "P20", "P31", "P34")
@many
@given(legal_calls())
def test_every_uncached_token_goes_once_into_its_own_block(call: Call) -> None:
    tokens, table, block_size = call["tokens"], call["page_table"], call["block_size"]
    real: Counter[tuple[int, int, int]] = Counter()
    wanted = []
    for request in core.plan_prefill(**call):
        for position, row in enumerate(request.source_rows):
            length, start = request.prompt_lengths[position], request.cached_tokens[position]
            assert 0 <= start < length and start <= max(int(call["start_pos"][row]), 0)
            wanted += [
                (int(tokens[row, p]), int(table[row, p // block_size]), p % block_size)
                for p in range(start, length)
            ]
        own = [
            set(table[row, start // block_size : ceil_div(length, block_size)].tolist())
            for row, length, start in zip(
                request.source_rows, request.prompt_lengths, request.cached_tokens, strict=True
            )
        ]
        for row, token, block, offset in writes_of(request, block_size):
            assert row < len(own) and block in own[row]
            if token:
                real[token, block, offset] += 1
        if request.uses_chunked_prefill:
            assert request.page_table.min() >= 0
    assert real == Counter(wanted)


@pytest.mark.covers("P24", "P25")
@many
@given(legal_calls())
def test_the_last_token_is_in_the_last_chunk_only(call: Call) -> None:
    for request in core.plan_prefill(**call):
        assert [chunk.contains_last_token for chunk in request.chunks][:-1] == [False] * (
            len(request.chunks) - 1
        )
        final = request.chunks[-1]
        assert final.contains_last_token
        for last in request.last_token_indices:
            assert 0 <= last - final.chunk_start_idx < final.chunk_size
        starts = [chunk.token_slice.start for chunk in request.chunks]
        assert starts == [i * final.chunk_size for i in range(len(starts))]
        assert len({chunk.chunk_size for chunk in request.chunks}) == 1


@pytest.mark.covers("SIG-18")
@many
@given(legal_calls(), st.sampled_from(["logits", "argmax", "topk"]), st.booleans())
def test_identity_ignores_slots_contents_and_dtype(call: Call, path: str, penalties: bool) -> None:
    def identities(arguments: Call) -> list[Any]:
        return [
            (
                core.build_program_signatures(
                    request, path, static_q128_topk_supported=True, penalties_enabled=penalties
                ),
                core.build_trace_signature(
                    request, trace_enabled=True, sampling_path=path, penalties_enabled=penalties
                ),
            )
            for request in core.plan_prefill(**arguments)
        ]

    other = {
        **call,
        "tokens": call["tokens"].astype(np.int64)[:, ::-1].copy(),
        "page_table": call["page_table"].astype(np.int64)[:, ::-1].copy(),
        "empty_slots": call["empty_slots"][::-1],
    }
    assert identities(other) == identities(call)
    assert all(len(programs) == 1 for programs, _ in identities(call))


@many
@given(legal_calls())
def test_traces_ignore_active_rows_and_cached_offsets(call: Call) -> None:
    by_shape: dict[Any, Any] = {}
    for request in core.plan_prefill(**call):
        shape = (
            request.kind,
            request.uses_chunked_prefill,
            request.padded_batch_size,
            request.chunks[0].chunk_size,
        )
        trace = core.build_trace_signature(request, trace_enabled=True)
        assert by_shape.setdefault(shape, trace) == trace
