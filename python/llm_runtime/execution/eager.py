# SPDX-License-Identifier: Apache-2.0
"""Eager execution: prepare, run the program of every prepared request, read the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm_runtime._validation import require_instance
from llm_runtime.decode import DecodeRuntime
from llm_runtime.prefill.runtime import PrefillRuntime
from llm_runtime.program_compiler import CompiledProgram, OutputSpec, ProgramCompiler


class EagerExecutor:
    """Runs prefill and decode as compiled programs. Borrows the two runtimes and the program compiler.

    While the compile gate is closed (traces are being captured or exist) every signature of a call must be
    compiled, which is checked for the whole call before its first request runs. Follows chapter 30, section 4.3.
    """

    def __init__(self, *, prefill: PrefillRuntime, decode: DecodeRuntime, program_compiler: ProgramCompiler) -> None:
        require_instance(prefill, PrefillRuntime, name="prefill")
        require_instance(decode, DecodeRuntime, name="decode")
        require_instance(program_compiler, ProgramCompiler, name="program_compiler")
        self.prefill = prefill
        self.decode = decode
        self.program_compiler = program_compiler
        self._prefill_count = 0

    @property
    def eager_prefill_count(self) -> int:
        """Prepared prefill requests that were submitted eagerly; compile runs do not count."""
        return self._prefill_count

    def runtime_summary(self) -> dict[str, Any]:
        """Counters of this executor and its program registry, ready for JSON."""
        programs = self.program_compiler
        entries = programs.device_program_cache_entries()
        return {
            "eager_prefill_executions": self._prefill_count,
            "semantic_program_count": len(programs.compiled_programs),
            "rejected_post_activation_compile_attempts": programs.post_activation_compile_rejections,
            "ttnn_program_cache_count": None if entries is None else sum(entries),
        }

    def compile_prefill(
        self,
        *,
        tokens: Any,
        page_table: Any,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
    ) -> tuple[CompiledProgram, ...]:
        """Compile every program that this prefill call would need; tokens are not counted.

        Arguments as `prefill_forward`. Returns one record per prepared request and program signature, in order.
        """
        prepared = self.prefill.prepare(
            tokens=tokens,
            page_table=page_table,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            sampling_params=sampling_params,
            **request_state(prompt_tokens, output_tokens, slot_remap),
        )
        return tuple(record for request in prepared for record in self.compile_prepared_prefill(request))

    def compile_prepared_prefill(self, prepared: Any) -> tuple[CompiledProgram, ...]:
        """Compile one prepared request, running the whole of it once per program signature."""
        return tuple(
            self.program_compiler.compile(
                signature,
                lambda _context: self.prefill.invoke(prepared, count_tokens=False),
                output_spec=_spec_of_result,
                release_output=_owned_by_result,
            )
            for signature in prepared.program_signatures
        )

    def prefill_forward(
        self,
        *,
        tokens: Any,
        page_table: Any,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
    ) -> Any:
        """Prefill the rows of `tokens` (integers `[N, T]`) and return their logits or sampled tokens in row order.

        `page_table` is `[N, W]`, `prompt_lens` and `start_pos` are `[N]` in tokens, `empty_slots` one slot per row.
        Returns what `PrefillRuntime.assemble` makes of the results.
        """
        prepared = self.prefill.prepare(
            tokens=tokens,
            page_table=page_table,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            sampling_params=sampling_params,
            **request_state(prompt_tokens, output_tokens, slot_remap),
        )
        self.decode.ensure_trace_safe()
        self._require_ready(signature for request in prepared for signature in request.program_signatures)
        return self.prefill.assemble(
            self._results(prepared), batch_size=int(tokens.shape[0]), sampling_params=sampling_params
        )

    def compile_decode(
        self,
        *,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        reset_batch: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
        reset_sampling_state: bool = False,
    ) -> CompiledProgram:
        """Compile the program of this decode call, with its position feedback; tokens are not counted."""
        prepared = self.decode.prepare(
            tokens=tokens,
            start_pos=start_pos,
            page_table=page_table,
            sampling_params=sampling_params,
            reset_batch=reset_batch,
            **request_state(prompt_tokens, output_tokens, slot_remap),
            **decode_commands(reload_inputs, reload_page_table, reload_sampling_params, reset_sampling_state),
        )
        return self.compile_prepared_decode(prepared)

    def compile_prepared_decode(self, prepared: Any) -> CompiledProgram:
        """Compile one prepared decode step."""
        return self.program_compiler.compile(
            self.decode.program_signature(prepared),
            lambda _context: self.decode.invoke(prepared, device_feedback=prepared.device_feedback, count_tokens=False),
            output_spec=_spec_of_result,
            release_output=_owned_by_result,
        )

    def decode_forward(
        self,
        *,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        reset_batch: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
        reset_sampling_state: bool = False,
        read_from_device: bool = True,
    ) -> Any:
        """Run one decode step for the whole lane: `tokens` and `start_pos` `[B]` (negative = idle), table `[B, W]`.

        Returns what `DecodeRuntime.consume` returns: host values, or the raw output when not reading.
        """
        prepared = self.decode.prepare(
            tokens=tokens,
            start_pos=start_pos,
            page_table=page_table,
            sampling_params=sampling_params,
            reset_batch=reset_batch,
            **request_state(prompt_tokens, output_tokens, slot_remap),
            **decode_commands(reload_inputs, reload_page_table, reload_sampling_params, reset_sampling_state),
        )
        self.decode.ensure_trace_safe()
        if self.program_compiler.gate_closed:
            self._require_ready((self.decode.program_signature(prepared),))
        result = self.decode.invoke(prepared, device_feedback=False)
        return self.decode.consume(result, read_from_device=read_from_device)

    def _require_ready(self, signatures: Any) -> None:
        """While no unseen program may compile, refuse the call unless all of its programs exist."""
        programs = self.program_compiler
        if not programs.gate_closed:
            return
        for signature in signatures:
            if programs.find(signature) < 0:
                raise RuntimeError(
                    f"eager program {programs.key_for(signature).digest} ({signature!r}) has not been compiled, and "
                    "none may compile while traces are captured or active; cover it at warmup"
                )

    def _results(self, prepared: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        """Run request by request as the results are consumed, so that only one holds device memory at a time.

        A later request that fails therefore finds nothing of the earlier ones left to release.
        """
        for request in prepared:
            result = self.prefill.invoke(request)
            self._prefill_count += 1
            yield request, result


def request_state(prompt_tokens: Any, output_tokens: Any, slot_remap: Any) -> dict[str, Any]:
    """The optional request-state arguments that were given, for `prepare`."""
    if prompt_tokens is None and output_tokens is None and slot_remap is None:
        return {}
    given = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "slot_remap": slot_remap}
    return {name: value for name, value in given.items() if value is not None}


def decode_commands(
    reload_inputs: bool | None,
    reload_page_table: bool,
    reload_sampling_params: bool,
    reset_sampling_state: bool,
) -> dict[str, Any]:
    """The four decode commands as a group, or nothing when none of them is used."""
    if reload_inputs is None and not (reload_page_table or reload_sampling_params or reset_sampling_state):
        return {}
    return {
        "reload_inputs": reload_inputs,
        "reload_page_table": reload_page_table,
        "reload_sampling_params": reload_sampling_params,
        "reset_sampling_state": reset_sampling_state,
    }


def _spec_of_result(result: Any) -> OutputSpec:
    return OutputSpec.from_value(result.value)


def _owned_by_result(result: Any) -> Any:
    return result.owned
