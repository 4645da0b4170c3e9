# SPDX-License-Identifier: Apache-2.0
"""Builds the coverage manifest from the registries and refuses to when required coverage is missing.

Follows chapter 30, section 5.5.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from llm_runtime.program_compiler import CompiledProgram
from llm_runtime.warmup.cases import CoverageAlias, CoverageManifest

__all__ = ["build_manifest", "programs_of"]


def programs_of(compiled: Any) -> tuple[CompiledProgram, ...]:
    """What a compile call returned, as a tuple: None, one program or a tuple of them; else TypeError."""
    if compiled is None:
        return ()
    programs = compiled if isinstance(compiled, tuple) else (compiled,)
    for program in programs:
        if not isinstance(program, CompiledProgram):
            raise TypeError(f"a compile call must return compiled programs, got {type(program).__name__}")
    return programs


def build_manifest(
    programs: Collection[CompiledProgram],
    trace_compiler: Any,
    *,
    required: Collection[Any],
    trace_required: Collection[Any],
) -> CoverageManifest:
    """List compiled programs with their traces, in registration order.

    RuntimeError with the sorted digests when a required program was not compiled, a trace-required one has no
    alias, an alias has no record, or nothing is aliased at all; TypeError for a foreign entry in ``programs``.
    """
    known = {program.key for program in programs_of(tuple(programs))}
    _require_all(required, known, "required program was not compiled")
    eager: list[Any] = []
    aliases: list[CoverageAlias] = []
    traces: dict[Any, Any] = {}
    aliased = set()
    for program in programs:
        trace_key = trace_compiler.trace_key_for_program(program.key)
        if trace_key is None:
            eager.append(program.signature)
            continue
        record = trace_compiler.get(trace_key)
        if record is None:
            raise RuntimeError(f"trace {trace_key.digest} is associated with a program but not registered")
        aliased.add(program.key)
        traces.setdefault(trace_key, record.signature)
        aliases.append(CoverageAlias(program.signature, record.signature))
    _require_all(trace_required, aliased, "required trace alias is missing")
    if not aliases:
        raise RuntimeError("no required trace alias: no compiled program is associated with a trace")
    return CoverageManifest(
        eager_program_signatures=tuple(eager),
        traced_source_program_signatures=tuple(alias.program_signature for alias in aliases),
        trace_signatures=tuple(traces.values()),
        aliases=tuple(aliases),
    )


def _require_all(wanted: Collection[Any], present: Collection[Any], problem: str) -> None:
    missing = sorted(key.digest for key in wanted if key not in present)
    if missing:
        raise RuntimeError(f"{problem}: {', '.join(missing)}")
