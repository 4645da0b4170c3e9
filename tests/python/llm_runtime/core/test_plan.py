# SPDX-License-Identifier: Apache-2.0
"""Single-row plans: padding, starts, chunks and tables (chapter 10, section 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llm_runtime import _core as core

Planned = Callable[..., tuple[Any, ...]]


@pytest.mark.covers(*(f"PLAN-{n:02}" for n in range(1, 13)))
@pytest.mark.parametrize(
    ("cached", "uncached", "padded", "starts"),
    [
        (0, 1, 128, (0,)),
        (0, 31, 128, (0,)),
        (0, 32, 128, (0,)),
        (32, 33, 128, (32,)),
        (64, 127, 128, (64,)),
        (32, 128, 128, (32,)),
        (0, 129, 1024, (0,)),
        (64, 129, 1024, (64,)),
        (0, 2048, 2048, (0,)),
        (32, 2048, 2048, (32,)),
        (0, 2049, 4096, (0, 2048)),
        (64, 2049, 4096, (64, 2112)),
    ],
)
def test_one_row__cached__uncached__padded__starts(
    planned: Planned, cached: int, uncached: int, padded: int, starts: tuple[int, ...]
) -> None:
    length = cached + uncached
    (request,) = planned([length], cached=[cached])
    assert (request.kind, request.source_rows, request.slots) == ("single", (0,), (0,))
    assert (request.cached_tokens, request.prompt_lengths) == ((cached,), (length,))
    assert request.last_token_indices == (length - 1,)
    assert (request.padded_batch_size, request.padded_sequence_length) == (1, padded)
    assert request.tokens.shape == (1, padded) and request.tokens.dtype == np.int64
    assert request.tokens[0].tolist() == [*range(cached, length)] + [0] * (padded - uncached)
    assert tuple(chunk.chunk_start_idx for chunk in request.chunks) == starts
    assert request.chunks[0].token_slice.start == 0
    assert [chunk.contains_last_token for chunk in request.chunks] == [False] * (len(starts) - 1) + [True]
    assert uncached - 1 in range(padded)[request.chunks[-1].token_slice]


@pytest.mark.covers("PLAN-13", "PLAN-14", "PLAN-15")
@pytest.mark.parametrize(
    ("length", "cached", "chunked", "chunks"), [(128, 0, False, 1), (160, 32, True, 1), (4096, 0, True, 2)]
)
def test_chunking__length__cached__chunked__chunks(
    planned: Planned, length: int, cached: int, chunked: bool, chunks: int
) -> None:
    (request,) = planned([length], cached=[cached])
    assert request.uses_chunked_prefill is chunked and len(request.chunks) == chunks
    assert all((chunk.chunk_page_table is not None) is chunked for chunk in request.chunks)


@pytest.mark.covers("PLAN-16", "PLAN-17")
def test_chunk_tables_are_slices_of_the_request_table(planned: Planned) -> None:
    (request,) = planned([4129], cached=[96])
    first, second = request.chunks
    assert (first.chunk_start_idx, second.chunk_start_idx) == (96, 2144)
    assert first.chunk_page_table.tolist() == [list(range(3, 67))]
    assert second.chunk_page_table.tolist() == [[*range(67, 130), -1]]


@pytest.mark.covers("PLAN-18")
def test_chunks_of_padding_are_not_planned(planned: Planned) -> None:
    (request,) = planned([4097])
    assert request.padded_sequence_length == 8192
    assert [chunk.token_slice for chunk in request.chunks] == [
        slice(0, 2048),
        slice(2048, 4096),
        slice(4096, 6144),
    ]
    assert request.chunks[-1].contains_last_token


@pytest.mark.covers("PLAN-19", "P34")
def test_filler_is_skip_for_fills_and_a_block_id_for_attention(planned: Planned) -> None:
    (regular,) = planned([80])
    assert regular.page_table.tolist() == [[0, 1, 2] + [-1] * 261]
    (chunked,) = planned([160], cached=[32])
    assert chunked.page_table.tolist() == [[0, 1, 2, 3, 4] + [0] * 259]
    assert chunked.chunks[0].chunk_page_table.tolist() == [[1, 2, 3, 4]]
    (short,) = planned([80], cached=[32])
    assert short.chunks[0].chunk_page_table.tolist() == [[1, 2, -1, -1]]
    assert short.page_table.dtype == short.chunks[0].chunk_page_table.dtype == np.int32


@pytest.mark.covers("PLAN-20")
def test_a_wider_scheduler_table_gives_the_same_plan(planned: Planned) -> None:
    wide = np.arange(256, dtype=np.int32).reshape(1, 256)
    (a,), (b,) = (planned([160], cached=[32], page_table=table) for table in (wide, wide[:, :5]))
    assert np.array_equal(a.tokens, b.tokens) and np.array_equal(a.page_table, b.page_table)
    assert (a.source_rows, a.slots, len(a.chunks)) == (b.source_rows, b.slots, len(b.chunks))
    assert np.array_equal(a.chunks[0].chunk_page_table, b.chunks[0].chunk_page_table)


POISON = np.arange(7000, 7011)


@pytest.mark.covers("P01", "P31")
@pytest.mark.parametrize(("cached", "filler"), [(0, -1), (64, 0)])
def test_a_stale_tail_never_gets_through(planned: Planned, cached: int, filler: int) -> None:
    table = np.concatenate([[7, 8, 9, 10, 11], POISON]).reshape(1, 16)
    (request,) = planned(
        [300],
        cached=[cached],
        page_table=table,
        block_size=64,
        canonical_page_table_width=32,
        max_actual_page_table_width=16,
    )
    assert request.page_table.tolist() == [[7, 8, 9, 10, 11] + [filler] * 27]
    for chunk in request.chunks:
        assert chunk.chunk_page_table is None or not np.isin(chunk.chunk_page_table, POISON).any()


@pytest.mark.covers("P02")
def test_a_table_narrower_than_the_bucket_is_padded(planned: Planned) -> None:
    widths = {"max_actual_page_table_width": None, "canonical_page_table_width": None}
    (request,) = planned([65], page_table=np.array([[4, 5, 6]]), **widths)
    assert request.page_table.tolist() == [[4, 5, 6, -1]]


@pytest.mark.covers("P03", "P24")
def test_a_cached_row_reads_all_its_blocks_and_fills_the_new_ones(planned: Planned) -> None:
    (request,) = planned([160], cached=[128], page_table=np.array([[3, 4, 5, 6, 9]]))
    (chunk,) = request.chunks
    assert request.page_table[0, :5].tolist() == [3, 4, 5, 6, 9]
    assert chunk.chunk_page_table.tolist() == [[9, -1, -1, -1]]
    assert (chunk.chunk_start_idx, request.last_token_indices) == (128, (159,))
    assert (request.last_token_indices[0] - chunk.chunk_start_idx) % chunk.chunk_size == 31


@pytest.mark.covers("P08")
def test_another_number_of_blocks_leaves_the_shape_alone(planned: Planned) -> None:
    widths = {"block_size": 64, "max_actual_page_table_width": 64, "canonical_page_table_width": 64}
    (captured,) = planned([2048], **widths)
    (replayed,) = planned([1600], page_table=np.arange(25).reshape(1, 25), **widths)
    assert captured.page_table.shape == replayed.page_table.shape == (1, 64)
    assert replayed.page_table[0, 25:].tolist() == [-1] * 39


@pytest.mark.covers("P22")
@pytest.mark.parametrize(
    ("length", "cached", "alignment", "start"),
    [
        (64, 64, 32, 32),
        (32, 32, 32, 0),
        (33, 32, 32, 32),
        (96, 96, 64, 64),
        (96, 64, 64, 64),
        (160, 96, 64, 64),
        (64, 32, 64, 0),
    ],
)
def test_start__length__cached__alignment__start(
    planned: Planned, length: int, cached: int, alignment: int, start: int
) -> None:
    (request,) = planned([length], cached=[cached], start_alignment=alignment)
    assert request.cached_tokens == (start,)
    assert request.tokens[0, : length - start].tolist() == list(range(start, length))
    assert request.chunks[0].chunk_start_idx == start
    assert request.uses_chunked_prefill is (start > 0)


@pytest.mark.covers("P25")
@pytest.mark.parametrize(("length", "chunk", "offset"), [(2048, 0, 2047), (2049, 1, 0), (4096, 1, 2047)])
def test_last_token__length__chunk__offset(planned: Planned, length: int, chunk: int, offset: int) -> None:
    (request,) = planned([length])
    assert [c.contains_last_token for c in request.chunks] == [False] * chunk + [True]
    assert request.last_token_indices[0] - request.chunks[chunk].chunk_start_idx == offset


@pytest.mark.covers("P26")
def test_a_row_scheduled_in_part_stays_in_its_blocks(planned: Planned) -> None:
    tokens = np.arange(5000).reshape(1, 5000)
    (request,) = planned([2048], tokens=tokens, page_table=np.arange(100, 132).reshape(1, 32), block_size=64)
    assert request.tokens.max() == 2047
    assert request.page_table[0].tolist() == [*range(100, 132)] + [-1] * 232


@pytest.mark.covers("P27")
def test_a_resumed_prompt_is_a_prefill_on_its_new_blocks(planned: Planned) -> None:
    (request,) = planned([50], page_table=np.array([[91, 92, 17, 18]]))
    assert (request.prompt_lengths, request.cached_tokens) == ((50,), (0,))
    assert request.page_table[0, :3].tolist() == [91, 92, -1]


@pytest.mark.parametrize(
    ("length", "cached", "block", "cap", "width", "size", "tables"),
    [
        (100, 0, 32, 2048, 4, 128, []),
        (100, 64, 32, 2048, 6, 128, [(2, 2, 2)]),
        (33, 32, 32, 2048, 5, 128, [(1, 1, 3)]),
        (3000, 1024, 32, 2048, 96, 2048, [(32, 62, 2)]),
        (2049, 0, 32, 2048, 128, 2048, [(0, 64, 0), (64, 1, 63)]),
        (5000, 0, 64, 2048, 128, 2048, [(0, 32, 0), (32, 32, 0), (64, 15, 17)]),
        (5000, 0, 64, 6144, 128, 4096, [(0, 64, 0), (64, 15, 49)]),
        (1025, 0, 32, 1024, 64, 1024, [(0, 32, 0), (32, 1, 31)]),
        (129, 0, 32, 128, 32, 128, [(0, 4, 0), (4, 1, 3)]),
        (300, 0, 256, 256, 4, 256, [(0, 1, 0), (1, 1, 0)]),
        (100, 0, 256, 128, 1, 128, []),
        (300, 256, 256, 2048, 2, 128, [(1, 1, 0)]),
        (200, 48, 48, 2048, 23, 1024, [(1, 4, 18)]),
    ],
)
def test_worked_example__length__cached__block__cap__width__size__tables(
    planned: Planned, length: int, cached: int, block: int, cap: int, width: int, size: int, tables: list[Any]
) -> None:
    (request,) = planned(
        [length],
        cached=[cached],
        block_size=block,
        max_prefill_chunk_size=cap,
        max_actual_page_table_width=None,
        canonical_page_table_width=None,
    )
    assert request.page_table_width == request.page_table.shape[1] == width
    assert {chunk.chunk_size for chunk in request.chunks} == {size}
    assert [
        chunk.chunk_page_table.tolist()[0] for chunk in request.chunks if request.uses_chunked_prefill
    ] == [[*range(first, first + mapped)] + [-1] * tail for first, mapped, tail in tables]


@pytest.mark.covers("P30")
@pytest.mark.parametrize(
    ("length", "padded"),
    [
        (127, 128),
        (128, 128),
        (129, 1024),
        (1024, 1024),
        (1025, 2048),
        (4096, 4096),
        (4097, 8192),
        (4109, 8192),
    ],
)
def test_bucket__length__padded(planned: Planned, length: int, padded: int) -> None:
    assert core.padded_prefill_length(length) == padded
    (request,) = planned([length])
    assert request.padded_sequence_length == padded


@pytest.mark.parametrize(
    ("length", "maximum", "size"),
    [
        (4096, 2048, 2048),
        (8192, 6144, 4096),
        (16384, 12288, 8192),
        (8192, 10240, 8192),
        (1024, 128, 128),
        (2048, 1024, 1024),
        (4096, 4096, 4096),
    ],
)
def test_chunk_size__length__maximum__size(length: int, maximum: int, size: int) -> None:
    assert core.max_prefill_chunk_size(length, maximum) == size


@pytest.mark.parametrize(
    ("cap", "limit", "ladder"),
    [
        (2048, 131072, (128, 1024, 2048)),
        (8192, 5000, (128, 1024, 2048, 4096)),
        (128, 4096, (128,)),
        (1023, 4096, (128,)),
        (64, 4096, (64,)),
        (4096, 100, (100,)),
        (1024, 1024, (128, 1024)),
    ],
)
def test_ladder__cap__limit__ladder(cap: int, limit: int, ladder: tuple[int, ...]) -> None:
    assert core.prefill_bucket_ladder(cap, limit) == ladder


@pytest.mark.parametrize("cap", [128, 256, 512, 1024, 2048, 4096, 6144, 10240, 131072])
def test_usable_chunk_caps(cap: int) -> None:
    core.validate_prefill_chunk_size(cap)


@pytest.mark.parametrize("cap", [-128, 0, 1, 64, 100, 384, 1536, 3000, 2**31])
def test_unusable_chunk_caps_are_refused_with_the_reason(planned: Planned, cap: int) -> None:
    with pytest.raises(ValueError, match=rf"max_prefill_chunk_size {cap} .*power of two.*2048"):
        core.validate_prefill_chunk_size(cap)
    with pytest.raises(ValueError, match="max_prefill_chunk_size"):
        planned([5], max_prefill_chunk_size=cap)
