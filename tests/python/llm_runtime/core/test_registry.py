# SPDX-License-Identifier: Apache-2.0
"""Program and trace registries (chapter 30, sections 2 and 3)."""

from __future__ import annotations

import pytest

from llm_runtime._core import (
    DecodeProgramSignature,
    PrefillTraceSignature,
    ProgramRegistry,
    SignatureKey,
    TraceRegistry,
)


def decode_key(
    batch: int = 32, width: int = 64, path: str = "logits", *, feedback: bool = False
) -> SignatureKey:
    return DecodeProgramSignature(batch, width, path, feedback).key


def prefill_key(length: int) -> SignatureKey:
    return PrefillTraceSignature("regular-single", 1, length, 8, None).key


@pytest.mark.covers("PGM-17")
def test_equal_material_built_anew_is_the_same_program() -> None:
    registry = ProgramRegistry()
    assert registry.find(decode_key()) == -1
    assert registry.add(decode_key()) == 0
    assert registry.add(decode_key(16)) == 1
    assert registry.find(SignatureKey.from_material(decode_key().material())) == 0
    assert registry.key(1) == decode_key(16)
    assert len(registry) == 2
    with pytest.raises(RuntimeError, match="program 0"):
        registry.add(decode_key())
    for unknown in (2, -1):
        with pytest.raises(ValueError, match=f"program {unknown}"):
            registry.key(unknown)


@pytest.mark.covers("T26")
def test_every_field_separates_programs() -> None:
    registry = ProgramRegistry()
    registry.add(decode_key())
    for other in (decode_key(16), decode_key(32, 8), decode_key(path="topk"), decode_key(feedback=True)):
        assert registry.find(other) == -1
    values = [1, True, 1.0, "1", (1,), None]
    for value in values:
        registry.add(SignatureKey.from_material(("value", value)))
    assert len(registry) == 1 + len(values)


def test_nearest_names_the_first_differing_field_and_both_values() -> None:
    registry = ProgramRegistry()
    assert registry.nearest(decode_key()) is None
    registry.add(prefill_key(128))
    assert registry.nearest(decode_key()) is None, "a prefill program explains no decode miss"
    registry.add(decode_key(16, 8, "topk"))
    registry.add(decode_key(32, 8))
    registry.add(decode_key(16, 64))
    assert registry.nearest(decode_key()) == (2, "page_table_width", 64, 8)
    assert registry.nearest(decode_key(16, 64)) is None, "a registered key needs no explanation"


def test_capture_order_is_decode_first_whatever_the_registration_order() -> None:
    registry = TraceRegistry()
    for length in (128, 1024):
        registry.add(prefill_key(length), operation="prefill")
    for width in (8, 16):
        registry.add(decode_key(width=width), operation="decode")
    assert registry.capture_order() == (2, 3, 0, 1)
    assert [registry.operation(trace) for trace in range(4)] == ["prefill", "prefill", "decode", "decode"]


def test_operation_names_are_checked() -> None:
    registry = TraceRegistry()
    for call in (
        lambda: registry.add(decode_key(), operation="warmup"),
        lambda: registry.nearest(decode_key(), operation="Decode"),
        lambda: registry.replay_count(""),
    ):
        with pytest.raises(ValueError, match="'prefill' or 'decode'"):
            call()
    assert len(registry) == 0


def test_two_programs_share_one_trace_and_a_second_trace_is_refused() -> None:
    registry = TraceRegistry()
    first = registry.add(prefill_key(128), operation="prefill")
    second = registry.add(prefill_key(1024), operation="prefill")
    registry.associate(program_id=7, trace_id=first)
    registry.associate(program_id=3, trace_id=first)
    registry.associate(program_id=7, trace_id=first)
    with pytest.raises(ValueError, match=r"program 7 already replays trace 0"):
        registry.associate(program_id=7, trace_id=second)
    assert registry.association_count == 2
    assert registry.programs_of_trace(first) == (7, 3)
    assert registry.programs_of_trace(second) == ()
    assert (registry.trace_of_program(3), registry.trace_of_program(4)) == (first, -1)


def test_preflight_points_at_the_first_uncovered_request() -> None:
    registry = TraceRegistry()
    for program in range(2):
        trace = registry.add(prefill_key(128 << program), operation="prefill")
        registry.associate(program_id=program, trace_id=trace)
    registry.set_captured(0, True)
    assert registry.is_captured(0)
    assert not registry.is_captured(1)
    assert registry.preflight([]) == -1
    assert registry.preflight((0, 0)) == -1
    assert registry.preflight([0, 1]) == 1
    assert registry.preflight([0, 0, 9]) == 2
    registry.set_captured(0, False)
    assert registry.preflight([0]) == 0


def test_replays_are_counted_per_operation_and_a_switch_is_seen() -> None:
    registry = TraceRegistry()
    decode = registry.add(decode_key(), operation="decode")
    prefill = registry.add(prefill_key(128), operation="prefill")
    with pytest.raises(RuntimeError, match="not captured"):
        registry.note_replay(decode)
    registry.set_captured(decode, True)
    registry.set_captured(prefill, True)
    seen = []
    for trace in (decode, decode, prefill, decode):
        seen.append(registry.is_switch(trace))
        registry.note_replay(trace)
    assert seen == [True, False, True, True]
    assert (registry.replay_count("decode"), registry.replay_count("prefill")) == (3, 1)
    assert registry.last_replayed == decode
    registry.forget_last()
    assert registry.last_replayed == -1
    assert registry.is_switch(decode)


def test_a_trace_captured_again_counts_as_switched() -> None:
    registry = TraceRegistry()
    trace = registry.add(decode_key(), operation="decode")
    registry.set_captured(trace, True)
    registry.note_replay(trace)
    registry.set_captured(trace, False)
    registry.set_captured(trace, True)
    assert registry.is_switch(trace)


def test_a_miss_tells_registered_from_captured() -> None:
    registry = TraceRegistry()
    trace = registry.add(prefill_key(128), operation="prefill")
    registry.associate(program_id=0, trace_id=trace)
    assert registry.trace_of_program(0) == trace
    assert registry.preflight([0]) == 0
    wanted = prefill_key(1024)
    assert registry.nearest(wanted, operation="prefill") == (trace, "padded_sequence_length", 1024, 128)
    assert registry.nearest(wanted, operation="decode") is None
