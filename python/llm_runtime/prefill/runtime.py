# SPDX-License-Identifier: Apache-2.0
"""Facade of the prefill package: composes the parts and owns transients whose release failed.

Follows chapter 20, section 9.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llm_runtime._core import PrefillChunk, PrefillRequest
from llm_runtime._validation import require_instance
from llm_runtime.config import PageTableLayout
from llm_runtime.host_arrays import result_like
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.inputs import PrefillInputStager
from llm_runtime.prefill.model_body import PrefillModelBody
from llm_runtime.prefill.ownership import InvocationResult
from llm_runtime.prefill.plan import _plan_prefill_requests, integer_array
from llm_runtime.prefill.postprocess import PrefillPostprocessor
from llm_runtime.prefill.result_collector import PrefillResultAssembler
from llm_runtime.prefill.sampling_inputs import PrefillSamplingInputs
from llm_runtime.prefill.sampling_plan import SamplingPlanner
from llm_runtime.prefill.sequence_runner import PrefillSequenceRunner
from llm_runtime.prefill.signatures import (
    PreparedPrefill,
    build_program_signatures,
    build_trace_signature,
)
from llm_runtime.prefill.trace import (
    PrefillCapturePlan,
    PrefillHiddenPersistentInputs,
    PrefillReplayState,
    PrefillTraceHooks,
    PrefillTraceLifecycle,
)
from llm_runtime.prefill.trace_query import can_trace_rows
from llm_runtime.tensor_resources import (
    TensorResourceOrphan,
    raise_cleanup_failures,
    release_or_retain,
    release_orphans,
)

_DISABLE_VARIABLE = "DISABLE_BATCHED_PREFILL"
_SWITCH_VALUES = {
    "": False,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
}


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
        self._require_usable()
        config = self._config
        self._postprocessor.validate_sampling_request(sampling_params)
        sampled = sampling_params is not None
        token_array = integer_array(tokens, "tokens")
        lengths = None if prompt_lens is None else integer_array(prompt_lens, "prompt_lens")
        layout = config.page_table_layout
        requests = _plan_prefill_requests(
            tokens=token_array,
            page_table=page_table,
            prompt_lens=lengths,
            empty_slots=empty_slots,
            start_pos=start_pos,
            block_size=layout.block_size,
            max_batch_size=config.max_batch_size,
            max_prefill_chunk_size=config.max_prefill_chunk_size,
            supports_batched_prefill=config.supports_batched_prefill,
            disable_batched_prefill=batching_disabled_by_environment()
            or config.disable_batched_prefill
            or (sampled and not config.batched_prefill_batched_extract),
            max_prefill_batch_size=config.max_prefill_batch_size,
            max_actual_page_table_width=layout.raw_capacity_width,
            canonical_page_table_width=layout.prefill_width,
            start_alignment=config.prefill_start_alignment,
        )
        convert = result_like(tokens)
        if not sampled:
            return tuple([self._prepare_logits(request, convert) for request in requests])
        planner = SamplingPlanner(
            config,
            self._sampling_inputs,
            params=sampling_params,
            tokens=token_array,
            prompt_lens=lengths,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            slot_remap=slot_remap,
        )
        return tuple([self._prepare_sampled(request, planner, convert) for request in requests])

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

    def _prepare_logits(self, request: PrefillRequest, convert: Any) -> PreparedPrefill:
        return PreparedPrefill(
            request=request,
            sampling_params=None,
            sampling_path="logits",
            program_signatures=build_program_signatures(
                request, "logits", static_q128_topk_supported=self._config.static_q128_topk_supported
            ),
            trace_signature=build_trace_signature(request, trace_enabled=self._trace_enabled(request)),
            result_like=convert,
        )

    def _prepare_sampled(self, request: PrefillRequest, planner: SamplingPlanner, convert: Any) -> PreparedPrefill:
        sliced, sampling = planner.prepare(request)
        path = self._postprocessor.classify_sampling_path(request, sampling)
        flags = {
            "penalties_enabled": sampling.penalties_enabled,
            "logprobs_enabled": sampling.log_probs_enabled,
        }
        return PreparedPrefill(
            request=request,
            sampling_params=sliced,
            sampling_path=path,
            program_signatures=build_program_signatures(
                request, path, static_q128_topk_supported=self._config.static_q128_topk_supported, **flags
            ),
            trace_signature=build_trace_signature(
                request, trace_enabled=self._trace_enabled(request), sampling_path=path, **flags
            ),
            prepared_sampling=sampling,
            result_like=convert,
        )

    def _trace_enabled(self, request: PrefillRequest) -> bool:
        # Reading `chunks` builds Python values, so only chunked requests pay for it.
        chunked = request.uses_chunked_prefill
        length = request.chunks[0].chunk_size if chunked else request.padded_sequence_length
        return bool(self._config.can_enable_trace(length, 0))

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


def batching_disabled_by_environment() -> bool:
    """Read the diagnostic off switch: ``1 true yes on`` disable, ``0 false no off`` and empty do not.

    Read at every prepare. Any other value is a ``ValueError`` naming the variable.
    """
    text = os.environ.get(_DISABLE_VARIABLE)
    if text is None:
        return False
    try:
        return _SWITCH_VALUES[text.strip().lower()]
    except KeyError:
        raise ValueError(
            f"{_DISABLE_VARIABLE}={text!r} is not a switch; use 1, true, yes, on, 0, false, no or off"
        ) from None
