# SPDX-License-Identifier: Apache-2.0
"""Signature keys: typing rules, canonical bytes, equality (chapter 30, section 2.2)."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime._core import PrefillTraceSignature, SignatureKey


class Colour(enum.Enum):
    RED = "x"


class TextColour(str, enum.Enum):
    RED = "x"


class Number(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    name: str
    value: int


def digest(key: SignatureKey, kind: str) -> str:
    data = key.canonical_json(domain=f"tttv2.llm-runtime.{kind}", schema_version=1)
    return hashlib.sha256(data).hexdigest()


def tagged(value: Any) -> list[Any]:
    """The canonical form, written again from the table of chapter 30."""
    if value is None:
        return ["null"]
    if isinstance(value, enum.Enum):
        return ["enum", value.value]
    if isinstance(value, bool):
        return ["bool", value]
    if isinstance(value, int):
        return ["int", str(value)]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, str):
        return ["str", value]
    return ["tuple", [tagged(item) for item in value]]


def canonical(material: tuple[Any, ...], domain: str, version: int) -> bytes:
    payload = (("domain", domain), ("schema_version", version), ("signature", material))
    return json.dumps(tagged(payload), ensure_ascii=True, separators=(",", ":")).encode()


MATERIAL_VECTORS = [
    (
        (),
        "c6c18fe40cfdfd61a582ec57a4d0088d5012406a6e10238424d38af1b4941f38",
        "31298b1294f1e00e3132312daf1132880e82f8e5bb0218bcb99f14f37f9ac4e0",
    ),
    (
        ("a", 1),
        "3db894c55912c7f0d5ebfd83cd3db58f1f5ba9c4c2767a18106aeedb85d2f33b",
        "b8fd7f1cb569d2aa331dc67dbd2cea4f5e311f6f1eb905480ba0f177d266c1e2",
    ),
    (
        ("a", True),
        "f3c3f487d318d4306c58ad1cf6aefcacaac99a21c6777223cdddd17f4211a793",
        "3fdde5fbb2fbd51289b231798d2de490df95e319ab812123dcfbe3768ce62c41",
    ),
    (
        ("a", 1.0),
        "850cdd6cb378b81004430ed4ed62557d6f81de4d1ec6969c6f8ab9cffdf4129d",
        "bb6eefeffefb3e8f6600353ce7f80baae04bc4c2a102712e91396803ca9ed834",
    ),
    (
        ("a", None, ("b", 2)),
        "ed37de6d4da4cde7f3886b20c0996b884bd7fdcc6c93b87086724f62769056ef",
        "ea433674d5a9838660887c985a8d21fedb99b1a636e611e10e9600ea644cb401",
    ),
    (
        (Colour.RED,),
        "2e8bf6e4b92a2d0d69d6cf6155e91aaa78921081c1b0dde7eec85d3a5aaab726",
        "724edf0918fd360b49a4856f1889cb144a184bc103673b8826b8cc38b5e3fd76",
    ),
    (
        ("x",),
        "bf5121fb6f3307db73c9554f79e382353b3a7a7304c22fcd07dbe6563130ceb1",
        "160a6245e0166935fce9890f68f30ae7c97ebdc35b43c8914c869cb91006c566",
    ),
    (
        ("é",),
        "d601cbbb7727ec6fd74a1d1b36bd017614fa5e30bb046490eb170a026ce4f637",
        "37d9bc976fadc93efb535ddb22fdfdd0daf8bca23e63b4152f4d828fb813e16a",
    ),
]


@pytest.mark.parametrize(("material", "program", "trace"), MATERIAL_VECTORS)
def test_material_digest__material__program__trace(material: Any, program: str, trace: str) -> None:
    key = SignatureKey.from_material(material)
    assert (digest(key, "program"), digest(key, "trace")) == (program, trace)


@pytest.mark.parametrize("bad", [[1], {"a": 1}, {1}, b"x", np.int64(1), np.float32(1), object()])
def test_material_of_another_kind_is_refused_by_name(bad: object) -> None:
    with pytest.raises(TypeError, match=type(bad).__name__):
        SignatureKey.from_material(("a", (1, bad)))


def test_material_itself_must_be_a_tuple() -> None:
    with pytest.raises(TypeError, match="list"):
        SignatureKey.from_material([("a", 1)])  # type: ignore[arg-type]
    assert SignatureKey.from_material(Pair("a", 1)) == SignatureKey.from_material(("a", 1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_without_a_canonical_form_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        SignatureKey.from_material((bad,))


def test_enums_are_their_text_and_no_other_kind() -> None:
    key = SignatureKey.from_material
    assert key((Colour.RED,)) == key((TextColour.RED,)) != key(("x",))
    with pytest.raises(TypeError, match="Number"):
        key((Number.ONE,))


def test_a_key_nested_too_deeply_is_refused() -> None:
    material: tuple[Any, ...] = ()
    for _ in range(200):
        material = (material,)
    with pytest.raises(ValueError, match="64"):
        SignatureKey.from_material(material)


def test_values_that_compare_equal_in_python_are_different_keys() -> None:
    keys = [SignatureKey.from_material((value,)) for value in (1, True, 1.0, "1", 0.0, -0.0, None, ())]
    assert len(set(keys)) == len(keys)


def test_packed_bytes_that_are_not_one_tuple_are_refused() -> None:
    packed = (
        pickle.loads(pickle.dumps(PrefillTraceSignature("chunked", 1, 128, 64, 4).key))
        .__reduce__()[0]
        .keywords
    )
    for bad in (b"", b"n", packed["packed"][:-1], packed["packed"] + b"n"):
        with pytest.raises(ValueError, match="packed"):
            SignatureKey(packed=bad)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text(st.characters(categories=["Cs", "Lu", "So", "Cc"]))
    | st.sampled_from(Colour)
)

materials = st.recursive(
    scalars, lambda children: st.lists(children, max_size=4).map(tuple), max_leaves=12
).map(lambda value: value if isinstance(value, tuple) else (value,))


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return value.value if isinstance(value, enum.Enum) else value


@settings(deadline=None)
@given(materials, st.text(max_size=5), st.integers(-(2**62), 2**62))
def test_canonical_bytes_equal_the_python_form(material: Any, domain: str, version: int) -> None:
    if any(0xD800 <= ord(c) <= 0xDFFF for c in domain):
        domain = "d"
    key = SignatureKey.from_material(material)
    assert key.canonical_json(domain=domain, schema_version=version) == canonical(material, domain, version)
    assert repr(key.material()) == repr(plain(material))
    assert pickle.loads(pickle.dumps(key)) == key


@settings(deadline=None)
@given(materials, materials)
def test_equality_hash_and_mismatch_agree(a: Any, b: Any) -> None:
    first, second = SignatureKey.from_material(a), SignatureKey.from_material(b)
    same = json.dumps(tagged(a)) == json.dumps(tagged(b))
    assert (first == second) == same == (first.first_mismatch(second) is None)
    assert hash(first) == hash(second) if same else True


def test_digest_is_the_same_in_another_process(run_python: Callable[[str], str]) -> None:
    code = (
        "import hashlib; from llm_runtime._core import SignatureKey as K;"
        "k = K.from_material(('a', None, ('b', 2)));"
        "data = k.canonical_json(domain='tttv2.llm-runtime.program', schema_version=1);"
        "print(hashlib.sha256(data).hexdigest())"
    )
    assert run_python(code).strip() == MATERIAL_VECTORS[4][1]
