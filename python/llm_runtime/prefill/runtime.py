# SPDX-License-Identifier: Apache-2.0
"""Facade of the prefill package: composes the parts and owns transients whose release failed.

Follows chapter 20, section 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llm_runtime._core import PrefillChunk
from llm_runtime._validation import require_instance
from llm_runtime.config import PageTableLayout
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.inputs import PrefillInputStager
from llm_runtime.prefill.model_body import PrefillModelBody
from llm_runtime.prefill.ownership import InvocationResult
from llm_runtime.prefill.postprocess import PrefillPostprocessor
from llm_runtime.prefill.preparation import PrefillPreparer
from llm_runtime.prefill.result_collector import PrefillResultAssembler
from llm_runtime.prefill.sampling_inputs import PrefillSamplingInputs
from llm_runtime.prefill.sequence_runner import PrefillSequenceRunner
from llm_runtime.prefill.signatures import PreparedPrefill
from llm_runtime.prefill.trace import PrefillTraceHooks, PrefillTraceLifecycle
from llm_runtime.prefill.trace_query import can_trace_rows
from llm_runtime.prefill.trace_values import (
    PrefillCapturePlan,
    PrefillHiddenPersistentInputs,
    PrefillReplayState,
)
from llm_runtime.tensor_resources import (
    TensorResourceOrphan,
    raise_cleanup_failures,
    release_or_retain,
    release_orphans,
)


class PrefillRuntime:
    """Prefill of one lane: prepare on the host, then invoke or replay, then assemble.

    Borrows everything its config names. Owns the transients of running invocations and, until
    :meth:`cleanup`, those whose release failed; while any of the latter exist, ``prepare``, ``invoke`` and
    ``capture_plan`` are refused.
    """

    def __init__(self, config: PrefillRuntimeConfig) -> None:
        require_instance(config, PrefillRuntimeConfig, name="config")
        self._config = config
        self._orphans: list[TensorResourceOrphan] = []
        self._recent_waves: tuple[int, ...] = ()
        self._stager = PrefillInputStager(
            model=config.model, mesh_device=config.mesh_device, release_transient=self._release_transient
        )
        self._sampling_inputs = PrefillSamplingInputs(config, release_transient=self._release_transient)
        self._postprocessor = PrefillPostprocessor(config, sampling_inputs=self._sampling_inputs)
        self._preparer = PrefillPreparer(config, postprocessor=self._postprocessor)
        self._assembler = PrefillResultAssembler(
            config, postprocessor=self._postprocessor, release_transient=self._release_transient
        )
        body = PrefillModelBody(config.model)
        self._sequence_runner = PrefillSequenceRunner(
            input_stager=self._stager,
            postprocessor=self._postprocessor,
            run_hidden_body=body.hidden,
            run_chunk_body=body.chunk_logits,
            release_transient=self._release_transient,
        )
        self._trace = PrefillTraceLifecycle(
            hooks=PrefillTraceHooks(
                input_stager=self._stager,
                postprocessor=self._postprocessor,
                run_hidden_body=body.hidden,
                run_chunk_hidden_body=body.chunk_hidden,
                release_transient=self._release_transient,
                compile_only_sampling=self._compile_only_sampling,
                static_q128_topk_supported=config.static_q128_topk_supported,
                trace_capture_prime_sequence_lengths=config.trace_capture_prime_sequence_lengths,
            )
        )

    @property
    def config(self) -> PrefillRuntimeConfig:
        """The current frozen config."""
        return self._config

    @property
    def transient_orphan_count(self) -> int:
        """How many released values still hold tensors because a deallocation failed."""
        return len(self._orphans)

    @property
    def recent_padded_batch_sizes(self) -> tuple[int, ...]:
        """Physical rows of each request of the latest call that was assembled, in execution order."""
        return self._recent_waves

    def configure_page_table_layout(self, layout: PageTableLayout) -> None:
        """Install another geometry inside the construction-time ceiling (``ValueError`` beyond it)."""
        self._config = self._config.with_page_table_layout(layout)
        self._preparer.configure(self._config)
        self._postprocessor.configure(self._config)
        self._assembler.configure(self._config)

    def can_trace(self, *, tokens: Any, prompt_lens: Any = None, start_pos: Any = None) -> bool:
        """Whether the invocation lengths of this call may be traced. Only a query: it never permits eager
        execution.

        Never raises; malformed input is False.
        """
        config = self._config
        return can_trace_rows(
            tokens=tokens,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            block_size=config.page_table_layout.block_size,
            start_alignment=config.prefill_start_alignment,
            max_prefill_chunk_size=config.max_prefill_chunk_size,
            can_enable_trace=config.can_enable_trace,
        )

    def prepare(
        self,
        *,
        tokens: Any,
        page_table: Any,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Sequence[int] | None = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
    ) -> tuple[PreparedPrefill, ...]:
        """Check and plan a whole call on the host; no device work.

        ``tokens`` ``[N, T]`` holds whole prompts from position 0, ``page_table`` ``[N, W]`` block ids,
        ``prompt_lens`` and ``start_pos`` ``[N]`` tokens in total and in the cache, ``empty_slots`` one
        lane-local slot per row. Raises ``ValueError`` or ``TypeError`` naming row, value and limit,
        ``RuntimeError`` while failed releases wait for :meth:`cleanup`.
        """
        if self._orphans:
            self._require_usable()
        return self._preparer.prepare(
            tokens,
            page_table,
            prompt_lens,
            start_pos,
            empty_slots,
            sampling_params,
            prompt_tokens,
            output_tokens,
            slot_remap,
        )

    def invoke(self, prepared: PreparedPrefill, *, count_tokens: bool = True) -> InvocationResult:
        """Run one prepared request eagerly; the result owns its tensors until :meth:`assemble` releases them.

        ``count_tokens=False`` is a compile-only run that leaves no sampling state behind.
        """
        self._require_usable()
        if not count_tokens:
            with self._compile_only_sampling(prepared):
                return self._sequence_runner.run(prepared, count_tokens=False)
        self._admit(prepared)
        return self._sequence_runner.run(prepared)

    def capture_plan(self, prepared: PreparedPrefill) -> PrefillCapturePlan:
        """How to capture the request's trace; ``ValueError`` when it has no trace signature."""
        self._require_usable()
        return self._trace.capture_plan(prepared)

    def refresh_trace(
        self,
        prepared: PreparedPrefill,
        persistent: PrefillHiddenPersistentInputs,
        workspace: PrefillReplayState,
        chunk: PrefillChunk | None = None,
    ) -> None:
        """Copy what the next replay of ``chunk`` reads into the trace's inputs and the program's
        workspace."""
        self._trace.refresh(prepared, persistent, workspace, chunk)

    def finish_trace(self, prepared: PreparedPrefill, hidden: Any, workspace: PrefillReplayState) -> InvocationResult:
        """Extract and sample from the hidden states that the last replay left in the trace's output."""
        self._admit(prepared)
        return self._trace.finish(prepared, hidden, workspace)

    def assemble(
        self,
        prepared_results: Iterable[tuple[PreparedPrefill, InvocationResult]],
        *,
        batch_size: int,
        sampling_params: Any = None,
    ) -> Any:
        """Read results in turn, restore source-row order and release each before the next is pulled.

        See :meth:`~llm_runtime.prefill.result_collector.PrefillResultAssembler.assemble`.
        """
        waves: list[int] = []
        output = self._assembler.assemble(
            _noting_waves(prepared_results, waves), batch_size=batch_size, sampling_params=sampling_params
        )
        self._recent_waves = tuple(waves)
        return output

    def cleanup(self) -> None:
        """Retry failed releases; raises the first failure (others attached) and may be called again."""
        failures = release_orphans(self._orphans)
        if failures:
            raise_cleanup_failures(failures)

    def _admit(self, prepared: PreparedPrefill) -> None:
        controller = self._config.sampling_state_controller
        if controller is not None and prepared.prepared_sampling is not None:
            controller.admit_prefill(
                self._config.sampling_state,
                prepared.prepared_sampling,
                slots=prepared.request.slots,
                positions=prepared.request.last_token_indices,
            )

    @contextmanager
    def _compile_only_sampling(self, prepared: PreparedPrefill) -> Iterator[None]:
        """Give a controller a throw-away state for a run whose tokens nobody keeps."""
        controller, state = self._config.sampling_state_controller, self._config.sampling_state
        if controller is None:
            yield
            return
        if prepared.prepared_sampling is not None:
            controller.reset(state, prepared.prepared_sampling)
        try:
            yield
        finally:
            controller.reset(state)

    def _release_transient(self, values: Any) -> list[BaseException]:
        return release_or_retain(values, self._orphans)

    def _require_usable(self) -> None:
        if self._orphans:
            raise RuntimeError(f"{len(self._orphans)} prefill transient(s) could not be released; call cleanup() first")


def _noting_waves(
    prepared_results: Iterable[tuple[PreparedPrefill, InvocationResult]], waves: list[int]
) -> Iterator[tuple[PreparedPrefill, InvocationResult]]:
    for prepared, result in prepared_results:
        waves.append(prepared.request.padded_batch_size)
        yield prepared, result
