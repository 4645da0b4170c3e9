# SPDX-License-Identifier: Apache-2.0
"""Key material, canonical digests and the frozen keys of programs and traces."""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
import types

import numpy as np
import pytest

from llm_runtime._core import PrefillProgramSignature, PrefillTraceSignature
from llm_runtime.digest import (
    PROGRAM_DOMAIN,
    TRACE_DOMAIN,
    ProgramKey,
    TraceKey,
    signature_digest,
    validate_sha256_digest,
)


class Word(enum.Enum):
    X = "x"


class OtherWord(str, enum.Enum):
    X = "x"


class Number(enum.IntEnum):
    ONE = 1


def signature(*material):
    return types.SimpleNamespace(key_material=material)


def digests(*material):
    value = signature(*material)
    return ProgramKey.from_signature(value).digest, TraceKey.from_signature(value).digest


VECTORS = {
    (): (
        "c6c18fe40cfdfd61a582ec57a4d0088d5012406a6e10238424d38af1b4941f38",
        "31298b1294f1e00e3132312daf1132880e82f8e5bb0218bcb99f14f37f9ac4e0",
    ),
    ("a", 1): (
        "3db894c55912c7f0d5ebfd83cd3db58f1f5ba9c4c2767a18106aeedb85d2f33b",
        "b8fd7f1cb569d2aa331dc67dbd2cea4f5e311f6f1eb905480ba0f177d266c1e2",
    ),
    ("a", None, ("b", 2)): (
        "ed37de6d4da4cde7f3886b20c0996b884bd7fdcc6c93b87086724f62769056ef",
        "ea433674d5a9838660887c985a8d21fedb99b1a636e611e10e9600ea644cb401",
    ),
    ("x",): (
        "bf5121fb6f3307db73c9554f79e382353b3a7a7304c22fcd07dbe6563130ceb1",
        "160a6245e0166935fce9890f68f30ae7c97ebdc35b43c8914c869cb91006c566",
    ),
    ("é",): (
        "d601cbbb7727ec6fd74a1d1b36bd017614fa5e30bb046490eb170a026ce4f637",
        "37d9bc976fadc93efb535ddb22fdfdd0daf8bca23e63b4152f4d828fb813e16a",
    ),
    (Word.X,): (
        "2e8bf6e4b92a2d0d69d6cf6155e91aaa78921081c1b0dde7eec85d3a5aaab726",
        "724edf0918fd360b49a4856f1889cb144a184bc103673b8826b8cc38b5e3fd76",
    ),
}


@pytest.mark.parametrize("material", VECTORS, ids=repr)
def test_vectors(material):
    assert digests(*material) == VECTORS[material]


def test_vectors_of_equal_but_differently_typed_values():
    assert digests("a", True) == (
        "f3c3f487d318d4306c58ad1cf6aefcacaac99a21c6777223cdddd17f4211a793",
        "3fdde5fbb2fbd51289b231798d2de490df95e319ab812123dcfbe3768ce62c41",
    )
    assert digests("a", 1.0) == (
        "850cdd6cb378b81004430ed4ed62557d6f81de4d1ec6969c6f8ab9cffdf4129d",
        "bb6eefeffefb3e8f6600353ce7f80baae04bc4c2a102712e91396803ca9ed834",
    )
    assert len({digests("a", value) for value in (True, 1, 1.0, "1")}) == 4
    assert digests(0.0) != digests(-0.0)


@pytest.mark.covers("PGM-01")
def test_programs_and_traces_live_in_separate_domains():
    assert digests(("mode", "decode"), ("batch", 32), ("optional", None)) == (
        "c807e5574b34f3f83d386fc441580d1ae499aa534c8a426541dbeafdefa2ffdb",
        "27bea60de6b500f448e680d3423ad62efbd01294c254524e37c114ff8b5dff35",
    )


