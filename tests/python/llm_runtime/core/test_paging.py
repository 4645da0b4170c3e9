# SPDX-License-Identifier: Apache-2.0
"""Page-table geometry (chapter 10, sections 2.5 and 2.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime._core import DecodeTables, PageTableLayout, fit_paged_kv_num_blocks


def resolve(block: int, length: int, blocks: int, chunk: int) -> PageTableLayout:
    return PageTableLayout.resolve(
        block_size=block,
        model_max_sequence_length=length,
        physical_num_blocks=blocks,
        max_prefill_chunk_size=chunk,
    )


@pytest.mark.covers("CFG-13", "CFG-14", "CFG-16")
@pytest.mark.parametrize(
    ("block", "length", "blocks", "chunk", "raw", "decode", "prefill"),
    [
        (32, 131072, 4096, 4096, 4096, 4096, 4224),
        (32, 1024, 32, 128, 32, 32, 40),
        (32, 1024, 32, 1024, 32, 32, 64),
        (64, 2048, 32, 2048, 32, 32, 64),
        (32, 1000, 32, 128, 32, 32, 40),
        (32, 1024, 24, 128, 24, 24, 32),
        (32, 100, 8, 128, 4, 8, 8),
        (32, 4096, 132, 2048, 128, 128, 192),
        (16, 4096, 200, 2048, 200, 200, 328),
        (32, 3200, 104, 2048, 100, 104, 168),
        (64, 120000, 1880, 128, 1875, 1880, 1880),
        (32, 1024, 32, 1, 32, 32, 32),
    ],
)
def test_layout__block__length__blocks__chunk__raw__decode__prefill(
    block: int, length: int, blocks: int, chunk: int, raw: int, decode: int, prefill: int
) -> None:
    layout = resolve(block, length, blocks, chunk)
    assert (layout.raw_capacity_width, layout.decode_width, layout.prefill_width) == (raw, decode, prefill)
    assert layout == PageTableLayout(block, raw, prefill, decode)


@pytest.mark.covers("P37")
@pytest.mark.parametrize(
    ("block", "length", "blocks", "decode"),
    [(32, 100, 4, 8), (32, 1024, 20, 24), (32, 4096, 100, 104), (32, 4096, 1, 8)],
)
def test_a_cache_below_the_decode_table_is_refused(block: int, length: int, blocks: int, decode: int) -> None:
    with pytest.raises(
        ValueError, match=rf"\b{decode} columns.*physical_num_blocks is {blocks};.*least {decode}"
    ):
        resolve(block, length, blocks, 2048)
    assert resolve(block, length, decode, 2048).decode_width == decode


@pytest.mark.covers("P37")
def test_a_cache_below_the_promised_length_shrinks_the_ceiling() -> None:
    layout = resolve(64, 4096, 40, 2048)
    assert layout.raw_capacity_width * layout.block_size == 2560  # a prompt of 2561 is refused: see test_plan


@pytest.mark.covers("P09")
def test_positions_up_to_an_unaligned_maximum_are_addressable() -> None:
    assert resolve(32, 9416, 296, 1) == PageTableLayout(32, 295, 296, 296)
    layout = resolve(32, 9416, 296, 128)
    assert layout.decode_width == 296
    assert layout.raw_capacity_width * 32 >= 9416
    assert layout.prefill_width % 8 == 0 and layout.prefill_width >= layout.decode_width


NAMES = ("block_size", "model_max_sequence_length", "physical_num_blocks", "max_prefill_chunk_size")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [0, -1, True, 32.0, "32", None, np.int64(32), 2**31, 2**80])
def test_resolve_takes_positive_integers_only(name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=name):
        PageTableLayout.resolve(**{**dict.fromkeys(NAMES, 64), name: bad})


def test_resolve_reports_the_first_bad_argument() -> None:
    with pytest.raises(ValueError, match="block_size"):
        resolve(0, 0, 0, 0)
    with pytest.raises(ValueError, match="physical_num_blocks"):
        resolve(32, 64, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 4, 8, 8), "block_size"),
        ((-32, 4, 8, 8), "block_size"),
        ((32, 0, 8, 8), "raw_capacity_width"),
        ((32, 9, 8, 16), "prefill_width"),
        ((32, 9, 16, 8), "decode_width"),
        ((32, 4, 12, 8), "prefill_width"),
        ((32, 4, 8, 12), "decode_width"),
    ],
)
def test_direct_construction_is_checked(arguments: tuple[int, int, int, int], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        PageTableLayout(*arguments)


def test_direct_construction_needs_no_aligned_capacity() -> None:
    layout = PageTableLayout(block_size=32, raw_capacity_width=5, prefill_width=16, decode_width=8)
    assert (layout.raw_capacity_width, layout.prefill_width, layout.decode_width) == (5, 16, 8)


@pytest.mark.covers("CFG-17")
def test_equal_geometry_gives_equal_layouts() -> None:
    assert resolve(32, 4096, 132, 2048) == resolve(32, 4096, 132, 2048)
    assert resolve(32, 4096, 132, 2048) != resolve(32, 4096, 132, 1024)


def test_replace_checks_again() -> None:
    layout = resolve(32, 4096, 128, 2048)
    assert layout.__replace__(prefill_width=200).prefill_width == 200
    with pytest.raises(ValueError, match="prefill_width"):
        layout.__replace__(prefill_width=201)


@pytest.mark.parametrize(
    ("blocks", "length", "block", "expected"),
    [(4, 100, 32, 8), (20, 1024, 32, 32), (40, 1024, 32, 40), (0, 1, 32, 8), (32, 1024, 32, 32)],
)
def test_fit__blocks__length__block__expected(blocks: int, length: int, block: int, expected: int) -> None:
    assert fit_paged_kv_num_blocks(blocks, max_seq_len=length, block_size=block) == expected


def test_fit_coerces_like_int() -> None:
    assert fit_paged_kv_num_blocks(np.int64(4), max_seq_len=100.0, block_size=np.int32(32)) == 8  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block_size"):
        fit_paged_kv_num_blocks(4, max_seq_len=100, block_size=0)


counts = st.integers(1, 4096)


@settings(deadline=None)
@given(counts, st.integers(1, 2**20), counts, counts)
def test_layout_laws(block: int, length: int, blocks: int, chunk: int) -> None:
    fitted = fit_paged_kv_num_blocks(blocks, max_seq_len=length, block_size=block)
    layout = resolve(block, length, fitted, chunk)
    assert layout.raw_capacity_width * block >= length
    assert layout.raw_capacity_width <= layout.decode_width <= fitted
    assert layout.prefill_width * block >= length - 1 + chunk
    assert layout.decode_width % 8 == layout.prefill_width % 8 == 0


@pytest.mark.covers("P09", "P10")
def test_one_layout_gives_both_widths_and_other_tables_are_refused(
    planned: Callable[..., tuple[Any, ...]],
) -> None:
    # 480000 tokens over four shards.
    layout = PageTableLayout.resolve(
        block_size=64, model_max_sequence_length=120_000, physical_num_blocks=1880, max_prefill_chunk_size=2048
    )
    assert (layout.raw_capacity_width, layout.decode_width, layout.prefill_width) == (1875, 1880, 1912)
    widths = {
        "block_size": 64,
        "max_actual_page_table_width": layout.raw_capacity_width,
        "canonical_page_table_width": layout.prefill_width,
    }
    table = np.arange(1874, dtype=np.int32).reshape(1, 1874)
    with pytest.raises(ValueError, match="needs 1875 blocks but page_table has 1874 columns"):
        planned([120_000], page_table=table, **widths)
    decode = DecodeTables(
        lane_capacity=1,
        block_size=64,
        raw_capacity_width=layout.raw_capacity_width,
        decode_width=layout.decode_width,
    )
    step = {"device_feedback": False, "reload_inputs": None, "reload_page_table": False}
    with pytest.raises(ValueError, match=r"1875 .*1874"):
        decode.prepare(start_pos=np.array([119_999]), page_table=table, **step)
    whole = np.arange(1875, dtype=np.int32).reshape(1, 1875)
    (request,) = planned([120_000], page_table=whole, **widths)
    batch = decode.prepare(start_pos=np.array([119_999]), page_table=whole, **step)
    assert (request.page_table.shape, batch.page_table.shape) == ((1, 1912), (1, 1880))
