# SPDX-License-Identifier: Apache-2.0
"""The decode runtime of one lane: prepare a step, run it or refresh its trace, and hand its output out.

Follows chapter 20, sections 4 to 6.
"""

from __future__ import annotations

from typing import Any

from llm_runtime._core import DecodeTraceSignature, PageTableLayout
from llm_runtime._validation import require_instance
from llm_runtime.decode.body import DecodeBody
from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.decode.health import DecodeHealth
from llm_runtime.decode.inputs import DecodeInputStager
from llm_runtime.decode.invocation import DecodeInvoker
from llm_runtime.decode.preparation import DecodePreparer
from llm_runtime.decode.readout import DecodeReadout
from llm_runtime.decode.staging_turns import StagingTurns
from llm_runtime.decode.state import DecodeSamplingState
from llm_runtime.decode.trace import DecodeTraceLifecycle
from llm_runtime.decode.values import (
    DecodeCapturePlan,
    DecodeProgramSignature,
    InvocationResult,
    PreparedDecode,
)

__all__ = ["DecodeRuntime"]


class DecodeRuntime:
    """Decode steps of one lane with a fixed number of rows; idle rows carry negative positions.

    Borrows the model, the mesh and the output reader; owns host caches, transients that could not be
    released, and the leases of un-read outputs. After a submission that failed on the device every method
    but reading, draining and cleanup refuses with RuntimeError until the executor is rebuilt.
    """

    def __init__(self, config: DecodeRuntimeConfig) -> None:
        require_instance(config, DecodeRuntimeConfig, name="config")
        self.config = config
        self._health = DecodeHealth()
        self._preparer = DecodePreparer(config)
        self._state = DecodeSamplingState(config)
        self._turns = turns = StagingTurns()
        self._readout = DecodeReadout(config, health=self._health, turns=turns)
        self._stager = stager = DecodeInputStager(config, release=self._health.release)
        body = DecodeBody(config)
        self._invoker = DecodeInvoker(config.model, stager=stager, body=body, state=self._state, health=self._health)
        self._trace = DecodeTraceLifecycle(
            stager=stager,
            body=body,
            state=self._state,
            resident=self._preparer.resident,
            leases=self._readout.leases,
            turns=turns,
            release=self._health.release,
        )
        self._trace_signatures: dict[DecodeProgramSignature, DecodeTraceSignature] = {}

    @property
    def transient_orphan_count(self) -> int:
        """Tensor trees whose release failed and waits for :meth:`cleanup_transients`."""
        return self._health.orphan_count

    def configure_page_table_layout(self, layout: PageTableLayout) -> None:
        """Install the final page-table geometry inside the construction-time ceiling."""
        self.config = self.config.with_page_table_layout(layout)
        self._preparer.configure(self.config)

    def prepare(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        *,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        reset_batch: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
        reset_sampling_state: bool = False,
    ) -> PreparedDecode:
        """Validate and normalise one step on the host; nothing reaches the device.

        ``tokens`` and ``start_pos`` are integer host arrays ``[B]``, ``page_table`` is ``[B, any width]``.
        With ``reload_inputs`` left at None the refresh is inferred from ``reset_batch``, trace switches and
        page-table changes; a bool selects the explicit reload contract of version 1. Follows chapter 20,
        section 4: ValueError for sizes, positions, parameters and command combinations, TypeError for kinds,
        RuntimeError for a runtime that cannot take work.
        """
        if self._health.blocked:
            self._health.require_usable()
        return self._preparer.prepare(
            tokens,
            start_pos,
            page_table,
            sampling_params,
            prompt_tokens,
            output_tokens,
            slot_remap,
            reset_batch,
            reload_inputs,
            reload_page_table,
            reload_sampling_params,
            reset_sampling_state,
        )

    def program_signature(self, prepared: PreparedDecode) -> DecodeProgramSignature:
        """Identity of the step's program."""
        _require_prepared(prepared)
        signature = prepared.program_signature
        return self._preparer.signature_of(prepared) if signature is None else signature

    def trace_signature(self, prepared: PreparedDecode) -> DecodeTraceSignature:
        """Identity of the step's trace: the fields of the program signature in a type of its own."""
        program = self.program_signature(prepared)
        found = self._trace_signatures.get(program)
        if found is None:
            found = DecodeTraceSignature(
                batch_size=program.batch_size,
                page_table_width=program.page_table_width,
                sampling_path=program.sampling_path,
                device_feedback=program.device_feedback,
                penalties_enabled=program.penalties_enabled,
                logprobs_enabled=program.logprobs_enabled,
            )
            self._trace_signatures[program] = found
        return found

    def validate_submission(self, prepared: PreparedDecode) -> None:
        """Last check before device work; changes nothing. Follows chapter 20, section 4.6.

        RuntimeError when the step takes its tokens from the host although the device went on by itself and what it
        sampled was not processed: the host's tokens would be older than the device's. Steady steps never wait.
        """
        self._admit(prepared)
        state, resident = self._state, self._preparer.resident
        state.require_supported(prepared)
        if prepared.reload_inputs is None:
            state.require_known_streams(prepared)
        else:
            state.validate_commands(prepared, has_resident=resident.sampling is not None)
        if resident.host_takes_over(prepared):
            if resident.feedback:
                self._readout.leases.require_processed()
            self._stager.check(prepared)

    def invoke(
        self, prepared: PreparedDecode, *, device_feedback: bool = False, count_tokens: bool = True
    ) -> InvocationResult:
        """Run one step eagerly. The result owns its inputs and output until it is consumed.

        ``count_tokens=False`` compiles: sampling state is admitted for the call only and the step does not
        count as submitted. ValueError for ``reload_inputs=False``: an eager step always stages all inputs.
        """
        self._admit(prepared)
        if prepared.reload_inputs is False:
            raise ValueError("an eager step needs all its inputs, it cannot run with reload_inputs=False")
        if count_tokens:
            self.validate_submission(prepared)
        else:
            self._state.require_supported(prepared)
        feedback = device_feedback and prepared.device_feedback
        result = self._invoker.invoke(prepared, device_feedback=feedback, count_tokens=count_tokens)
        if count_tokens:
            self._note(prepared, device_feedback=feedback)
        return result

    def capture_plan(self, prepared: PreparedDecode) -> DecodeCapturePlan:
        """Callbacks that allocate, prime and capture this step."""
        self._admit(prepared)
        return self._trace.capture_plan(prepared)

    def refresh_trace(self, artifact: Any, prepared: PreparedDecode, decision: Any) -> None:
        """Copy into a captured step what a refresh decision asks for, seeds and changed K/P/T included."""
        self._trace.refresh(artifact, prepared, decision)

    def note_submitted(self, prepared: PreparedDecode) -> None:
        """Record a replayed step as accepted: later steps are compared with it."""
        _require_prepared(prepared)
        self._note(prepared, device_feedback=prepared.device_feedback)

    def invalidate_after_failed_submission(self) -> None:
        """Refuse all further work: device state is unknown after a failed submission (decision D15)."""
        self._health.invalidate()

    def consume(self, result: InvocationResult, *, read_from_device: bool = True) -> Any:
        """Read a result and release it, or lease it and return the raw value.

        Returns ``(output, log_probs)``: logits float32 ``[B,1,V]`` with None, or tokens int64 ``[B]`` with
        float32 ``[B]`` or None, in the kind of the step's ``tokens``.
        """
        if type(result) is not InvocationResult:
            require_instance(result, InvocationResult, name="result")
        return self._readout.consume(result, read_from_device=read_from_device)

    def read_decode_output(self, tt_out: Any, *, async_read: bool = False) -> Any:
        """Copy a raw output to the host: the un-normalised host tree, or ``(host tree, [event])`` when async."""
        return self._readout.read(tt_out, async_read=async_read)

    def process_decode_output_host(self, tt_out: Any, *, is_tokens: bool = False) -> tuple[Any, Any]:
        """Finish an external read and return host rows as :meth:`consume` does; may run on another thread.

        Takes the host value of :meth:`read_decode_output`, or a raw output that was never submitted.
        """
        return self._readout.process(tt_out, is_tokens=is_tokens)

    def drain_external_outputs(self) -> None:
        """Release every outstanding lease; idempotent, failures are raised together and can be retried."""
        self._readout.leases.drain()

    def ensure_trace_safe(self) -> None:
        """RuntimeError while an un-read output could be overwritten, or the runtime cannot take work."""
        if self._health.blocked:
            self._health.require_usable()
        self._readout.leases.require_trace_safe()

    def cleanup_transients(self) -> None:
        """Retry releases that failed; the runtime takes work again once nothing is left."""
        self._health.cleanup()

    def _admit(self, prepared: PreparedDecode) -> None:
        if self._health.blocked:
            self._health.require_usable()
        _require_prepared(prepared)

    def _note(self, prepared: PreparedDecode, *, device_feedback: bool) -> None:
        self._turns.submitted += 1
        self._preparer.note_submitted(prepared, device_feedback=device_feedback)
        self._readout.note_kind(prepared.tokens)


def _require_prepared(prepared: Any) -> None:
    if type(prepared) is not PreparedDecode:
        require_instance(prepared, PreparedDecode, name="prepared")
