# SPDX-License-Identifier: Apache-2.0
"""The class that a vLLM server drives: arguments through the adapter, work through one executor or a lane group.

Follows chapter 40, section C.5 and, for what a server sends, section D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from llm_runtime._validation import require_instance
from llm_runtime.vllm_adapter import VLLMAdapter

__all__ = ["VLLMGenerator"]


class VLLMGenerator:
    """Facade over `target` (a `ModelExecutor` or a `LaneGroupExecutor`) and its adapter; owns no device resource.

    Unknown attributes are errors: servers find optional hooks with `hasattr`. `vllm_config` and `prefix` are accepted
    because vLLM inspects the constructor of every model class.
    """

    #: What a server may ask of this class; read without an instance.
    model_capabilities: ClassVar[dict[str, Any]] = {
        "supports_prefix_caching": True,
        "supports_async_decode": True,
        "supports_sample_on_device": True,
        "supports_device_penalties": False,
        "max_device_top_k": 32,
    }
    requires_prefill_trace_warmup: ClassVar[bool] = True
    #: Decode follows the reload contract of version 1; `reset_batch` is refused (decision D12).
    decode_input_update_contract: ClassVar[int] = 1

    def __init__(self, target: Any, adapter: VLLMAdapter, *, vllm_config: Any = None, prefix: str = "") -> None:
        del vllm_config, prefix
        require_instance(adapter, VLLMAdapter, name="adapter")
        self._target = target  # borrowed until `cleanup`, which ends it
        self.adapter = adapter
        self._summarised: set[str] = set()

    @property
    def target(self) -> Any:
        """The executor or lane group that serves."""
        return self._target

    @property
    def model(self) -> Any:
        """The tensor model, or one per lane."""
        return self._target.model

    @property
    def model_args(self) -> Any:
        """The runtime config of the model, or one per lane."""
        return self._target.model_args

    @property
    def mesh_device(self) -> Any:
        """The mesh that the server opened."""
        return self._target.mesh_device

    @property
    def cache_path(self) -> Any:
        """Where the model caches converted tensors, if it does."""
        return self._target.cache_path

    @property
    def already_warmed_up_prefill(self) -> bool:
        """Whether every prefill case is warm; servers assign False between their warmup phases, which loses nothing."""
        return bool(self._target.already_warmed_up_prefill)

    @already_warmed_up_prefill.setter
    def already_warmed_up_prefill(self, value: bool) -> None:
        self._target.already_warmed_up_prefill = value

    def allocate_kv_cache(self, kv_cache_shape: Any = None, dtype: Any = None, num_layers: int | None = None) -> Any:
        """Allocate the KV cache and return its handle, which every later call brings back.

        `kv_cache_shape` is `(num_blocks, kv_heads_per_device, block_size, head_dim)` of one lane; give it with dtype
        and layer count, or none of the three (`TypeError` otherwise). Errors as in
        `VLLMAdapter.resolve_legacy_kv_cache_config` and `ModelExecutor.configure_paged_kv_cache`.
        """
        if server_shape_given(kv_cache_shape, dtype, num_layers):
            resolved = self.adapter.resolve_legacy_kv_cache_config(kv_cache_shape, dtype, num_layers)
            self.target.configure_paged_kv_cache(resolved)
        return self.target.allocate_kv_cache()

    def compile_prefill(
        self,
        tokens: Any,
        page_table: Any,
        *,
        enable_trace: bool,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Sequence[int] | None = None,
        kv_cache: Any = None,
        sampling_params: Any = None,
    ) -> Any:
        """Compile what this prefill call needs, on the target that `enable_trace` chooses."""
        fields, traced = self.adapter.normalize_prefill(
            tokens,
            page_table,
            enable_trace=enable_trace,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            kv_cache=kv_cache,
            sampling_params=sampling_params,
        )
        return self.target.compile_prefill(**fields, execution=self._execution("prefill", traced))

    def compile_decode(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        *,
        enable_trace: bool,
        kv_cache: Any = None,
        sampling_params: Any = None,
    ) -> Any:
        """Compile what this decode step needs, on the target that `enable_trace` chooses."""
        fields, traced = self.adapter.normalize_decode(
            tokens,
            start_pos,
            page_table,
            enable_trace=enable_trace,
            kv_cache=kv_cache,
            sampling_params=sampling_params,
            reload_inputs=True,
            reload_sampling_params=sampling_params is not None,
            reset_sampling_state=sampling_params is not None,
        )
        return self.target.compile_decode(**fields, execution=self._execution("decode", traced))

    def prefill_forward(
        self,
        tokens: Any,
        page_table: Any,
        *,
        enable_trace: bool,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Sequence[int] | None = None,
        kv_cache: Any = None,
        sampling_params: Any = None,
        **compatibility_kwargs: Any,
    ) -> Any:
        """Prefill whole prompts; rows come back in order.

        Rows of `tokens` `[N, T]` start at position 0; `prompt_lens` `[N]` is where this call's work ends and
        `start_pos` `[N]` what is cached. Returns logits float32 `[N, 1, vocab]` or, with `sampling_params`, the pair
        (tokens int64 `[N]`, log-probs or None). A traced call without coverage is an error, never an eager run.
        """
        fields, traced = self.adapter.normalize_prefill(
            tokens,
            page_table,
            enable_trace=enable_trace,
            prompt_lens=prompt_lens,
            start_pos=start_pos,
            empty_slots=empty_slots,
            kv_cache=kv_cache,
            sampling_params=sampling_params,
            compatibility_kwargs=compatibility_kwargs,
        )
        return self.target.prefill_forward(**fields, execution=self._execution("prefill", traced))

    def decode_forward(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        *,
        enable_trace: bool,
        kv_cache: Any = None,
        sampling_params: Any = None,
        reload_inputs: bool = True,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
        reset_sampling_state: bool = False,
        read_from_device: bool = True,
        **compatibility_kwargs: Any,
    ) -> Any:
        """One decode step of all slots under the reload contract.

        `tokens` `[B]` or `[B, 1]`, `start_pos` `[B]` (negative = idle), `page_table` `[B, W]`. Without
        `reload_inputs` the tokens and positions on the device are used and those given are ignored. Returns the host
        pair, or the raw device value with `read_from_device=False`.
        """
        fields, traced = self.adapter.normalize_decode(
            tokens,
            start_pos,
            page_table,
            enable_trace=enable_trace,
            kv_cache=kv_cache,
            sampling_params=sampling_params,
            reload_inputs=reload_inputs,
            reload_page_table=reload_page_table,
            reload_sampling_params=reload_sampling_params,
            reset_sampling_state=reset_sampling_state,
            compatibility_kwargs=compatibility_kwargs,
        )
        return self.target.decode_forward(
            **fields, read_from_device=read_from_device, execution=self._execution("decode", traced)
        )

    def read_decode_output(self, tt_out: Any, *, async_read: bool = False) -> Any:
        """Copy a raw step to the host: the host value, or (host value, [events]) without waiting."""
        return self.target.read_decode_output(tt_out, async_read=async_read)

    def process_decode_output_host(self, tt_out: Any, *, is_tokens: bool = False) -> Any:
        """Complete a read, or read a raw step that was never submitted: (logits or tokens, log-probs or None)."""
        return self.target.process_decode_output_host(tt_out, is_tokens=is_tokens)

    def warmup_model_prefill(self, *, kv_cache: Any, can_sample_on_device: bool, enable_trace: bool) -> None:
        """Warm every prefill case that serving can ask for."""
        self.target.warmup_model_prefill(
            kv_cache=kv_cache, can_sample_on_device=can_sample_on_device, enable_trace=enable_trace
        )
        self._summarise("serving_ready", when_active=True)

    def warmup_model_decode(
        self,
        *,
        kv_cache: Any,
        max_batch_size: int,
        num_blocks: int,
        can_sample_on_device: bool,
        enable_trace: bool,
    ) -> None:
        """Warm every decode case; `num_blocks` is the width of the server's page tables."""
        self.target.warmup_model_decode(
            kv_cache=kv_cache,
            max_batch_size=max_batch_size,
            num_blocks=num_blocks,
            can_sample_on_device=can_sample_on_device,
            enable_trace=enable_trace,
        )
        self._summarise("serving_ready", when_active=True)

    def cleanup(self) -> None:
        """Release everything behind this facade; idempotent and retryable. A server may leave it out."""
        self._summarise("shutdown")
        self.target.cleanup()

    def _execution(self, operation: str, traced: bool) -> Any:
        if not traced:
            return self.target.eager_execution
        execution = getattr(self.target, f"traced_{operation}_execution")
        if execution is None:
            raise RuntimeError(f"unavailable traced {operation} execution: the executor was built without it")
        return execution

    def _summarise(self, phase: str, *, when_active: bool = False) -> None:
        """Log each lane's counters once per phase; lanes without traces have none."""
        lanes = [
            lane
            for lane in getattr(self.target, "lanes", [self.target])
            if getattr(lane, "traced_executor", None) is not None
        ]
        if phase in self._summarised or not lanes or (when_active and not lanes[0].warmup.trace_activated):
            return
        self._summarised.add(phase)
        for lane in lanes:
            lane.traced_executor.log_runtime_summary(phase=phase)


def server_shape_given(kv_cache_shape: Any, dtype: Any, num_layers: Any) -> bool:
    """Whether a server described its cache: all three values or none, else `TypeError`."""
    given = [value is not None for value in (kv_cache_shape, dtype, num_layers)]
    if any(given) and not all(given):
        raise TypeError("kv_cache_shape, dtype and num_layers must be supplied together")
    return all(given)