@pytest.mark.covers("PGM-02")
def test_every_part_of_the_material_counts():
    base = {"mode": "decode", "batch": 32, "optional": None}
    changed = [{}, {"mode": "prefill"}, {"batch": 16}, {"optional": 1}]
    keys = {ProgramKey.from_signature(signature(*{**base, **change}.items())) for change in changed}
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        (
            PrefillProgramSignature("regular-single", 1, 128, 64, None, "logits"),
            "7939632ec1516e3650838bee452a073051dbba106e80e2aef36a43eaf718ebea",
        ),
        (
            PrefillProgramSignature("chunked", 1, 2048, 64, 64, "topk", True, True),
            "04a4df41cdfa84b1eece20e8bfc4e32efe10e5a3ca0e584dcc5109f203b07d39",
        ),
        (
            PrefillTraceSignature("regular-single", 1, 128, 64, None, "logits"),
            "625f74d0fc9872761c495169abc562bcb3d39c42c97ca79b479a0fd92f270ada",
        ),
    ],
)
def test_signatures_of_the_core_use_their_cached_key(value, digest):
    key = TraceKey if isinstance(value, PrefillTraceSignature) else ProgramKey
    assert key.from_signature(value).digest == digest
    plain = types.SimpleNamespace(key_material=value.key_material)
    assert key.from_signature(plain) == key.from_signature(value)


def test_enum_classes_do_not_count_but_enums_do():
    assert digests(Word.X) == digests(OtherWord.X)
    assert digests(Word.X) != digests("x")


@pytest.mark.covers("PGM-06")
@pytest.mark.parametrize(
    "value", [{"a": 1}, [1], {1}, b"a", np.zeros(1), np.int64(1), np.dtype("int32"), Number.ONE, object()]
)
def test_values_that_are_not_canonical_are_refused(value):
    with pytest.raises(TypeError):
        digests("nested", ("inside", value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_floats_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError):
        digests(value)


def test_material_may_be_a_property_or_a_method():
    as_method = types.SimpleNamespace(key_material=lambda: ("a", 1))
    assert ProgramKey.from_signature(as_method).digest == VECTORS["a", 1][0]
    assert signature_digest(PROGRAM_DOMAIN, 1, as_method) == VECTORS["a", 1][0]
    assert signature_digest(TRACE_DOMAIN, 1, as_method) == VECTORS["a", 1][1]
    assert signature_digest(PROGRAM_DOMAIN, 2, as_method) != VECTORS["a", 1][0]
    named = type("Named", (tuple,), {})(("a", 1))
    assert ProgramKey.from_signature(types.SimpleNamespace(key_material=named)).digest == VECTORS["a", 1][0]


@pytest.mark.parametrize("broken", [object(), signature, types.SimpleNamespace(key_material=["a"])])
def test_missing_material_and_lists_are_refused(broken):
    with pytest.raises(TypeError, match="key_material"):
        ProgramKey.from_signature(broken)


@pytest.mark.parametrize("digest", ["A" * 64, "a" * 63, "a" * 65, "g" * 64, "a" * 64 + "\n", 7, None, "é" * 64])
def test_digests_are_validated(digest):
    with pytest.raises(ValueError, match="64 lower-case hex"):
        validate_sha256_digest(digest, PROGRAM_DOMAIN)
    with pytest.raises(ValueError, match="64 lower-case hex"):
        ProgramKey(digest)


@pytest.mark.parametrize("key_type", [ProgramKey, TraceKey])
def test_keys_are_values(key_type):
    lazy = key_type.from_signature(signature("a", 1))
    plain = key_type(VECTORS["a", 1][key_type is TraceKey])
    assert lazy == plain
    assert hash(lazy) == hash(plain)
    assert repr(lazy) == repr(plain) == f"{key_type.__name__}(digest={plain.digest!r})"
    assert lazy != key_type.from_signature(signature("a", 2))
    assert lazy != VECTORS["a", 1][0]
    for copied in (pickle.loads(pickle.dumps(lazy)), copy.copy(lazy), copy.deepcopy(lazy)):
        assert copied == lazy
    with pytest.raises(dataclasses.FrozenInstanceError):
        lazy.digest = "a" * 64
    with pytest.raises(dataclasses.FrozenInstanceError):
        del lazy._digest


def test_a_program_key_is_never_a_trace_key():
    digest = "a" * 64
    assert ProgramKey(digest) != TraceKey(digest)
