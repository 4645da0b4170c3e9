# SPDX-License-Identifier: Apache-2.0
"""Which rows run as one physical wave, and what the wave looks like (chapter 10, sections 5.3 to 5.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Planned = Callable[..., tuple[Any, ...]]
Shape = tuple[str, tuple[int, ...], int, int]


def shapes(plan: tuple[Any, ...]) -> list[Shape]:
    return [(r.kind, r.source_rows, r.padded_batch_size, r.padded_sequence_length) for r in plan]


def kinds(plan: tuple[Any, ...]) -> list[str]:
    return [request.kind for request in plan]


@pytest.mark.covers("PLAN-21", "P15")
def test_rows_of_a_wave_are_numbered_in_the_wave(planned: Planned) -> None:
    tokens = np.arange(240).reshape(3, 80)
    (wave,) = planned([80, 80, 80], slots=[7, 3, 11], tokens=tokens)
    assert shapes((wave,)) == [("batched", (0, 1, 2), 4, 128)]
    assert wave.slots == (7, 3, 11)
    assert wave.tokens[0, :80].tolist() == list(range(80))
    assert wave.tokens[1, :80].tolist() == list(range(80, 160))
    assert not wave.tokens[:, 80:].any() and not wave.tokens[3].any()


@pytest.mark.covers("PLAN-22")
def test_exact_lengths_are_kept(planned: Planned) -> None:
    (wave,) = planned([87, 115, 125], slots=[0, 1, 2])
    assert wave.prompt_lengths == (87, 115, 125) and wave.last_token_indices == (86, 114, 124)
    assert (wave.padded_sequence_length, wave.padded_batch_size) == (128, 4)


@pytest.mark.covers("PLAN-23", "PLAN-24", "P31")
@pytest.mark.parametrize(
    ("lengths", "padded", "kept"), [((87, 115), 128, (3, 4)), ((129, 900), 1024, (5, 29))]
)
def test_wave_tables__lengths__padded__kept(
    planned: Planned, lengths: tuple[int, int], padded: int, kept: tuple[int, int]
) -> None:
    table = 1000 + np.arange(512).reshape(2, 256)
    (wave,) = planned(lengths, slots=[7, 3], page_table=table)
    assert wave.padded_sequence_length == padded
    for row, count in enumerate(kept):
        assert wave.page_table[row].tolist() == table[row, :count].tolist() + [-1] * (264 - count)


@pytest.mark.covers("PLAN-28")
def test_buckets_are_planned_apart_waves_first(planned: Planned) -> None:
    plan = planned([33, 128, 129], slots=[4, 1, 9])
    assert shapes(plan) == [("batched", (0, 1), 2, 128), ("single", (2,), 1, 1024)]
    assert [request.slots for request in plan] == [(4, 1), (9,)]
    plan = planned([129, 5, 3000, 600, 7, 2000])
    assert shapes(plan) == [
        ("batched", (0, 3), 2, 1024),
        ("batched", (1, 4), 2, 128),
        ("single", (2,), 1, 4096),
        ("single", (5,), 1, 2048),
    ]


@pytest.mark.covers("PLAN-29", "PLAN-30", "PLAN-54")
@pytest.mark.parametrize("policy", [{"supports_batched_prefill": False}, {"disable_batched_prefill": True}])
def test_without_batching_rows_stay_single(planned: Planned, policy: dict[str, bool]) -> None:
    plan = planned([80, 80], slots=[7, 3], **policy)
    assert shapes(plan) == [("single", (0,), 1, 128), ("single", (1,), 1, 128)]
    assert [request.slots for request in plan] == [(7,), (3,)]


@pytest.mark.covers(
    "PLAN-31",
    "PLAN-32",
    "PLAN-35",
    "PLAN-40",
    "PLAN-41",
    "PLAN-42",
    "PLAN-43",
    "PLAN-44",
    "PLAN-46",
    "PLAN-55",
)
@pytest.mark.parametrize(
    ("rows", "length", "cap", "chunk", "capacity", "wave"),
    [
        (32, 1024, 8, 2048, 32, None),
        (30, 128, 32, 2048, 32, 32),
        (33, 128, 32, 2048, 33, None),
        (32, 4096, 32, 4096, 32, None),
        (32, 2048, 32, 8192, 32, 32),
        (32, 4097, 32, 8192, 32, None),
        (16, 4096, 16, 4096, 32, 16),
        (16, 8192, 16, 8192, 32, None),
        (17, 128, 16, 2048, 32, None),
        (9, 128, 16, 2048, 12, None),
        (9, 128, 8, 2048, 32, None),
        (5, 128, 8, 2048, 6, None),
        (2, 65536, 32, 65536, 32, None),
        (2, 32768, 32, 32768, 32, 2),
    ],
)
def test_wave_size__rows__length__cap__chunk__capacity__wave(
    planned: Planned, rows: int, length: int, cap: int, chunk: int, capacity: int, wave: int | None
) -> None:
    plan = planned(
        [length] * rows,
        tokens=np.zeros((rows, length), np.int32),
        page_table=np.zeros((rows, 2048), np.int32),
        max_prefill_batch_size=cap,
        max_prefill_chunk_size=chunk,
        max_batch_size=capacity,
        max_actual_page_table_width=2048,
        canonical_page_table_width=4096,
    )
    if wave is None:
        assert [(r.kind, r.source_rows) for r in plan] == [("single", (row,)) for row in range(rows)]
    else:
        assert [(r.kind, r.source_rows, r.padded_batch_size) for r in plan] == [
            ("batched", tuple(range(rows)), wave)
        ]


@pytest.mark.covers("PLAN-33", "PLAN-45")
@pytest.mark.parametrize(("rows", "cap", "physical"), [(15, 16, 16), (5, 8, 8)])
def test_padding_rows_are_inert(planned: Planned, rows: int, cap: int, physical: int) -> None:
    (wave,) = planned([128] * rows, max_prefill_batch_size=cap)
    assert wave.source_rows == tuple(range(rows))
    assert wave.tokens.shape == (physical, 128) and wave.page_table.shape == (physical, 264)
    assert not wave.tokens[rows:].any() and (wave.page_table[rows:] == -1).all()
    assert wave.tokens[rows - 1].any() and wave.page_table[rows - 1, 0] == 256 * (rows - 1)


@pytest.mark.covers("PLAN-34")
def test_a_lane_plans_its_own_wave(planned: Planned) -> None:
    for _ in range(2):
        (wave,) = planned([128] * 15, max_batch_size=16, max_prefill_batch_size=16)
        assert (wave.padded_batch_size, len(wave.source_rows)) == (16, 15)


@pytest.mark.covers("PLAN-36", "PLAN-37", "PLAN-38", "PLAN-39")
@pytest.mark.parametrize(("length", "padded"), [(129, 1024), (1024, 1024), (1025, 2048), (2048, 2048)])
def test_two_rows_are_a_wave__length__padded(planned: Planned, length: int, padded: int) -> None:
    assert shapes(planned([length, length])) == [("batched", (0, 1), 2, padded)]


@pytest.mark.covers("PLAN-47")
def test_one_row_is_never_a_wave(planned: Planned) -> None:
    assert kinds(planned([128])) == ["single"]


@pytest.mark.covers("PLAN-48", "P20")
def test_a_cached_row_breaks_up_its_own_bucket_only(planned: Planned) -> None:
    plan = planned([160, 128, 128, 128], cached=[32, 0, 0, 0])
    assert kinds(plan) == ["single"] * 4
    assert [request.cached_tokens for request in plan] == [(32,), (0,), (0,), (0,)]
    plan = planned([160, 600, 128, 700], cached=[32, 0, 0, 0])
    assert shapes(plan) == [
        ("batched", (1, 3), 2, 1024),
        ("single", (0,), 1, 128),
        ("single", (2,), 1, 128),
    ]


@pytest.mark.covers("PLAN-49", "P13")
@pytest.mark.parametrize(("length", "chunks"), [(2049, 2), (16384, 8)])
def test_rows_above_the_chunk_cap_run_one_by_one__length__chunks(
    planned: Planned, length: int, chunks: int
) -> None:
    widths = {"max_actual_page_table_width": 512, "canonical_page_table_width": 576}
    plan = planned([length] * 2, page_table=np.arange(1024).reshape(2, 512), **widths)
    assert [(r.kind, r.source_rows, len(r.chunks)) for r in plan] == [
        ("single", (0,), chunks),
        ("single", (1,), chunks),
    ]


@pytest.mark.covers("P07")
@pytest.mark.parametrize("rows", [1, 4])
def test_every_path_has_the_layout_width(planned: Planned, rows: int) -> None:
    (request,) = planned(
        [640] * rows,
        page_table=np.arange(rows * 10).reshape(rows, 10),
        block_size=64,
        max_actual_page_table_width=10,
        canonical_page_table_width=16,
        max_prefill_chunk_size=1024,
    )
    assert request.page_table_width == 16 and not request.uses_chunked_prefill
    assert (request.page_table[:, 10:] == -1).all() and (request.page_table[:, :10] >= 0).all()


@pytest.mark.covers("P14")
@pytest.mark.parametrize(("rows", "physical"), [(2, 2), (3, 4), (15, 16), (17, 32), (33, None)])
def test_padding_stops_at_the_next_size__rows__physical(
    planned: Planned, rows: int, physical: int | None
) -> None:
    plan = planned([1000] * rows, max_batch_size=64, max_prefill_batch_size=32)
    if physical is None:
        assert kinds(plan) == ["single"] * rows
    else:
        assert shapes(plan) == [("batched", tuple(range(rows)), physical, 1024)]


@pytest.mark.covers("P16")
def test_slots_do_not_move_tables(planned: Planned) -> None:
    (wave,) = planned([64, 64], slots=[1, 0], page_table=np.array([[10, 11], [20, 21]]))
    assert wave.slots == (1, 0)
    assert wave.page_table[:, :3].tolist() == [[10, 11, -1], [20, 21, -1]]


def test_a_batch_of_no_rows_is_an_empty_plan(planned: Planned) -> None:
    assert planned([]) == ()
    assert planned([], slots=[]) == ()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_arrays_of_both_widths_and_with_gaps_give_one_plan(planned: Planned, dtype: Any) -> None:
    tokens = np.arange(1200, dtype=dtype).reshape(4, 300)[::2, 50:150]
    table = np.arange(64, dtype=dtype).reshape(2, 32)[:, 8:16]
    (wave,) = planned(
        [100, 90],
        tokens=tokens,
        page_table=table,
        prompt_lens=np.array([100, 90], dtype),
        start_pos=np.zeros(2, dtype),
    )
    assert wave.tokens[:, :100].tolist() == [[*range(50, 150)], [*range(650, 740)] + [0] * 10]
    assert wave.page_table[:, :4].tolist() == [[8, 9, 10, 11], [40, 41, 42, -1]]


def test_views_are_read_only_shared_and_outlive_their_request(planned: Planned) -> None:
    plan = planned([200], cached=[32])
    tokens, table, chunk_table = plan[0].tokens, plan[0].page_table, plan[0].chunks[0].chunk_page_table
    assert plan[0].tokens is tokens and plan[0].chunks is plan[0].chunks
    assert plan[0].source_rows is plan[0].source_rows
    for view in (tokens, table, chunk_table):
        assert view.flags.c_contiguous and not view.flags.writeable and not view.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            view[0, 0] = 1
    expected = [*range(32, 200)]
    del plan
    others = [planned([200]) for _ in range(8)]
    assert tokens[0, :168].tolist() == expected and len(others) == 8
    assert table[0, :7].tolist() == list(range(7)) and chunk_table[0, :6].tolist() == list(range(1, 7))
