# SPDX-License-Identifier: Apache-2.0
"""The planner against a slow one on random calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from oracle.plan_oracle import Refusal, Request, explain, plan
from support.plan_calls import Call, any_calls, legal_calls, many, thousands
from support.planner import core_explain, core_plan


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


@thousands
@given(any_calls())
def test_plans_and_refusals_equal_the_oracle(call: Call) -> None:
    try:
        expected = [expected_fields(request) for request in plan(**call)]
    except Refusal as refusal:
        with pytest.raises(ValueError) as caught:
            core_plan(**call)
        if refusal.row is not None:
            assert f"row {refusal.row}" in str(caught.value)
        return
    assert [fields_of(request) for request in core_plan(**call)] == expected


@many
@given(legal_calls())
def test_fallbacks_equal_the_oracle_and_come_with_the_same_plan(call: Call) -> None:
    requests, fallbacks = core_explain(**call)
    assert [fields_of(request) for request in requests] == [fields_of(request) for request in core_plan(**call)]
    assert [(fallback.rows, fallback.rule) for fallback in fallbacks] == explain(**call)[1]
    assert all(any(character.isdigit() for character in fallback.detail) for fallback in fallbacks)
