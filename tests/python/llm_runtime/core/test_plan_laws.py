# SPDX-License-Identifier: Apache-2.0
"""Laws that every plan keeps, on random legal calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime import _core as core
from oracle.plan_oracle import ceil_div
from support.plan_calls import Call, legal_calls, many
from support.planner import core_plan


@pytest.mark.covers("P30", "P31")
@many
@given(legal_calls())
def test_a_legal_call_is_never_refused_and_its_input_never_written(call: Call) -> None:
    before = {name: value.copy() for name, value in call.items() if isinstance(value, np.ndarray)}
    for value in call.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    requests = core_plan(**call)
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
    for request in core_plan(**call):
        for position, row in enumerate(request.source_rows):
            length, start = request.prompt_lengths[position], request.cached_tokens[position]
            assert 0 <= start < length and start <= max(int(call["start_pos"][row]), 0)
            wanted += [
                (int(tokens[row, p]), int(table[row, p // block_size]), p % block_size) for p in range(start, length)
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
    for request in core_plan(**call):
        assert [chunk.contains_last_token for chunk in request.chunks][:-1] == [False] * (len(request.chunks) - 1)
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
            for request in core_plan(**arguments)
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
    for request in core_plan(**call):
        shape = (
            request.kind,
            request.uses_chunked_prefill,
            request.padded_batch_size,
            request.chunks[0].chunk_size,
        )
        trace = core.build_trace_signature(request, trace_enabled=True)
        assert by_shape.setdefault(shape, trace) == trace
