# SPDX-License-Identifier: Apache-2.0
"""The coverage manifest against the registries, and what makes it refuse."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import pytest

from llm_runtime.program_compiler import CompiledProgram
from llm_runtime.warmup.manifest import build_manifest, programs_of


class Key:
    """A registry key with a digest."""

    def __init__(self, digest):
        self.digest = digest

    def __eq__(self, other):
        return isinstance(other, Key) and self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)


def program(name):
    return CompiledProgram(key=Key(name), signature=f"signature {name}", output_spec=None)


class Traces:
    """Associations of program digests with trace digests, and the records of those traces."""

    def __init__(self, associations, *, records=None):
        self.associations = associations
        self.records = set(associations.values()) if records is None else records

    def trace_key_for_program(self, key):
        trace = self.associations.get(key.digest)
        return None if trace is None else Key(trace)

    def get(self, key):
        return SimpleNamespace(signature=f"trace {key.digest}") if key.digest in self.records else None


@pytest.mark.covers("WRM-32")
def test_programs_are_listed_with_their_traces_in_registration_order():
    programs = (program("b"), program("e"), program("a"))
    manifest = build_manifest(programs, Traces({"a": "t", "b": "t"}), required=[Key("e")], trace_required=[Key("a")])
    assert manifest.eager_program_signatures == ("signature e",)
    assert manifest.traced_source_program_signatures == ("signature b", "signature a")
    assert manifest.trace_signatures == ("trace t",)
    assert [(alias.program_signature, alias.trace_signature) for alias in manifest.aliases] == [
        ("signature b", "trace t"),
        ("signature a", "trace t"),
    ]
    with pytest.raises(FrozenInstanceError):
        manifest.aliases = ()


@pytest.mark.covers("WRM-33")
def test_a_required_program_without_an_alias_is_refused():
    with pytest.raises(RuntimeError, match=r"required trace alias.*: b$"):
        build_manifest(
            (program("a"), program("b")), Traces({"a": "t"}), required=[], trace_required=[Key("a"), Key("b")]
        )


def test_missing_programs_are_listed_sorted():
    with pytest.raises(RuntimeError, match=r"not compiled: x, z$"):
        build_manifest((program("a"),), Traces({"a": "t"}), required=[Key("z"), Key("a"), Key("x")], trace_required=[])


def test_an_alias_needs_a_registered_trace():
    with pytest.raises(RuntimeError, match="trace t is associated"):
        build_manifest((program("a"),), Traces({"a": "t"}, records=set()), required=[], trace_required=[])


def test_nothing_aliased_is_nothing_to_capture():
    with pytest.raises(RuntimeError, match="no required trace alias"):
        build_manifest((program("a"),), Traces({}), required=[], trace_required=[])


def test_results_of_compile_calls():
    one, two = program("a"), program("b")
    assert programs_of(None) == ()
    assert programs_of(one) == (one,)
    assert programs_of((one, two)) == (one, two)
    for bad in ([one], "a", (one, None)):
        with pytest.raises(TypeError, match="compiled programs"):
            programs_of(bad)
    with pytest.raises(TypeError):
        build_manifest((one, "b"), Traces({"a": "t"}), required=[], trace_required=[])
