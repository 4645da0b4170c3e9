# SPDX-License-Identifier: Apache-2.0
"""Compile and forward calls of one executor, routed to an execution target. Follows chapter 40, section A.6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_models.executor_state import ExecutorState
from llm_runtime.program_compiler import CompiledProgram

Fields = dict[str, Any]


class ExecutorCalls(ExecutorState):
    """The part of `ModelExecutor` that runs requests.

    Arguments are host arrays (NumPy or torch). A call without `execution` runs traced where the trace policy selects
    that operation and never falls back to eager (decision D8). `kv_cache` is the bound handle, or `None` for it.
    Request state that the executor is not configured for is dropped.
    """

    def compile_prefill(
        self,
        *,
        tokens: Any,
        page_table: Any,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Sequence[int] | None = None,
        kv_cache: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        execution: Any = None,
    ) -> tuple[CompiledProgram, ...]:
        """Compile (and register for capture, on a traced target) what this prefill call needs."""
        self._admit(kv_cache, sampling_params)
        target = execution or self.traced_prefill_execution or self.eager_execution
        programs: tuple[CompiledProgram, ...] = target.compile_prefill(
            tokens=tokens,
            page_table=page_table,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            sampling_params=sampling_params,
            **self._request_state(prompt_tokens, output_tokens, slot_remap),
        )
        return programs

    def compile_decode(
        self,
        *,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        kv_cache: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        reset_batch: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
        reset_sampling_state: bool = False,
        execution: Any = None,
    ) -> CompiledProgram:
        """Compile (and register for capture, on a traced target) what this decode step needs."""
        self._admit(kv_cache, sampling_params)
        target = execution or self.traced_decode_execution or self.eager_execution
        program: CompiledProgram = target.compile_decode(
            tokens=tokens,
            start_pos=start_pos,
            page_table=page_table,
            sampling_params=sampling_params,
            reset_batch=reset_batch,
            reload_inputs=reload_inputs,
            reload_page_table=reload_page_table,
            reload_sampling_params=reload_sampling_params,
            reset_sampling_state=reset_sampling_state,
            **self._request_state(prompt_tokens, output_tokens, slot_remap, always_remap=True),
        )
        return program

    def prefill_forward(
        self,
        tokens: Any,
        page_table: Any,
        *,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Sequence[int] | None = None,
        kv_cache: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        execution: Any = None,
    ) -> Any:
        """Run a prefill of `tokens` [N, T] over `page_table` [N, W]; rows come back in source order.

        Rows of `tokens` are whole prompts from position 0, of which `prompt_lens` [N] tokens count and the first
        `start_pos` [N] are cached already; `empty_slots` names a slot for each. Returns logits float32 [N, 1, vocab],
        or with `sampling_params` the pair (tokens int64 [N], log-probs float32 [N] or None).
        """
        self._admit(kv_cache, sampling_params)
        target = execution or self.traced_prefill_execution or self.eager_execution
        return target.prefill_forward(
            tokens=tokens,
            page_table=page_table,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            sampling_params=sampling_params,
            **self._request_state(prompt_tokens, output_tokens, slot_remap),
        )

    def decode_forward(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        *,
        kv_cache: Any = None,
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
        execution: Any = None,
    ) -> Any:
        """Run one decode step of the whole lane: `tokens` [B], `start_pos` [B] (negative = inactive row).

        With `reload_inputs` left at `None` the refresh is inferred from `reset_batch`; a bool selects the reload
        contract of version 1. Returns (logits float32 [B, 1, vocab], None) or (tokens int64 [B], log-probs or None),
        or the raw device value with `read_from_device=False`.
        """
        self._admit(kv_cache, sampling_params)
        target = execution or self.traced_decode_execution or self.eager_execution
        return target.decode_forward(
            tokens=tokens,
            start_pos=start_pos,
            page_table=page_table,
            sampling_params=sampling_params,
            reset_batch=reset_batch,
            reload_inputs=reload_inputs,
            reload_page_table=reload_page_table,
            reload_sampling_params=reload_sampling_params,
            reset_sampling_state=reset_sampling_state,
            read_from_device=read_from_device,
            **self._request_state(prompt_tokens, output_tokens, slot_remap, always_remap=True),
        )

    def can_trace_prefill(
        self, *, tokens: Any, prompt_lens: Any = None, start_pos: Any = None, empty_slots: Any = None
    ) -> bool:
        """Whether the traced prefill target could serve this geometry; never raises, never reroutes a call."""
        del empty_slots  # slots are no part of the geometry
        return self.traced_prefill_execution is not None and bool(
            self.prefill_runtime.can_trace(tokens=tokens, prompt_lens=prompt_lens, start_pos=start_pos)
        )

    def read_decode_output(self, tt_out: Any, *, async_read: bool = False) -> Any:
        """Copy a raw decode output to the host: the host value, or (host value, [events]) when asynchronous."""
        self._require_active()
        return self.decode_runtime.read_decode_output(tt_out, async_read=async_read)

    def process_decode_output_host(self, tt_out: Any, *, is_tokens: bool = False) -> tuple[Any, Any]:
        """Complete a read and normalise it to (logits or tokens, log-probs or None)."""
        self._require_active()
        return self.decode_runtime.process_decode_output_host(tt_out, is_tokens=is_tokens)

    def _admit(self, kv_cache: Any, sampling_params: Any) -> None:
        """The checks of every compile and forward call: active, then its cache, then its sampling."""
        self._require_active()
        self._validate_bound_cache(kv_cache)
        if sampling_params is not None:
            if not self.config.device_sampling_enabled:
                raise ValueError(f"{self._owner_name}: sampling_params were given but device sampling is disabled")
            self._ensure_sampling_buffers()

    def _validate_bound_cache(self, kv_cache: Any) -> None:
        if self.kv_cache_manager.bound_context is None:
            raise RuntimeError(f"{self._owner_name} has no KV cache: call allocate_kv_cache() first")
        if kv_cache is not None:
            self.kv_cache_manager.validate_borrowed_handle(kv_cache)

    def _ensure_sampling_buffers(self) -> None:
        if self._sampling_buffers_loaded:
            return
        if self.program_compiler.trace_active:
            raise RuntimeError("device sampling buffers must be made before traces are active: warm up sampling")
        self.model.sampling.load_device_buffers()
        self._sampling_buffers_loaded = True

    def _request_state(
        self, prompt_tokens: Any, output_tokens: Any, slot_remap: Any, *, always_remap: bool = False
    ) -> Fields:
        """The request state that was given and that the executor takes; a decode step always takes its remap."""
        if prompt_tokens is None and output_tokens is None and slot_remap is None:
            return {}
        given = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "slot_remap": slot_remap}
        return {
            name: value
            for name, value in given.items()
            if value is not None and (name in self._request_state_fields or (always_remap and name == "slot_remap"))
        }
