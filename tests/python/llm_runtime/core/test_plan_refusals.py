# SPDX-License-Identifier: Apache-2.0
"""What the planner and its values refuse, and in which order (chapter 10, sections 4 and 5.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llm_runtime import _core as core

Planned = Callable[..., tuple[Any, ...]]
FLAT = np.zeros(2, np.int64)
CUBE = np.zeros((2, 2, 2), np.int64)

# One broken argument each, in the order in which they must be reported.
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"block_size": 0, "start_alignment": 32}, "block_size"),
    ({"max_batch_size": 0}, "max_batch_size"),
    ({"max_prefill_chunk_size": 100}, "max_prefill_chunk_size"),
    ({"max_prefill_batch_size": 0}, "max_prefill_batch_size"),
    ({"start_alignment": 48}, "start_alignment 48"),
    ({"tokens": FLAT}, "tokens must have rank 2, not 1"),
    ({"page_table": CUBE}, "page_table must have rank 2, not 3"),
    ({"page_table": np.zeros((3, 8), np.int64)}, "page_table has 3 rows for 2"),
    ({"prompt_lens": np.ones((1, 2), np.int64)}, "prompt_lens must have rank 1"),
    ({"start_pos": np.zeros(3, np.int64)}, "start_pos has 3 entries for 2"),
    ({"empty_slots": [1]}, "empty_slots has 1 entries for 2"),
    ({"empty_slots": [1, 32]}, "row 1: slot 32"),
    ({"canonical_page_table_width": None}, "come together"),
    ({"prompt_lens": np.array([5, 0])}, "row 1: the prompt is empty"),
    ({"page_table": np.zeros((2, 0), np.int64)}, "row 0: .*page_table has 0 columns"),
]


@pytest.mark.parametrize(("change", "text"), REFUSALS)
def test_refusal__change__text(planned: Planned, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        planned([5, 6], **change)


@pytest.mark.parametrize("index", range(len(REFUSALS) - 1))
def test_the_earlier_refusal_wins(planned: Planned, index: int) -> None:
    (first, text), (second, _) = REFUSALS[index], REFUSALS[index + 1]
    with pytest.raises(ValueError, match=text):
        planned([5, 6], **{**second, **first})


@pytest.mark.parametrize(
    ("length", "cached"), [(-1, 0), (5, -32), (32, 64), (129, 0), (2**62, 0), (-(2**63), -(2**63))]
)
def test_invalid_lengths_name_the_row(planned: Planned, length: int, cached: int) -> None:
    with pytest.raises(
        ValueError, match=rf"invalid lengths in row 1: start {cached}, prompt length {length}"
    ):
        planned([5, 6], prompt_lens=np.array([5, length]), start_pos=np.array([0, cached]))


@pytest.mark.covers("P23")
def test_an_empty_prompt_is_refused_by_row(planned: Planned) -> None:
    with pytest.raises(ValueError, match="row 1"):
        planned([5, 0, 7])


@pytest.mark.covers("P06")
def test_a_start_inside_a_block_is_refused_by_row_start_and_block(planned: Planned) -> None:
    with pytest.raises(ValueError, match=r"row 0: start 100 .*block_size 64"):
        planned([300], cached=[100], block_size=64)
    with pytest.raises(ValueError, match=r"row 1: start 1 "):
        planned([80, 80], cached=[0, 1])


@pytest.mark.covers("P28", "P37")
@pytest.mark.parametrize(
    ("block", "raw", "fits", "fails"), [(32, 8, (255, 256), 257), (64, 40, (2560,), 2561)]
)
def test_capacity__block__raw__fits__fails(
    planned: Planned, block: int, raw: int, fits: tuple[int, ...], fails: int
) -> None:
    layout = {"block_size": block, "max_actual_page_table_width": raw, "canonical_page_table_width": 144}
    for length in fits:
        (request,) = planned([length], **layout)
        assert (request.page_table[0] >= 0).sum() == raw or request.uses_chunked_prefill
    with pytest.raises(
        ValueError, match=rf"row 0: prompt length {fails} needs {raw + 1} blocks .* {raw} blocks"
    ):
        planned([fails], **layout)


def test_capacity_is_reported_before_the_table_width(planned: Planned) -> None:
    table = np.zeros((1, 2), np.int64)
    with pytest.raises(ValueError, match="capacity"):
        planned([300], page_table=table, max_actual_page_table_width=8)
    with pytest.raises(ValueError, match="needs 10 blocks but page_table has 2 columns"):
        planned([300], page_table=table)


@pytest.mark.parametrize("lengths", [[500], [500, 500]])
def test_a_padded_row_beyond_the_canonical_width_is_refused(planned: Planned, lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"row 0: .* 1024 .*canonical_page_table_width 16 holds 512"):
        planned(lengths, max_actual_page_table_width=16, canonical_page_table_width=16)


@pytest.mark.covers("P30")
@pytest.mark.parametrize("length", [2049, 4097, 4128])
def test_a_prompt_just_over_a_bucket_fits_a_resolved_layout(planned: Planned, length: int) -> None:
    layout = core.PageTableLayout.resolve(
        block_size=32, model_max_sequence_length=4128, physical_num_blocks=136, max_prefill_chunk_size=2048
    )
    (request,) = planned(
        [length],
        max_actual_page_table_width=layout.raw_capacity_width,
        canonical_page_table_width=layout.prefill_width,
    )
    assert request.padded_sequence_length in (4096, 8192)
    assert request.chunks[-1].chunk_start_idx + 2048 <= layout.prefill_width * 32


@pytest.mark.parametrize(
    ("raw", "canonical", "text"),
    [
        (None, 8, "together"),
        (0, 8, "0 < "),
        (16, 8, "16 and 8"),
        (8, 12, "canonical_page_table_width 12"),
        (8, -8, "8"),
    ],
)
def test_widths__raw__canonical__text(planned: Planned, raw: Any, canonical: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        planned([5], max_actual_page_table_width=raw, canonical_page_table_width=canonical)


def test_slots_must_differ_and_fit_the_lane(planned: Planned) -> None:
    with pytest.raises(ValueError, match="slot 3 to more than one row"):
        planned([5, 6, 7], slots=[3, 1, 3])
    with pytest.raises(ValueError, match="row 0: slot -1"):
        planned([5, 6], slots=[-1, 1])
    with pytest.raises(ValueError, match="33 rows does not fit into the 32 slots"):
        planned([5] * 33)


@pytest.mark.parametrize("bad", [-1, 2**31, -(2**40)])
def test_a_mapped_entry_that_is_no_block_is_refused(planned: Planned, bad: int) -> None:
    with pytest.raises(ValueError, match="row 0: page_table column 1 "):
        planned([80], page_table=np.array([[4, bad, 6]]))
    (request,) = planned([80], page_table=np.array([[4, 5, 6, bad]]))
    assert request.page_table[0, :4].tolist() == [4, 5, 6, -1]


def test_chunks_must_start_on_a_block(planned: Planned) -> None:
    with pytest.raises(ValueError, match=r"row 0: chunks of 128 .*block_size 256"):
        planned([300], block_size=256, max_prefill_chunk_size=128)


@pytest.mark.parametrize("name", ["tokens", "page_table", "prompt_lens", "start_pos"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint32, np.int16, np.bool_])
def test_other_kinds_of_number_are_a_type_error(planned: Planned, name: str, dtype: Any) -> None:
    shape = (1, 8) if name in ("tokens", "page_table") else (1,)
    with pytest.raises(TypeError, match=f"{name} must hold int32 or int64"):
        planned([5], **{name: np.ones(shape, dtype)})


def test_columns_that_lie_apart_are_refused_by_name(planned: Planned) -> None:
    with pytest.raises(ValueError, match="tokens"):
        planned([5], tokens=np.zeros((1, 16), np.int64)[:, ::2])


CHUNK: dict[str, Any] = {
    "token_slice": slice(0, 128),
    "chunk_start_idx": 32,
    "chunk_size": 128,
    "chunk_page_table": np.zeros((1, 4), np.int32),
    "contains_last_token": True,
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"token_slice": slice(0, 128, 2)}, "step"),
        ({"token_slice": slice(None, 128)}, "bounds"),
        ({"token_slice": slice(0, None)}, "bounds"),
        ({"token_slice": slice(-1, 127)}, "token_slice"),
        ({"token_slice": slice(8, 8)}, "token_slice"),
        ({"token_slice": slice(0, 64)}, "chunk_size 128"),
        ({"chunk_start_idx": -1}, "chunk_start_idx"),
        ({"chunk_size": 0}, "chunk_size 0"),
        ({"chunk_page_table": np.zeros(4, np.int32)}, "chunk_page_table must have rank 2"),
    ],
)
def test_chunk__change__text(change: dict[str, Any], text: str) -> None:
    assert core.PrefillChunk(**CHUNK).token_slice == slice(0, 128)
    assert core.PrefillChunk(**{**CHUNK, "token_slice": slice(0, 128, 1)}).chunk_size == 128
    with pytest.raises(ValueError, match=text):
        core.PrefillChunk(**{**CHUNK, **change})


def request(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "kind": "single",
        "source_rows": (0,),
        "slots": (3,),
        "tokens": np.zeros((1, 128), np.int64),
        "page_table": np.zeros((1, 8), np.int32),
        "prompt_lengths": (100,),
        "cached_tokens": (32,),
        "last_token_indices": (99,),
        "padded_sequence_length": 128,
        "padded_batch_size": 1,
        "chunks": (core.PrefillChunk(**CHUNK),),
        "uses_chunked_prefill": True,
    }
    return core.PrefillRequest(**{**fields, **changes})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "chunked"}, "kind"),
        ({"source_rows": ()}, "source_rows"),
        ({"slots": (1, 2)}, "one entry a row"),
        (
            {
                name: (0, 1)
                for name in ("source_rows", "slots", "prompt_lengths", "cached_tokens", "last_token_indices")
            },
            "2",
        ),
        ({"tokens": FLAT}, "tokens must have rank 2"),
        ({"page_table": FLAT}, "page_table must have rank 2"),
        ({"tokens": np.zeros((2, 128), np.int64)}, "token rows"),
        ({"padded_sequence_length": 64}, "token columns"),
        ({"page_table": np.zeros((2, 8), np.int32)}, "page-table rows"),
        ({"chunks": ()}, "at least one chunk"),
        ({"uses_chunked_prefill": False}, "uses_chunked_prefill"),
    ],
)
def test_request__change__text(change: dict[str, Any], text: str) -> None:
    assert request().page_table_width == 8
    with pytest.raises(ValueError, match=text):
        request(**change)


@pytest.mark.parametrize(
    ("flags", "text"), [((False, False), "not 0"), ((True, True), "not 2"), ((True, False), "final")]
)
def test_exactly_the_final_chunk_holds_the_last_token(flags: tuple[bool, bool], text: str) -> None:
    chunks = tuple(
        core.PrefillChunk(slice(64 * i, 64 * i + 64), 32 + 64 * i, 64, np.zeros((1, 2), np.int32), flag)
        for i, flag in enumerate(flags)
    )
    with pytest.raises(ValueError, match=text):
        request(chunks=chunks)


def test_parts_of_another_kind_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="PrefillChunk"):
        request(chunks=(3,))
    with pytest.raises(TypeError, match="start of token_slice"):
        core.PrefillChunk(**{**CHUNK, "token_slice": slice("a", 128)})
