# SPDX-License-Identifier: Apache-2.0
"""Typed signatures: key material, digests, differences (chapter 10, section 7; chapter 20, section 3.1)."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest

from llm_runtime._core import (
    DecodeProgramSignature,
    DecodeTraceSignature,
    PrefillProgramSignature,
    PrefillTraceSignature,
    SignatureKey,
)


def digest(key: SignatureKey, kind: str) -> str:
    data = key.canonical_json(domain=f"tttv2.llm-runtime.{kind}", schema_version=1)
    return hashlib.sha256(data).hexdigest()


PROGRAM_VECTORS = [
    (
        ("regular-single", 1, 128, 64, None, "logits"),
        {},
        "7939632ec1516e3650838bee452a073051dbba106e80e2aef36a43eaf718ebea",
    ),
    (
        ("regular-single", 1, 128, 64, None, "argmax"),
        {"last_token_tile_start": 96},
        "f3fb47920f43125c80150d89bd8070a02d3fe52948f1704a42c140c8cfdd674b",
    ),
    (
        ("regular-batched", 16, 128, 64, None, "topk"),
        {},
        "7980f986b2a5cb7c34bf31eababafeec9b1b90697e6d898bc53d4bc0b53b92af",
    ),
    (
        ("chunked", 1, 2048, 64, 64, "topk"),
        {"penalties_enabled": True, "logprobs_enabled": True},
        "04a4df41cdfa84b1eece20e8bfc4e32efe10e5a3ca0e584dcc5109f203b07d39",
    ),
]

TRACE_VECTORS = [
    (
        ("regular-single", 1, 128, 64, None),
        {},
        "625f74d0fc9872761c495169abc562bcb3d39c42c97ca79b479a0fd92f270ada",
    ),
    (
        ("regular-single", 1, 128, 64, None),
        {"sampling_path": "topk"},
        "fb4eb1d6f97c290856d7a80c15dc25de3d30d25013960287cb01ddb6de26d704",
    ),
    (
        ("chunked", 1, 2048, 64, 64),
        {},
        "863daa3db8e9c251203a16707c98c7e87fc630efc69878ae19c9a9bf46ce6522",
    ),
]

GOLDEN_PROGRAM = "1fb47a00a66b522391f24ce966d44cbfe133b2623f5e2f7ae03cf2c31f6a42c5"

GOLDEN_TRACE = "4b71c7b3d465fe51a661a621c45b7952f7cc7028adb171d7e9b17161b07113b0"


@pytest.mark.parametrize(("args", "options", "expected"), PROGRAM_VECTORS)
def test_program_digest__args__options__expected(args: Any, options: Any, expected: str) -> None:
    assert digest(PrefillProgramSignature(*args, **options).key, "program") == expected


@pytest.mark.parametrize(("args", "options", "expected"), TRACE_VECTORS)
def test_trace_digest__args__options__expected(args: Any, options: Any, expected: str) -> None:
    assert digest(PrefillTraceSignature(*args, **options).key, "trace") == expected


@pytest.mark.covers("SIG-08", "SIG-09")
def test_golden_digests_do_not_drift() -> None:
    program = PrefillProgramSignature("regular-batched", 16, 128, 32, None, "topk")
    trace = PrefillTraceSignature("chunked", 1, 512, 32, 4)
    assert digest(program.key, "program") == GOLDEN_PROGRAM
    assert digest(trace.key, "trace") == GOLDEN_TRACE


@pytest.mark.covers("SIG-10", "SIG-11", "SIG-12")
@pytest.mark.parametrize(
    ("kind", "args", "change"),
    [
        (PrefillProgramSignature, ("chunked", 1, 128, 64, 4, "topk"), {"penalties_enabled": True}),
        (PrefillProgramSignature, ("chunked", 1, 128, 64, 4, "topk"), {"logprobs_enabled": True}),
        (PrefillTraceSignature, ("chunked", 1, 128, 64, 4), {"sampling_path": "topk"}),
        (PrefillTraceSignature, ("chunked", 1, 128, 64, 4), {"penalties_enabled": True}),
        (DecodeProgramSignature, (32, 64, "topk", True), {"logprobs_enabled": True}),
        (DecodeTraceSignature, (32, 64, "topk", True), {"device_feedback": False}),
    ],
)
def test_one_changed_field_changes_the_key__kind__args__change(
    kind: Any, args: tuple[Any, ...], change: dict[str, Any]
) -> None:
    signature = kind(*args)
    changed = signature.__replace__(**change)
    (name, value), *_ = change.items()
    assert changed != signature and changed.key != signature.key
    assert digest(changed.key, "program") != digest(signature.key, "program")
    found = changed.key.first_mismatch(signature.key)
    assert found is not None and found[:2] == (name, value)


@pytest.mark.covers("SIG-18")
def test_key_material_is_the_listed_pairs_in_order() -> None:
    full = PrefillProgramSignature("chunked", 1, 2048, 64, 64, "topk", True, True, 96)
    assert full.key_material() == (
        ("operation_variant", "chunked"),
        ("padded_batch_size", 1),
        ("invocation_sequence_length", 2048),
        ("page_table_width", 64),
        ("chunk_page_table_width", 64),
        ("sampling_path", "topk"),
        ("penalties_enabled", True),
        ("logprobs_enabled", True),
        ("last_token_tile_start", 96),
    )
    assert PrefillTraceSignature("regular-single", 1, 128, 64, None).key_material() == (
        ("operation_variant", "regular-single"),
        ("padded_batch_size", 1),
        ("padded_sequence_length", 128),
        ("page_table_width", 64),
        ("chunk_page_table_width", None),
    )
    assert PrefillTraceSignature("chunked", 1, 128, 64, 4, "topk", True, True).key_material()[5:] == (
        ("sampling_path", "topk"),
        ("penalties_enabled", True),
        ("logprobs_enabled", True),
    )
    assert DecodeTraceSignature(32, 64, "logits", False, True, True).key_material() == (
        ("operation", "decode"),
        ("batch_size", 32),
        ("page_table_width", 64),
        ("sampling_path", "logits"),
        ("device_feedback", False),
        ("penalties_enabled", True),
        ("logprobs_enabled", True),
    )


def test_mismatch_names_field_and_both_values() -> None:
    signature = PrefillTraceSignature("regular-single", 1, 128, 64, None)
    other = signature.__replace__(page_table_width=72, sampling_path="topk")
    assert signature.key.first_mismatch(other.key) == ("page_table_width", 64, 72)
    assert signature.key.first_mismatch(signature.__replace__(sampling_path="topk").key) == (
        "sampling_path",
        None,
        "topk",
    )
    assert signature.key.first_mismatch(copy.deepcopy(signature).key) is None


def test_program_and_trace_signatures_with_the_same_fields_are_not_equal() -> None:
    program = DecodeProgramSignature(32, 64, "topk", True)
    trace = DecodeTraceSignature(32, 64, "topk", True)
    assert program != trace and program.key == trace.key
