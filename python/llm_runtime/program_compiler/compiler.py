# SPDX-License-Identifier: Apache-2.0
"""The one owner of eager program identity and readiness."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from llm_runtime._core import CompileGate, ProgramRegistry, SignatureKey
from llm_runtime._validation import require_bool
from llm_runtime.digest import NATIVE_SIGNATURES, ProgramKey, signature_key
from llm_runtime.program_compiler.outputs import CompileOutputs
from llm_runtime.program_compiler.values import CompiledProgram, OutputSpec


def _all_of(output: Any) -> Any:
    return output


class ProgramCompiler:
    """Registry of compiled programs of one mesh, with the gate that closes while traces exist.

    Borrows the mesh and the callable `bound_cache_context` (the paged-KV context, or `None` while no cache is
    bound). Owns compile outputs whose release failed, until `cleanup`. Ids (`find`, `program`) are small integers
    in registration order, for callers on a hot path; keys and records are the public form. Follows chapter 30,
    section 2.4.
    """

    def __init__(self, mesh_device: Any, bound_cache_context: Callable[[], Any]) -> None:
        self.mesh_device = mesh_device
        self._bound_cache_context = bound_cache_context
        self._gate = CompileGate()
        self._registry = ProgramRegistry()
        self._programs: list[CompiledProgram] = []
        self._id_by_digest: dict[str, int] = {}
        # Immutable signatures that were found before: a hit costs one cached hash.
        self._native_ids: dict[Any, int] = {}
        self._keys: dict[SignatureKey, ProgramKey] = {}
        self._outputs = CompileOutputs(mesh_device)

    @property
    def bound_cache_context(self) -> Callable[[], Any]:
        """How the paged-KV context is asked for (borrowed); traces belong to the one they were captured over."""
        return self._bound_cache_context

    @property
    def trace_capture_in_progress(self) -> bool:
        """Whether a trace is being recorded right now."""
        return self._gate.trace_capture_in_progress

    @property
    def trace_active(self) -> bool:
        """Whether traces exist, so that no unseen program may compile."""
        return self._gate.trace_active

    @property
    def gate_closed(self) -> bool:
        """Whether unseen programs are refused: a capture is running or traces exist."""
        gate = self._gate
        return gate.trace_active or gate.trace_capture_in_progress

    @property
    def released(self) -> bool:
        """Whether `cleanup` has succeeded; nothing compiles or is required any more."""
        return self._gate.released

    @property
    def compile_orphan_count(self) -> int:
        """Compile outputs whose release failed and is still due."""
        return self._outputs.orphan_count

    @property
    def compiled_programs(self) -> tuple[CompiledProgram, ...]:
        """Snapshot of all records in registration order; readable in every state."""
        return tuple(self._programs)

    @property
    def post_activation_compile_rejections(self) -> int:
        """How many unseen signatures were refused because traces were active."""
        return self._gate.rejections

    def key_for(self, signature: Any) -> ProgramKey:
        """The key of `signature`; equal material gives the identical object. Works in every state."""
        return self._key_of(signature_key(signature))

    def find(self, signature: Any) -> int:
        """The id of a compiled signature, or -1."""
        if type(signature) not in NATIVE_SIGNATURES:
            return self._registry.find(signature_key(signature))
        program_id = self._native_ids.get(signature)
        if program_id is None:
            program_id = self._registry.find(signature.key)
            if program_id >= 0:
                self._native_ids[signature] = program_id
        return program_id

    def id_of(self, key: ProgramKey) -> int:
        """The id of a compiled program by its key, or -1."""
        value = key.signature_key
        return self._id_by_digest.get(key.digest, -1) if value is None else self._registry.find(value)

    def program(self, program_id: int) -> CompiledProgram:
        """The record of an id that `find`, `id_of` or registration order gave."""
        return self._programs[program_id]

    def device_program_cache_entries(self) -> tuple[int, ...] | None:
        """Program-cache entries per device, or `None` when a device cannot tell."""
        counters = self._program_cache_counters
        if counters is None:
            return None
        return (counters[0](),) if len(counters) == 1 else tuple([count() for count in counters])

    def require_unchanged_device_program_cache(self, expected: tuple[int, ...] | None, *, phase: str) -> None:
        """`RuntimeError` naming `phase` when the counts differ from `expected`; `None` expects nothing."""
        if expected is None:
            return
        current = self.device_program_cache_entries()
        if current != expected:
            raise RuntimeError(
                f"device program cache changed {phase}: expected entries {expected}, found {current}; "
                "a program that no warmup compiled has run"
            )

    def compile(
        self,
        signature: Any,
        invoke: Callable[[Any], Any],
        *,
        output_spec: Callable[[Any], OutputSpec] = OutputSpec.from_value,
        release_output: Callable[[Any], Any] = _all_of,
        expected_output_spec: OutputSpec | None = None,
    ) -> CompiledProgram:
        """Run `invoke(context)` once so that the device program exists, and register it with its output contract.

        `output_spec(output)` describes the output while it is still allocated, `release_output(output)` selects
        the tree that is owned here and released afterwards. A known signature returns its record without running,
        in every gate state. `RuntimeError` when released, with orphans outstanding, while a capture runs, after
        trace activation (counted), without a bound KV cache, or when releasing the output failed; `ValueError` for
        another output contract. Nothing is registered unless everything succeeded.
        """
        self._gate.require_live()
        if self._outputs.orphan_count:
            count = self._outputs.orphan_count
            raise RuntimeError(f"{count} compile output(s) still wait for release; run cleanup first")
        value = signature_key(signature)
        known = self._registry.find(value)
        if known >= 0:
            return self._known(known, signature, expected_output_spec)
        self._gate.admit_compile(repr(signature))
        context = self._bound_cache_context()
        if context is None:
            raise RuntimeError(f"cannot compile {signature!r}: the paged KV cache is not allocated and bound")
        output = invoke(context)
        owned = release_output(output)
        spec = self._outputs.inspect_and_release(output, owned, output_spec, expected_output_spec)
        return self._register(value, signature, spec)

    def require_compiled(self, key: ProgramKey, signature: Any = None) -> CompiledProgram:
        """The record of `key`; `RuntimeError` when released, unknown, or registered for another signature."""
        self._gate.require_live()
        program_id = self.id_of(key)
        if program_id < 0:
            when = " after trace activation" if self._gate.trace_active else ""
            raise RuntimeError(f"program {key.digest} has not been compiled{when}")
        record = self._programs[program_id]
        if signature is not None and record.signature != signature:
            raise _collision(record, signature)
        return record

    def set_trace_capture_in_progress(self, value: bool) -> None:
        """Close or reopen the gate around one recording (trace compiler only)."""
        self._gate.require_live()
        self._gate.set_capture_in_progress(require_bool(value, name="trace capture in progress"))

    def set_trace_active(self, value: bool) -> None:
        """Close or reopen the gate for the life of the traces (trace compiler only)."""
        self._gate.require_live()
        self._gate.set_trace_active(require_bool(value, name="trace active"))

    def cleanup(self) -> None:
        """Release what is left and end the registry; idempotent, terminal, records stay readable.

        When an orphan cannot be released: `RuntimeError` with the count, the registry stays live, call again.
        """
        if self._gate.released:
            return
        self._outputs.release_orphans()
        self._keys.clear()
        self._gate.release()

    @cached_property
    def _program_cache_counters(self) -> tuple[Callable[[], int], ...] | None:
        """One counter per device, looked up once: every replay asks them twice."""
        get_devices = getattr(self.mesh_device, "get_devices", None)
        devices = get_devices() if callable(get_devices) else (self.mesh_device,)
        counters = [getattr(device, "num_program_cache_entries", None) for device in devices]
        readable = tuple([count for count in counters if callable(count)])
        return readable if len(readable) == len(counters) else None

    def _key_of(self, value: SignatureKey) -> ProgramKey:
        key = self._keys.get(value)
        if key is None:
            key = self._keys[value] = ProgramKey.from_signature_key(value)
        return key

    def _known(self, program_id: int, signature: Any, expected: OutputSpec | None) -> CompiledProgram:
        record = self._programs[program_id]
        if record.signature != signature:
            raise _collision(record, signature)
        if expected is not None and record.output_spec != expected:
            raise ValueError(
                f"program {record.key.digest} was compiled with another output contract: "
                f"{record.output_spec}, expected {expected}"
            )
        return record

    def _register(self, value: SignatureKey, signature: Any, spec: OutputSpec) -> CompiledProgram:
        key = self._key_of(value)
        # Lookups compare whole signatures; logs and manifests name programs by digest: it must be unique too.
        other = self._id_by_digest.get(key.digest)
        if other is not None:
            raise _collision(self._programs[other], signature)
        program_id = self._registry.add(value)
        record = CompiledProgram(key=key, signature=signature, output_spec=spec)
        self._programs.append(record)
        self._id_by_digest[key.digest] = program_id
        return record


def _collision(record: CompiledProgram, signature: Any) -> RuntimeError:
    return RuntimeError(
        f"program digest collision: {record.key.digest} belongs to {record.signature!r}, not to {signature!r}"
    )
