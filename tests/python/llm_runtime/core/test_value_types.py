# SPDX-License-Identifier: Apache-2.0
"""The promises of every immutable class of the core: fields, equality, hash, repr, pickling, replacement."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llm_runtime import _core as core

# Factories instead of objects: a test table outlives the interpreter's leak check.
VALUES: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "PageTableLayout": (
        lambda: core.PageTableLayout(32, 60, 192, 128),
        {"block_size": 32, "raw_capacity_width": 60, "prefill_width": 192, "decode_width": 128},
        {"block_size": 64},
    ),
    "PrefillProgramSignature": (
        lambda: core.PrefillProgramSignature("chunked", 1, 128, 264, 4, "topk", True, False, None),
        {
            "operation_variant": "chunked",
            "padded_batch_size": 1,
            "invocation_sequence_length": 128,
            "page_table_width": 264,
            "chunk_page_table_width": 4,
            "sampling_path": "topk",
            "penalties_enabled": True,
            "logprobs_enabled": False,
            "last_token_tile_start": None,
        },
        {"last_token_tile_start": 32},
    ),
    "PrefillTraceSignature": (
        lambda: core.PrefillTraceSignature("regular-single", 1, 128, 264, None),
        {
            "operation_variant": "regular-single",
            "padded_batch_size": 1,
            "padded_sequence_length": 128,
            "page_table_width": 264,
            "chunk_page_table_width": None,
            "sampling_path": "logits",
            "penalties_enabled": False,
            "logprobs_enabled": False,
        },
        {"padded_batch_size": 2},
    ),
    "DecodeProgramSignature": (
        lambda: core.DecodeProgramSignature(32, 128, "topk", True),
        {
            "batch_size": 32,
            "page_table_width": 128,
            "sampling_path": "topk",
            "device_feedback": True,
            "penalties_enabled": False,
            "logprobs_enabled": False,
        },
        {"logprobs_enabled": True},
    ),
    "DecodeTraceSignature": (
        lambda: core.DecodeTraceSignature(32, 128, "argmax", False, True, True),
        {
            "batch_size": 32,
            "page_table_width": 128,
            "sampling_path": "argmax",
            "device_feedback": False,
            "penalties_enabled": True,
            "logprobs_enabled": True,
        },
        {"batch_size": 16},
    ),
}
values = pytest.mark.parametrize("name", VALUES)


def plain_request() -> Any:
    return core.PrefillRequest(
        kind="batched",
        source_rows=(0, 2),
        slots=(5, 1),
        tokens=np.arange(8, dtype=np.int64).reshape(2, 4),
        page_table=np.arange(4, dtype=np.int32).reshape(2, 2),
        prompt_lengths=(4, 3),
        cached_tokens=(0, 0),
        last_token_indices=(3, 2),
        padded_sequence_length=4,
        padded_batch_size=2,
        chunks=(core.PrefillChunk(slice(0, 4), 0, 4, None, True),),
        uses_chunked_prefill=False,
    )


@values
def test_fields_are_the_listed_ones_and_read_only(name: str) -> None:
    make, fields, _ = VALUES[name]
    value = make()
    assert {field: getattr(value, field) for field in fields} == fields
    assert type(value)(**fields) == value
    for field in fields:
        with pytest.raises(AttributeError):
            setattr(value, field, fields[field])
    with pytest.raises(AttributeError):
        value.something_else = 1


@values
def test_equality_and_hash_follow_the_fields(name: str) -> None:
    make, _, change = VALUES[name]
    value, twin, other = make(), make(), make().__replace__(**change)
    assert value == twin and hash(value) == hash(twin) and len({value, twin}) == 1
    assert value != other and len({value, other}) == 2
    assert (value == 3) is False and (value != None) is True  # noqa: E711
    assert value.__eq__(3) is NotImplemented


@values
def test_every_field_takes_part_in_equality(name: str) -> None:
    make, fields, _ = VALUES[name]
    for field, old in fields.items():
        new: Any = not old if isinstance(old, bool) else f"{old}x" if isinstance(old, str) else (old or 0) + 64
        assert make() != make().__replace__(**{field: new}), field


@values
def test_repr_names_every_field(name: str) -> None:
    make, fields, _ = VALUES[name]
    text = ", ".join(f"{field}={value!r}" for field, value in fields.items())
    assert repr(make()) == f"{name}({text})"


@values
def test_copies_are_equal_values(name: str) -> None:
    value = VALUES[name][0]()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert copy.copy(value) == value == copy.deepcopy(value)


@values
def test_replace_refuses_unknown_fields(name: str) -> None:
    with pytest.raises(TypeError):
        VALUES[name][0]().__replace__(no_such_field=1)


@values
def test_classes_are_final(name: str) -> None:
    with pytest.raises(TypeError):
        type("Derived", (getattr(core, name),), {})


def test_requests_and_chunks_are_no_values() -> None:
    request, twin = plain_request(), plain_request()
    assert request != twin
    for thing in (request, request.chunks[0]):
        with pytest.raises(TypeError):
            hash(thing)
        with pytest.raises(AttributeError):
            thing.kind = "x"


def test_requests_pickle_through_their_constructor() -> None:
    request = plain_request()
    twin = pickle.loads(pickle.dumps(request))
    assert (twin.kind, twin.source_rows, twin.slots) == ("batched", (0, 2), (5, 1))
    assert twin.tokens.tolist() == request.tokens.tolist() and twin.page_table.tolist() == [[0, 1], [2, 3]]
    assert twin.chunks[0].token_slice == slice(0, 4)
    assert repr(request).startswith("PrefillRequest(kind='batched', source_rows=(0, 2), slots=(5, 1), tokens=")
    assert request.__replace__(slots=(7, 8)).slots == (7, 8)


def test_no_object_outlives_the_interpreter(run_python: Callable[[str], str]) -> None:
    code = """
import numpy as np
from llm_runtime import _core as core
planner = core.PrefillPlanner(
    block_size=32, max_batch_size=1, max_prefill_chunk_size=128, supports_batched_prefill=False,
    disable_batched_prefill=False, max_prefill_batch_size=8, max_actual_page_table_width=None,
    canonical_page_table_width=None, start_alignment=32)
plan = planner.plan(np.ones((1, 200), np.int64), np.arange(20).reshape(1, 20), None, np.array([32]))
tables = [chunk.chunk_page_table for chunk in plan[0].chunks] + [plan[0].tokens, plan[0].page_table]
signatures = core.build_program_signatures(plan[0], "topk", static_q128_topk_supported=True)
keys = {signature.key for signature in signatures}
print(len(tables), len(keys))
del plan
assert tables[0].sum() == 10
"""
    assert run_python(code).split() == ["4", "1"]
