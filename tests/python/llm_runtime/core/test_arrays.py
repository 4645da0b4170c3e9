# SPDX-License-Identifier: Apache-2.0
"""Arrays at the core's border: which ones it reads as they are, which it refuses, and what it hands out."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from llm_runtime import _core as core
from llm_runtime.prefill.plan import _plan_prefill_requests

LIMITS = {
    "block_size": 32,
    "max_batch_size": 4,
    "max_prefill_chunk_size": 128,
    "supports_batched_prefill": False,
    "disable_batched_prefill": False,
    "max_prefill_batch_size": 4,
    "max_actual_page_table_width": None,
    "canonical_page_table_width": None,
    "start_alignment": 32,
}
TOKENS = np.arange(2 * 64, dtype=np.int64).reshape(2, 64)
TABLE = np.array([[3, 7], [1, 5]], np.int32)


def planned(tokens, table=TABLE):
    return [request.tokens.tolist() for request in core.PrefillPlanner(**LIMITS).plan(tokens, table)]


def unaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)
    result = memory[1:].view(array.dtype).reshape(array.shape)
    result[...] = array
    assert not result.flags.aligned
    return result


@pytest.mark.parametrize(
    "tokens",
    [
        TOKENS.astype(np.int32),
        np.hstack([TOKENS, TOKENS])[:, :64],
        np.repeat(TOKENS, 2, axis=0)[::2],
        np.vstack([TOKENS[1], TOKENS[0]])[::-1],
    ],
    ids=["int32", "a part of longer rows", "every other row", "rows from the last to the first"],
)
def test_rows_of_contiguous_integers_are_read_where_they_lie(tokens):
    assert planned(tokens) == planned(TOKENS)


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        (TOKENS.astype(float), TypeError, "tokens must hold int32 or int64"),
        (TOKENS.astype(np.uint64), TypeError, "tokens must hold int32 or int64"),
        (TOKENS.astype(">i8"), TypeError, "tokens must hold int32 or int64"),
        (unaligned(TOKENS), TypeError, "tokens must hold int32 or int64"),
        (np.asfortranarray(TOKENS), ValueError, "the entries of a row of tokens must lie side by side"),
        (TOKENS[:, ::-1], ValueError, "the entries of a row of tokens must lie side by side"),
        (TOKENS[None], ValueError, "tokens must have rank 2, not 3"),
        (TOKENS.tolist(), TypeError, "incompatible function arguments"),
        (memoryview(TOKENS), TypeError, "incompatible function arguments"),
    ],
    ids=["float", "uint64", "byte order", "unaligned", "columns", "backwards", "rank", "list", "buffer"],
)
def test_other_arrays_are_refused(tokens, error, text):
    with pytest.raises(error, match=text):
        planned(tokens)


@pytest.mark.parametrize(
    "tokens",
    [TOKENS.astype(">i8"), unaligned(TOKENS), np.asfortranarray(TOKENS), memoryview(TOKENS)],
    ids=["byte order", "unaligned", "columns", "buffer"],
)
def test_the_front_converts_what_the_core_does_not_read(tokens):
    policy = {name: value for name, value in LIMITS.items() if not name.endswith("width")}
    requests = _plan_prefill_requests(tokens=tokens, page_table=TABLE, **policy)
    assert [request.tokens.tolist() for request in requests] == planned(TOKENS)


@pytest.mark.parametrize(
    "out",
    [np.zeros(2, np.int64), np.zeros(2, np.uint32), np.zeros(4, np.int32)[::2], np.broadcast_to(np.int32(0), 2)],
    ids=["int64", "uint32", "apart", "read-only"],
)
def test_results_are_written_only_into_writable_contiguous_arrays_of_their_kind(out):
    call = {"out_tokens": np.zeros((1, 1, 1, 32), np.uint32), "out_rotary": np.zeros((1, 32), np.uint32)}
    with pytest.raises(TypeError, match="incompatible function arguments"):
        core.stage_decode_inputs(np.array([1, 2]), np.array([0, 1]), out_positions=out, **call)


def test_views_are_read_only_and_keep_their_memory_alive():
    (first, _) = core.PrefillPlanner(**LIMITS).plan(TOKENS, TABLE)
    tokens, table = first.tokens, first.page_table
    del first
    gc.collect()
    assert (tokens[0, :3].tolist(), table.tolist()) == ([0, 1, 2], [[3, 7, -1, -1]])
    for view in (tokens, table):
        assert not view.flags.writeable and view.flags.c_contiguous and view.flags.aligned
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_tokens_become_a_new_vector():
    values = np.array([[[[5, 2**32 - 1]]]], np.uint32)
    flat = core.flat_int64(values)
    assert (flat.tolist(), flat.dtype, flat.flags.writeable) == ([5, 2**32 - 1], np.int64, True)
    assert core.flat_int64(np.array([-1], np.int32)).tolist() == [-1]
    for other in (values.astype(np.int64), values[..., ::-1], values.astype(float)):
        with pytest.raises(TypeError, match="int32 or uint32"):
            core.flat_int64(other)


def test_logits_become_a_new_array_of_the_lanes_rows_and_columns():
    values = np.arange(2 * 4 * 6, dtype=np.float32).reshape(1, 2, 4, 6)
    logits = core.leading_logits(values, 3, 5)
    np.testing.assert_array_equal(logits, values[0, 0, :3, None, :5])
    assert not np.shares_memory(logits, values)
    wide = np.ones((1, 1, 32, 1 << 14), np.float32)  # long enough to let other threads run
    assert core.leading_logits(wide, 32, (1 << 14) - 1).sum() == 32 * ((1 << 14) - 1)
    for rows, columns in ((5, 6), (4, 7)):
        with pytest.raises(ValueError, match=f"fewer than {rows} rows of {columns} columns"):
            core.leading_logits(values, rows, columns)
    for other in (values.astype(float), values[..., ::2], values.reshape(-1)):
        with pytest.raises(TypeError, match="contiguous float32 array"):
            core.leading_logits(other, 1, 1)
