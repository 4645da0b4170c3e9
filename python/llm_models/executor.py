# SPDX-License-Identifier: Apache-2.0
"""One model on one lane: composes the runtime's parts, routes calls to eager or traced targets, cleans up.

Follows chapter 40, section A.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llm_models.executor_config import ModelExecutorConfig, check_construction
from llm_models.lane import build_lane, resolve_layout
from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.tensor_resources import attach_cleanup_failures

__all__ = ["ModelExecutor", "ModelExecutorConfig"]


class ModelExecutor:
    """The cleanup root of one lane.

    Borrows the model, its mesh and the sampling state; owns every runtime part that it builds, in the order of
    chapter 40 A.2. A call without `execution` runs traced where the trace policy selects that operation and never
    falls back to eager (decision D8). After `cleanup()` the executor is terminal.
    """

    requires_prefill_trace_warmup = True

    def __init__(
        self,
        model: Any,
        runtime_config: Any,
        config: ModelExecutorConfig,
        *,
        owner_name: str = "ModelExecutor",
        prefill_sequence_lengths: tuple[int, ...] | None = None,
        disable_batched_prefill: bool | None = None,
        trace_capture_prime_sequence_lengths: tuple[int, ...] = (),
        sampling_state_controller: Any = None,
        sampling_state: Any = None,
        sampling_type: type | None = None,
        request_state_fields: tuple[str, ...] = (),
        prefill_warmup: Callable[..., None] | None = None,
    ) -> None:
        check_construction(
            model,
            runtime_config,
            config,
            owner_name=owner_name,
            disable_batched_prefill=disable_batched_prefill,
            sampling_state_controller=sampling_state_controller,
            sampling_state=sampling_state,
            sampling_type=sampling_type,
            request_state_fields=request_state_fields,
            prefill_warmup=prefill_warmup,
        )
        self.model = model  # borrowed
        self.runtime_config = self.model_args = runtime_config  # borrowed
        self.config = config
        self.mesh_device = model.config.mesh_device  # borrowed
        self.cache_path = getattr(runtime_config, "model_cache_path", None)
        self.sampling_state_controller = sampling_state_controller  # borrowed
        self.sampling_state = sampling_state  # borrowed
        self._owner_name = owner_name
        self._request_state_fields = request_state_fields
        self._prefill_warmup = prefill_warmup
        self._sealed = self._terminal = self._cleaned = self._sampling_buffers_loaded = False
        lane = build_lane(
            model,
            runtime_config,
            config,
            prefill_sequence_lengths=prefill_sequence_lengths,
            disable_batched_prefill=disable_batched_prefill,
            trace_capture_prime_sequence_lengths=trace_capture_prime_sequence_lengths,
            sampling_state_controller=sampling_state_controller,
            sampling_state=sampling_state,
            ensure_sampling_buffers=self._ensure_sampling_buffers,
            validate_bound_cache=self._validate_bound_cache,
        )
        self.kv_cache_manager = lane.kv_cache_manager
        self.page_table_layout = lane.page_table_layout
        self.output_reader = lane.output_reader
        self.prefill_runtime = lane.prefill_runtime
        self.decode_runtime = lane.decode_runtime
        self.program_compiler = lane.program_compiler
        self.eager_executor = self.eager_execution = lane.eager_executor
        self.trace_compiler = lane.trace_compiler
        self.traced_executor = lane.traced_executor
        self.warmup = lane.warmup
        self.traced_prefill_execution = self.traced_executor if config.trace.prefill_enabled else None
        self.traced_decode_execution = self.traced_executor if config.trace.decode_enabled else None

    @property
    def model_config(self) -> Any:
        """The tensor model's config (borrowed)."""
        return self.model.config

    @property
    def cluster_shape(self) -> list[int]:
        """Rows and columns of the mesh."""
        return [int(size) for size in self.mesh_device.shape]

    @property
    def paged_kv_cache_config(self) -> PagedKVCacheConfig:
        """The KV cache manager's current config."""
        return self.kv_cache_manager.config

    @property
    def terminal(self) -> bool:
        """True once `cleanup()` was called."""
        return self._terminal

    @property
    def already_warmed_up_prefill(self) -> bool:
        """Whether warmup holds every prefill case. Assigning a bool is accepted and changes nothing."""
        return self.warmup.already_warmed_up_prefill

    @already_warmed_up_prefill.setter
    def already_warmed_up_prefill(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"already_warmed_up_prefill must be a bool, got {value!r}")

    def configure_paged_kv_cache(self, config: PagedKVCacheConfig) -> None:
        """Install the physical KV capacity once, before sealing (chapter 40 A.4 with decision D7).

        The capacity may shrink inside the construction ceiling. `RuntimeError` when sealed or already resolved,
        `TypeError` for another type, `ValueError` for another block size, dtype, memory config or a larger maximum.
        """
        self._require_active()
        current = self.paged_kv_cache_config
        if self._sealed:
            raise RuntimeError(f"{self._owner_name} is sealed: configure the KV cache before it is allocated")
        if not isinstance(config, PagedKVCacheConfig):
            raise TypeError(f"config must be a PagedKVCacheConfig, got {type(config).__name__}")
        if current.is_resolved():
            raise RuntimeError(f"{self._owner_name} already has {current.num_blocks} KV blocks")
        for field in ("block_size", "max_num_blocks", "dtype", "memory_config"):
            wanted, given = getattr(current, field), getattr(config, field)
            if wanted != given:
                raise ValueError(f"a late KV config cannot change {field} from {wanted!r} to {given!r}")
        layout = resolve_layout(self.model, self.runtime_config, config)
        self.kv_cache_manager.configure(config)
        self.config = replace(self.config, paged_kv_cache=config)
        for owner in (self.prefill_runtime, self.decode_runtime, self.warmup):
            owner.configure_page_table_layout(layout)
        self.page_table_layout = layout

    def allocate_kv_cache(
        self, kv_cache_shape: Any = None, dtype: Any = None, num_layers: int | None = None
    ) -> list[list[Any]]:
        """Seal the configuration, allocate and bind the KV cache; returns the borrowed handle `[layer][k, v]`.

        Give none or all of the server's shape `(num_blocks, kv_heads, block_size, head_dim)`, dtype and layer count
        (`TypeError` otherwise). `RuntimeError` while the capacity is unresolved, `ValueError` for a shape, dtype or
        count that does not fit the model (chapter 40 A.5).
        """
        self._require_active()
        given = [value is not None for value in (kv_cache_shape, dtype, num_layers)]
        if any(given) and not all(given):
            raise TypeError("kv_cache_shape, dtype and num_layers must be supplied together")
        if all(given):
            self._resolve_server_shape(kv_cache_shape, dtype, num_layers)
        if not self.paged_kv_cache_config.is_resolved():
            raise RuntimeError(f"{self._owner_name} does not know its number of KV blocks: configure it first")
        self.warmup.seal_configuration()
        self._sealed = True
        return self.kv_cache_manager.allocate()

    def compile_prefill(
        self, *, tokens: Any, page_table: Any, kv_cache: Any = None, execution: Any = None, **request: Any
    ) -> Any:
        """Compile (and register for capture, on a traced target) what this prefill call needs."""
        fields = self._admit(kv_cache, tokens=tokens, page_table=page_table, **request)
        return (execution or self._prefill_target()).compile_prefill(**fields)

    def compile_decode(
        self,
        *,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        kv_cache: Any = None,
        execution: Any = None,
        **request: Any,
    ) -> Any:
        """Compile (and register for capture, on a traced target) what this decode call needs."""
        fields = self._admit(kv_cache, tokens=tokens, start_pos=start_pos, page_table=page_table, **request)
        return (execution or self._decode_target()).compile_decode(**fields)

    def prefill_forward(
        self, tokens: Any, page_table: Any, *, kv_cache: Any = None, execution: Any = None, **request: Any
    ) -> Any:
        """Run a prefill of `tokens` [N, T] over `page_table` [N, W]; rows come back in source order.

        Returns logits float32 [N, 1, vocab], or with `sampling_params` the pair (tokens int64 [N], log-probs float32
        [N] or None). `request` takes `prompt_lens`, `start_pos`, `empty_slots`, `sampling_params` and the request
        state fields of the executors.
        """
        fields = self._admit(kv_cache, tokens=tokens, page_table=page_table, **request)
        return (execution or self._prefill_target()).prefill_forward(**fields)

    def decode_forward(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        *,
        kv_cache: Any = None,
        execution: Any = None,
        **request: Any,
    ) -> Any:
        """Run one decode step of the whole lane: `tokens` [B], `start_pos` [B] (negative = inactive row).

        Returns (logits float32 [B, 1, vocab], None) or (tokens int64 [B], log-probs or None), or the raw device value
        with `read_from_device=False`.
        """
        fields = self._admit(kv_cache, tokens=tokens, start_pos=start_pos, page_table=page_table, **request)
        return (execution or self._decode_target()).decode_forward(**fields)

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

    def process_decode_output_host(self, tt_out: Any, *, is_tokens: bool = False) -> Any:
        """Complete a read and normalise it to (logits or tokens, log-probs or None)."""
        self._require_active()
        return self.decode_runtime.process_decode_output_host(tt_out, is_tokens=is_tokens)

    def warmup_model_prefill(self, *, kv_cache: Any, can_sample_on_device: bool, enable_trace: bool) -> None:
        """Warm every prefill case; capture starts when both operations are covered (chapter 40 A.7)."""
        self._require_active()
        hints = {
            "kv_cache": kv_cache,
            "can_sample_on_device": can_sample_on_device,
            "enable_trace": enable_trace,
        }
        if self._prefill_warmup is None:
            self.warmup.warmup_prefill(**hints)
        else:
            self._prefill_warmup(self, lambda: self.warmup.warmup_prefill(**hints), **hints)

    def warmup_model_decode(
        self,
        *,
        kv_cache: Any,
        max_batch_size: int,
        num_blocks: int,
        can_sample_on_device: bool,
        enable_trace: bool,
    ) -> None:
        """Warm every decode case; either order with prefill."""
        self._require_active()
        self.warmup.warmup_decode(
            kv_cache=kv_cache,
            max_batch_size=max_batch_size,
            num_blocks=num_blocks,
            can_sample_on_device=can_sample_on_device,
            enable_trace=enable_trace,
        )

    def cleanup(self) -> None:
        """Release everything that this executor owns, in the seed's order; idempotent and retryable.

        Every step is tried. The first failure is raised unchanged with the others in its `cleanup_failures`; a later
        call retries.
        """
        self._terminal = True
        if self._cleaned:
            return
        steps: list[Callable[[], Any]] = [
            self.decode_runtime.drain_external_outputs,
            self.output_reader.drain,
            self.prefill_runtime.cleanup,
            self.decode_runtime.cleanup_transients,
        ]
        if self.trace_compiler is not None:
            steps.append(self.trace_compiler.cleanup)
        steps.append(self.program_compiler.cleanup)
        if self.config.device_sampling_enabled:
            if self.sampling_state_controller is not None:
                steps.append(lambda: self.sampling_state_controller.release(self.sampling_state))
            steps.append(self.model.sampling.release)
        steps.append(self.kv_cache_manager.release)
        failures: list[BaseException] = []
        for step in steps:
            try:
                step()
            except BaseException as failure:  # every later step must still run
                failures.append(failure)
        if failures:
            primary, *others = failures
            note = f"{self._owner_name} cleanup: {{count}} further failures"
            attach_cleanup_failures(primary, others, note=note)
            raise primary
        self._cleaned = True

    def _prefill_target(self) -> Any:
        return self.traced_prefill_execution or self.eager_execution

    def _decode_target(self) -> Any:
        return self.traced_decode_execution or self.eager_execution

    def _require_active(self) -> None:
        if self._terminal:
            raise RuntimeError(f"{self._owner_name} was cleaned up: build a new one")
        if self.prefill_runtime.transient_orphan_count or self.decode_runtime.transient_orphan_count:
            raise RuntimeError(f"{self._owner_name} holds tensors that could not be released: call cleanup()")

    def _admit(self, kv_cache: Any, **fields: Any) -> dict[str, Any]:
        """Check one compile or forward call; returns the fields that reach the execution target."""
        self._require_active()
        self._validate_bound_cache(kv_cache)
        if fields.get("sampling_params") is not None:
            if not self.config.device_sampling_enabled:
                raise ValueError(f"{self._owner_name}: sampling_params were given but device sampling is disabled")
            self._ensure_sampling_buffers()
        for name in ("prompt_tokens", "output_tokens"):
            if name in fields and name not in self._request_state_fields:
                del fields[name]
        return fields

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

    def _resolve_server_shape(self, kv_cache_shape: Any, dtype: Any, num_layers: int | None) -> None:
        shape = tuple(int(size) for size in kv_cache_shape)
        if len(shape) != 4:
            raise ValueError(f"kv_cache_shape must have 4 entries, got {shape}")
        layers = len(self.kv_cache_manager.per_layer_dtypes)
        if num_layers != layers:
            raise ValueError(f"num_layers {num_layers} does not match the model's {layers} layers")
        current = self.paged_kv_cache_config
        self.kv_cache_manager.validate_vllm_cache_spec(block_size=shape[2], dtype=dtype, num_blocks=shape[0])
        if not current.is_resolved():
            self.configure_paged_kv_cache(replace(current, num_blocks=shape[0]))
        elif current.num_blocks != shape[0]:
            raise ValueError(f"kv_cache_shape has {shape[0]} blocks, the cache is configured for {current.num_blocks}")
        for layer, own in enumerate(self.kv_cache_manager.cache_shapes):
            if tuple(own) != shape:
                raise ValueError(f"kv_cache_shape {shape} does not match layer {layer}, which needs {tuple(own)}")
