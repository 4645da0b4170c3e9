# SPDX-License-Identifier: Apache-2.0
"""Identities of planned requests (chapter 10, sections 7.1 to 7.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llm_runtime._core import (
    PrefillProgramSignature,
    PrefillTraceSignature,
    build_program_signatures,
    build_trace_signature,
)

Planned = Callable[..., tuple[Any, ...]]


def program(request: Any, path: str = "logits", supported: bool = True, **flags: bool) -> Any:
    (signature,) = build_program_signatures(request, path, static_q128_topk_supported=supported, **flags)
    return signature


def trace(request: Any, path: str = "logits", **flags: bool) -> Any:
    return build_trace_signature(request, trace_enabled=True, sampling_path=path, **flags)


@pytest.mark.covers("SIG-01")
def test_sampling_is_part_of_a_program(planned: Planned) -> None:
    (request,) = planned([80])
    assert program(request) != program(request, "topk")
    assert ("sampling_path", "logits") in program(request).key_material()


@pytest.mark.covers("SIG-02", "SIG-03")
@pytest.mark.parametrize(
    ("length", "cached", "variant", "chunk_width"), [(112, 32, "chunked", 4), (80, 0, "regular-single", None)]
)
def test_identity__length__cached__variant__chunk_width(
    planned: Planned, length: int, cached: int, variant: str, chunk_width: int | None
) -> None:
    (request,) = planned([length], cached=[cached])
    assert trace(request) == PrefillTraceSignature(variant, 1, 128, 264, chunk_width)
    assert program(request) == PrefillProgramSignature(variant, 1, 128, 264, chunk_width, "logits")
    assert request.uses_chunked_prefill is (variant == "chunked")
    assert build_trace_signature(request, trace_enabled=False) is None


@pytest.mark.covers("SIG-04", "SIG-05")
def test_chunks_of_one_shape_share_one_program_and_one_trace(planned: Planned) -> None:
    (request,) = planned([4096])
    assert len(request.chunks) == 2 and request.chunks[0].chunk_size == 2048
    assert program(request) == PrefillProgramSignature("chunked", 1, 2048, 264, 64, "logits")
    assert trace(request) == PrefillTraceSignature("chunked", 1, 2048, 264, 64)
    assert request.page_table.min() == 0
    # A runtime that traces 128 and 1024 only asks for the chunk of 2048 and switches tracing off.
    allowed = request.chunks[0].chunk_size in (128, 1024)
    assert build_trace_signature(request, trace_enabled=allowed) is None


@pytest.mark.covers("SIG-06", "SIG-07")
@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [7, 3, 11, 5]])
def test_active_rows_and_slots_are_no_identity(planned: Planned, slots: list[int]) -> None:
    (three,), (four,) = planned([80] * 3, slots=slots[:3]), planned([80] * 4, slots=slots)
    assert program(three, "topk") == program(four, "topk")
    assert trace(three, "topk") == trace(four, "topk")
    names = [name for name, _ in (*program(three).key_material(), *trace(three).key_material())]
    assert not any("active" in name for name in names)
    assert (three.page_table[3] == -1).all()
    assert program(three, "topk") == PrefillProgramSignature("regular-batched", 4, 128, 264, None, "topk")


@pytest.mark.covers("SIG-15", "SIG-16")
@pytest.mark.parametrize(
    ("length", "tile"), [(1, 0), (32, 0), (33, 32), (65, 64), (96, 64), (97, 96), (128, 96)]
)
def test_tile__length__tile(planned: Planned, length: int, tile: int) -> None:
    (request,) = planned([length])
    assert program(request, "topk").last_token_tile_start == tile
    assert program(request, "argmax", supported=False).last_token_tile_start == tile
    assert program(request, "topk", supported=False).last_token_tile_start is None
    assert program(request).last_token_tile_start is None
    assert trace(request, "topk") == trace(planned([5])[0], "topk")


@pytest.mark.parametrize(
    ("lengths", "cached"), [([129], [0]), ([100], [32]), ([128, 128], [0, 0]), ([2049], [0])]
)
@pytest.mark.parametrize("path", ["argmax", "topk"])
def test_only_short_regular_singles_have_a_tile(
    planned: Planned, lengths: list[int], cached: list[int], path: str
) -> None:
    (request,) = planned(lengths, cached=cached)
    assert program(request, path).last_token_tile_start is None


@pytest.mark.covers("SIG-17")
def test_every_sampling_path_has_its_own_trace(planned: Planned) -> None:
    (request,) = planned([80])
    traces = [trace(request, path) for path in ("logits", "argmax", "topk")]
    assert len(set(traces)) == 3
    assert [signature.sampling_path for signature in traces] == ["logits", "argmax", "topk"]


@pytest.mark.covers("SIG-10", "SIG-11")
@pytest.mark.parametrize("flag", ["penalties_enabled", "logprobs_enabled"])
def test_flags_are_identity(planned: Planned, flag: str) -> None:
    (request,) = planned([80])
    assert program(request, "topk", **{flag: True}) == program(request, "topk").__replace__(**{flag: True})
    assert trace(request, "topk", **{flag: True}) == trace(request, "topk").__replace__(**{flag: True})


@pytest.mark.covers("SIG-19")
def test_cached_offsets_are_no_identity(planned: Planned) -> None:
    (a,), (b,) = planned([112], cached=[32]), planned([144], cached=[64])
    assert (trace(a), program(a)) == (trace(b), program(b))
    for request in (a, b):
        (chunk,) = request.chunks
        assert chunk.chunk_page_table.shape == (1, 4) and chunk.chunk_page_table[0, -1] == -1
        assert request.page_table.min() >= 0


def test_chunks_of_different_shape_are_programs_of_their_own(planned: Planned) -> None:
    (request,) = planned([4096])
    first, second = request.chunks
    half = [
        type(first)(slice(0, 1024), 0, 1024, first.chunk_page_table[:, :32], False),
        type(first)(slice(1024, 2048), 1024, 1024, first.chunk_page_table[:, 32:], False),
    ]
    programs = build_program_signatures(
        request.__replace__(chunks=(*half, second)), "logits", static_q128_topk_supported=True
    )
    assert [p.invocation_sequence_length for p in programs] == [1024, 2048]
