# SPDX-License-Identifier: Apache-2.0
"""Prefill traces: capture plans, per-program workspaces, input refresh, and who owns what after a replay.

Follows chapter 10, section 9. A trace records the model body up to the hidden states; extraction and
sampling run eagerly after each replay, into a workspace that every program of the trace has for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from llm_runtime._core import PrefillChunk
from llm_runtime.prefill.device_copies import ReleaseTransient
from llm_runtime.prefill.inputs import PrefillInputStager
from llm_runtime.prefill.last_tokens import refresh_last_tokens, stage_last_tokens
from llm_runtime.prefill.ownership import (
    InvocationResult,
    PrefillReplayOwnership,
    new_logprob_output,
    without_borrowed,
)
from llm_runtime.prefill.postprocess import PrefillPostprocessor
from llm_runtime.prefill.result_rows import gathers_last_token
from llm_runtime.prefill.signatures import (
    PreparedPrefill,
    capture_schema_fingerprint,
    workspace_fingerprint,
)
from llm_runtime.prefill.trace_values import (
    PrefillCapturePlan,
    PrefillHiddenPersistentInputs,
    PrefillReplayState,
)
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_cleanup_failures

__all__ = [
    "PrefillCapturePlan",
    "PrefillHiddenPersistentInputs",
    "PrefillReplayOwnership",
    "PrefillReplayState",
    "PrefillTraceHooks",
    "PrefillTraceLifecycle",
]


@dataclass(frozen=True, slots=True, eq=False)
class PrefillTraceHooks:
    """Borrowed collaborators of the trace lifecycle."""

    input_stager: PrefillInputStager
    postprocessor: PrefillPostprocessor
    run_hidden_body: Callable[..., Any]
    run_chunk_hidden_body: Callable[..., Any]
    release_transient: ReleaseTransient
    compile_only_sampling: Callable[[PreparedPrefill], AbstractContextManager[None]]
    static_q128_topk_supported: bool
    trace_capture_prime_sequence_lengths: tuple[int, ...] = ()


class PrefillTraceLifecycle:
    """Builds capture plans, refreshes replays and finishes them; owns nothing itself."""

    def __init__(self, *, hooks: PrefillTraceHooks) -> None:
        self._hooks = hooks

    def capture_plan(self, prepared: PreparedPrefill) -> PrefillCapturePlan:
        """The plan of ``prepared``'s trace; ``ValueError`` when no trace family is configured for it."""
        signature = prepared.trace_signature
        if signature is None:
            raise ValueError("this prefill request has no configured trace family")
        hooks, request = self._hooks, prepared.request

        def capture(persistent: PrefillHiddenPersistentInputs) -> Any:
            return self._run_body(prepared, persistent)

        primed = (
            request.kind == "batched" and signature.padded_sequence_length in hooks.trace_capture_prime_sequence_lengths
        )
        return PrefillCapturePlan(
            signature=signature,
            prepare_inputs=lambda: self._prepare_inputs(prepared),
            capture=capture,
            prepare_workspace=lambda: self._prepare_workspace(prepared),
            schema_fingerprint=capture_schema_fingerprint(prepared),
            workspace_fingerprint=workspace_fingerprint(
                prepared, sampling_output_rows=hooks.postprocessor.sampling_output_rows(prepared)
            ),
            prime=capture if primed else None,
            release_prime_output=hooks.release_transient if primed else None,
            prime_workspace=(
                (lambda persistent, state: self._prime_workspace(prepared, persistent, state))
                if _finishes_unlike_eager(prepared)
                else None
            ),
        )

    def refresh(
        self,
        prepared: PreparedPrefill,
        persistent: PrefillHiddenPersistentInputs,
        state: PrefillReplayState,
        chunk: PrefillChunk | None = None,
    ) -> None:
        """Copy what the next replay of ``chunk`` (the first by default) and its finish read.

        Regular: the complete padded tokens and page table. Chunked: all five inputs and the rotary rows.
        The last-token tensors are copied only when something reads them and the position changed, K/P/T
        only when their values changed. State is recorded after the copy, so that a failed copy is repeated.
        """
        request, stager = prepared.request, self._hooks.input_stager
        chunk = request.chunks[0] if chunk is None else chunk
        if request.uses_chunked_prefill:
            stager.refresh_chunk_device_inputs(request, chunk, persistent.device_inputs)
        else:
            stager.refresh_regular_device_inputs(request, persistent.device_inputs)
        post = self._hooks.postprocessor
        if self._reads_positions(prepared):
            wanted, known = post.last_tokens(request), state.position_signature
            state.position_signature = None
            refresh_last_tokens(stager, state.position_inputs, wanted, chunk.chunk_size, known=known)
            state.position_signature = wanted
        values = post.sampling_inputs.values(prepared, post.sampling_output_rows(prepared))
        known_values, state.kpt_signature = state.kpt_signature, None
        post.sampling_inputs.refresh(state.kpt, known_values, values)
        state.kpt_signature = values

    def finish(
        self,
        prepared: PreparedPrefill,
        hidden: Any,
        state: PrefillReplayState,
        *,
        count_tokens: bool = True,
    ) -> InvocationResult:
        """Extract and sample from replayed hidden states; ``hidden`` and the workspace stay with their
        owners.

        A failure releases what was made here and propagates as the same exception object.
        """
        post = self._hooks.postprocessor
        owned: list[Any] = []
        try:
            value = post.finish_regular_prefill(
                prepared,
                hidden,
                state.kpt,
                state.position_inputs,
                sampled_output=state.sampled_output,
                owned=owned,
                count_tokens=count_tokens,
            )
            log_probs = new_logprob_output(value, state.sampled_output)
        except BaseException as error:
            kept = without_borrowed(owned, (hidden, state.sampled_output))
            attach_cleanup_failures(error, self._hooks.release_transient(kept))
            raise
        # The token output may be a view of the workspace's buffer: it is never ours to release.
        tokens = None if state.sampled_output is None else value[0]
        kept = without_borrowed(owned, (hidden, state.sampled_output, tokens))
        ownership = PrefillReplayOwnership(
            trace_owned_hidden_output=hidden,
            nested_persistent_output=state.sampled_output,
            new_logprob_output=log_probs,
            replay_local_intermediates=without_borrowed(kept, (log_probs,)),
        )
        return InvocationResult(value, kept, ownership)

    def _reads_positions(self, prepared: PreparedPrefill) -> bool:
        return gathers_last_token(
            prepared.request,
            prepared.sampling_path,
            static_q128_supported=self._hooks.static_q128_topk_supported,
            batched_extract=not self._hooks.postprocessor.extracts_rows(prepared.request),
        )

    def _run_body(self, prepared: PreparedPrefill, persistent: PrefillHiddenPersistentInputs) -> Any:
        request, inputs = prepared.request, persistent.device_inputs
        if request.uses_chunked_prefill:
            return self._hooks.run_chunk_hidden_body(prepared, request.chunks[0], inputs)
        # Every physical row is recorded, so that a replay may bring any number of active rows: rows whose page
        # table is -1 write nothing.
        return self._hooks.run_hidden_body(request, inputs, fill_rows=request.padded_batch_size)

    def _prepare_inputs(self, prepared: PreparedPrefill) -> PrefillHiddenPersistentInputs:
        request, stager = prepared.request, self._hooks.input_stager
        first = stager.trace_inputs(request)
        host = stager.prepare_host_inputs(
            first.tokens,
            request.page_table,
            start_pos=first.start_pos,
            chunk_page_table=first.chunk_page_table,
            chunk_start_idx=first.chunk_start_idx,
            last_token_idx=max(request.last_token_indices),
        )
        device_inputs = stager.stage_device_inputs(host)
        if request.uses_chunked_prefill:
            try:
                # The refresh path runs once now, so that its programs exist before any capture.
                stager.copy_rotary_inputs(device_inputs)
            except BaseException as error:
                attach_cleanup_failures(error, self._hooks.release_transient(device_inputs))
                raise
        return PrefillHiddenPersistentInputs(device_inputs)

    def _prepare_workspace(self, prepared: PreparedPrefill) -> PrefillReplayState:
        hooks, sampling = self._hooks, prepared.prepared_sampling
        post = hooks.postprocessor
        first = hooks.input_stager.trace_inputs(prepared.request)
        rows = post.sampling_output_rows(prepared)
        wanted = post.last_tokens(prepared.request)
        positions = stage_last_tokens(
            hooks.input_stager, wanted, first.sequence_length, release=hooks.release_transient
        )
        values = post.sampling_inputs.values(prepared, rows)
        kpt: Any = None
        try:
            kpt = post.sampling_inputs.make_device_values(values)
            sampled_output = None if sampling is None else post.make_sampling_output(rows)
        except BaseException as error:
            attach_cleanup_failures(error, hooks.release_transient((positions, kpt)))
            raise
        return PrefillReplayState(
            position_inputs=positions,
            kpt=kpt,
            sampled_output=sampled_output,
            position_signature=wanted,
            kpt_signature=values,
        )

    def _prime_workspace(
        self,
        prepared: PreparedPrefill,
        persistent: PrefillHiddenPersistentInputs,
        state: PrefillReplayState,
    ) -> None:
        release = self._hooks.release_transient
        hidden = self._run_body(prepared, persistent)
        try:
            with self._hooks.compile_only_sampling(prepared):
                result = self.finish(prepared, hidden, state, count_tokens=False)
        except BaseException as error:
            attach_cleanup_failures(error, release(hidden))
            raise
        failures = release((hidden, result.owned))
        if failures:
            raise_cleanup_failures(failures)


def _finishes_unlike_eager(prepared: PreparedPrefill) -> bool:
    """Whether a replay's finish runs programs that the compile run of the same request did not.

    An eager chunk ends in logits inside the model body, and eager argmax writes no preallocated buffer.
    """
    return prepared.request.uses_chunked_prefill or prepared.sampling_path == "argmax"
