# SPDX-License-Identifier: Apache-2.0
"""Traced prefill: compile and register, check the coverage of a whole call, replay chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm_runtime.execution.eager import request_state
from llm_runtime.execution.evidence import PrefillReplayEvidence, log_evidence
from llm_runtime.execution.plans import prefill_trace_plan
from llm_runtime.execution.target import TraceTarget
from llm_runtime.prefill.plan import PrefillRequest
from llm_runtime.program_compiler import CompiledProgram, ProgramKey
from llm_runtime.trace_compiler import TraceRecord

Coverage = tuple[tuple[ProgramKey, TraceRecord], ...]


class TracedPrefill(TraceTarget):
    """The prefill half of `TracedExecutor`."""

    _evidence: tuple[PrefillReplayEvidence, ...] = ()

    @property
    def recent_prefill_replay_evidence(self) -> tuple[PrefillReplayEvidence, ...]:
        """One record per request of the latest successful traced prefill call."""
        return self._evidence

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
        """Compile the call's programs eagerly and register a capture plan for each that has no trace yet."""
        eager, traces = self.eager_executor, self.trace_compiler
        prepared = eager.prefill.prepare(
            tokens=tokens,
            page_table=page_table,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            sampling_params=sampling_params,
            **request_state(prompt_tokens, output_tokens, slot_remap),
        )
        compiled: list[CompiledProgram] = []
        for request in prepared:
            for program in eager.compile_prepared_prefill(request):
                compiled.append(program)
                if traces.trace_key_for_program(program.key) is None:
                    plan = prefill_trace_plan(eager.prefill.capture_plan(request), program.key)
                    traces.register_capture_plan(plan)
        return tuple(compiled)

    def prepare_prefill(
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
    ) -> tuple[Any, ...]:
        """Plan a prefill call on the host; no device work. Arguments as `prefill_forward`."""
        prepared: tuple[Any, ...] = self.eager_executor.prefill.prepare(
            tokens=tokens,
            page_table=page_table,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            sampling_params=sampling_params,
            **request_state(prompt_tokens, output_tokens, slot_remap),
        )
        return prepared

    def preflight_prefill(self, prepared: Sequence[Any]) -> tuple[tuple[Any, Coverage], ...]:
        """Pair every request with its `(program key, trace record)` entries, or raise `TraceCoverageError`.

        A request needs a trace signature of its own: sharing a traced program's geometry does not make it traceable.
        """
        preflighted = []
        for request in prepared:
            preflighted.append((request, self._prefill_coverage(request)))
        return tuple(preflighted)

    def execute_prepared_prefill(
        self,
        preflighted: Sequence[tuple[Any, Coverage]],
        *,
        batch_size: int,
        sampling_params: Any = None,
        lane: int = 0,
    ) -> Any:
        """Replay preflighted requests and assemble `batch_size` rows; evidence is published when that succeeds.

        Requests run one by one as their results are consumed, because replays of one trace share its output.
        """
        self._evidence = ()
        evidence: list[PrefillReplayEvidence] = []
        output = self.eager_executor.prefill.assemble(
            self._replays(preflighted, lane, evidence), batch_size=batch_size, sampling_params=sampling_params
        )
        self._evidence = tuple(evidence)
        return output

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
        """`EagerExecutor.prefill_forward` by replay; every request is checked before the first one executes."""
        prepared = self.prepare_prefill(
            tokens=tokens,
            page_table=page_table,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            sampling_params=sampling_params,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            slot_remap=slot_remap,
        )
        return self.execute_prepared_prefill(
            self.preflight_prefill(prepared), batch_size=int(tokens.shape[0]), sampling_params=sampling_params
        )

    def _prefill_coverage(self, request: Any) -> Coverage:
        traces, trace_signature = self.trace_compiler, request.trace_signature
        programs = traces.program_compiler
        coverage = []
        for signature in request.program_signatures:
            program_id = programs.find(signature)
            record = traces.captured_record(program_id)
            if record is None or trace_signature is None:
                raise self._miss("prefill", self.eager_executor.prefill, signature, trace_signature)
            coverage.append((programs.program(program_id).key, record))
        return tuple(coverage)

    def _replays(
        self, preflighted: Sequence[tuple[Any, Coverage]], lane: int, evidence: list[PrefillReplayEvidence]
    ) -> Iterator[tuple[Any, Any]]:
        for request, coverage in preflighted:
            result, steps = self._replay_request(request, coverage)
            record = self._evidence_of(request, coverage, lane, steps)
            if record is not None:
                evidence.append(record)
                log_evidence(record)
            yield request, result

    def _replay_request(self, prepared: Any, coverage: Coverage) -> tuple[Any, int]:
        prefill, traces = self.eager_executor.prefill, self.trace_compiler
        self.eager_executor.decode.ensure_trace_safe()
        if len(coverage) != 1:
            raise RuntimeError(f"a traced prefill request needs exactly one program geometry, it has {len(coverage)}")
        program_key, record = coverage[0]
        program_id = traces.program_compiler.id_of(program_key)
        workspace = traces.workspace_of(program_id)
        if workspace is None and record.artifact is not None:
            # A program that needs nothing of its own post-processes over the trace's inputs.
            workspace = record.artifact.persistent_inputs.values
        steps = 0
        hidden: Any = None
        for chunk in prepared.request.chunks:
            refresh = _PrefillRefresh(prefill, prepared, workspace, chunk)
            hidden = traces.replay_program(program_id, refresh, reset_batch=True)
            steps += 1
        if not steps:
            raise RuntimeError("a traced prefill request has no chunk to replay")
        return prefill.finish_trace(prepared, hidden, workspace), steps

    def _evidence_of(self, prepared: Any, coverage: Coverage, lane: int, steps: int) -> PrefillReplayEvidence | None:
        request = prepared.request
        if not isinstance(request, PrefillRequest):
            return None
        program_key = coverage[0][0]
        trace_key = self.trace_compiler.trace_key_for_program(program_key)
        return PrefillReplayEvidence(
            operation="prefill",
            variant=prepared.program_signatures[0].operation_variant,
            sampling_path=prepared.sampling_path,
            execution="trace_replay",
            active_batch_size=len(request.source_rows),
            padded_batch_size=request.padded_batch_size,
            padded_sequence_length=request.padded_sequence_length,
            lane=lane,
            rank=lane,
            program_key=program_key.digest,
            trace_key="unassociated" if trace_key is None else trace_key.digest,
            replay_steps=steps,
        )


class _PrefillRefresh:
    """The refresh callback of one chunk; a prefill replay always refreshes in full."""

    __slots__ = ("_chunk", "_prefill", "_prepared", "_workspace")

    def __init__(self, prefill: Any, prepared: Any, workspace: Any, chunk: Any) -> None:
        self._prefill = prefill
        self._prepared = prepared
        self._workspace = workspace
        self._chunk = chunk

    def __call__(self, artifact: Any, _decision: Any) -> None:
        values = artifact.persistent_inputs.values
        self._prefill.refresh_trace(self._prepared, values, self._workspace, self._chunk)
