# SPDX-License-Identifier: Apache-2.0
"""Traced decode: compile and register, replay one step for the whole lane."""

from __future__ import annotations

from typing import Any

from llm_runtime.decode import InvocationResult
from llm_runtime.execution.eager import decode_commands, request_state
from llm_runtime.execution.plans import decode_trace_plan
from llm_runtime.execution.target import TraceTarget
from llm_runtime.program_compiler import CompiledProgram


class TracedDecode(TraceTarget):
    """The decode half of `TracedExecutor`."""

    # Borrows the output of the trace that replayed last; a trace's own life does not depend on it.
    _latest_result: InvocationResult | None = None
    # Most steps run the program of the step before. Whether its trace is still there, the replay asks itself.
    _latest_signature: Any = None
    _latest_program = -1

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
        """Compile the call's program eagerly and register its capture plan unless it has a trace already."""
        eager, traces = self.eager_executor, self.trace_compiler
        prepared = eager.decode.prepare(
            tokens=tokens,
            start_pos=start_pos,
            page_table=page_table,
            sampling_params=sampling_params,
            reset_batch=reset_batch,
            **request_state(prompt_tokens, output_tokens, slot_remap),
            **decode_commands(reload_inputs, reload_page_table, reload_sampling_params, reset_sampling_state),
        )
        compiled = eager.compile_prepared_decode(prepared)
        if traces.trace_key_for_program(compiled.key) is None:
            signature = eager.decode.trace_signature(prepared)
            traces.register_capture_plan(
                decode_trace_plan(eager.decode.capture_plan(prepared), compiled.key, signature)
            )
        return compiled

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
        """`EagerExecutor.decode_forward` by replay.

        An error after the refresh began invalidates the decode runtime; one raised earlier leaves it untouched.
        """
        decode, traces = self.eager_executor.decode, self.trace_compiler
        prepared = decode.prepare(
            tokens=tokens,
            start_pos=start_pos,
            page_table=page_table,
            sampling_params=sampling_params,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            slot_remap=slot_remap,
            reset_batch=reset_batch,
            reload_inputs=reload_inputs,
            reload_page_table=reload_page_table,
            reload_sampling_params=reload_sampling_params,
            reset_sampling_state=reset_sampling_state,
        )
        signature = decode.program_signature(prepared)
        if signature is self._latest_signature:
            program_id = self._latest_program
        else:
            program_id = self._captured_program(prepared, signature)
        decode.ensure_trace_safe()
        decode.validate_submission(prepared)
        began = False

        def refresh(artifact: Any, decision: Any) -> None:
            nonlocal began
            began = True
            decode.refresh_trace(artifact, prepared, decision)

        try:
            output = traces.replay_program(
                program_id,
                refresh,
                reset_batch=prepared.reset_batch,
                device_feedback_enabled=decode.config.position_feedback_capable,
                feedback_compatible=prepared.device_feedback,
                page_table_changed=prepared.page_table_changed,
                reload_inputs=prepared.reload_inputs,
                reload_page_table=prepared.reload_page_table,
                reload_sampling_params=prepared.reload_sampling_params,
            )
        except BaseException:
            if began:
                decode.invalidate_after_failed_submission()
            raise
        decode.note_submitted(prepared)
        return decode.consume(
            self._result(output, prepared.sampling_params is not None), read_from_device=read_from_device
        )

    def _captured_program(self, prepared: Any, signature: Any) -> int:
        """The id of the program of `signature`, or `TraceCoverageError` when it cannot be replayed."""
        decode, traces = self.eager_executor.decode, self.trace_compiler
        program_id = traces.program_compiler.find(signature)
        if program_id < 0 or not traces.is_captured(program_id):
            raise self._miss("decode", decode, signature, decode.trace_signature(prepared))
        self._latest_signature, self._latest_program = signature, program_id
        return program_id

    def _result(self, output: Any, is_tokens: bool) -> InvocationResult:
        """The result of a replay. Traces return one output object for life, so the latest result mostly fits."""
        result = self._latest_result
        if result is None or result.value is not output or result.is_tokens is not is_tokens:
            result = self._latest_result = InvocationResult(value=output, owned=None, is_tokens=is_tokens)
        return result
