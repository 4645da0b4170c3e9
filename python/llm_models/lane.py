# SPDX-License-Identifier: Apache-2.0
"""Builds the runtime parts of one lane in the order of the seed's composition (chapter 40, A.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_models.executor_config import ModelExecutorConfig
from llm_runtime.config import PagedKVCacheConfig, PageTableLayout
from llm_runtime.decode import DecodeRuntime, DecodeRuntimeConfig
from llm_runtime.execution import EagerExecutor, TracedExecutor
from llm_runtime.output_reader import OutputReader
from llm_runtime.paged_kv_cache import PagedKVCacheManager
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.runtime import PrefillRuntime
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.trace_compiler import TraceCompiler
from llm_runtime.warmup import (
    WarmupCoordinator,
    WarmupCoordinatorConfig,
    resolve_prefill_warmup_seq_lens,
)


@dataclass(frozen=True)
class Lane:
    """The owners of one lane, built and wired; the executor that asked for them owns them."""

    kv_cache_manager: PagedKVCacheManager
    page_table_layout: PageTableLayout
    output_reader: OutputReader
    prefill_runtime: PrefillRuntime
    decode_runtime: DecodeRuntime
    program_compiler: ProgramCompiler
    eager_executor: EagerExecutor
    trace_compiler: TraceCompiler | None
    traced_executor: TracedExecutor | None
    warmup: WarmupCoordinator


def resolve_layout(model: Any, runtime_config: Any, kv_cache: PagedKVCacheConfig) -> PageTableLayout:
    """The page-table geometry for the known block count, or for its maximum while it is open."""
    return PageTableLayout.resolve(
        block_size=kv_cache.block_size,
        model_max_sequence_length=model.config.max_seq_len,
        physical_num_blocks=kv_cache.num_blocks or kv_cache.max_num_blocks,
        max_prefill_chunk_size=runtime_config.max_prefill_chunk_size,
    )


def build_lane(
    model: Any,
    runtime_config: Any,
    config: ModelExecutorConfig,
    *,
    prefill_sequence_lengths: tuple[int, ...] | None,
    disable_batched_prefill: bool | None,
    trace_capture_prime_sequence_lengths: tuple[int, ...],
    sampling_state_controller: Any,
    sampling_state: Any,
    output_wait_limit: float | None,
    ensure_sampling_buffers: Callable[[], None],
    validate_bound_cache: Callable[[Any], None],
) -> Lane:
    """Build every owner of a lane. Nothing here touches the device."""
    kv_cache_manager = PagedKVCacheManager(model, config.paged_kv_cache)
    layout = resolve_layout(model, runtime_config, config.paged_kv_cache)
    output_reader = OutputReader(model.config.mesh_device, wait_limit=output_wait_limit)
    prefill = PrefillRuntime(
        PrefillRuntimeConfig.resolve(
            model=model,
            output_reader=output_reader,
            page_table_layout=layout,
            max_batch_size=model.config.max_batch_size,
            max_prefill_chunk_size=runtime_config.max_prefill_chunk_size,
            device_sampling_enabled=config.device_sampling_enabled,
            can_enable_trace=runtime_config.can_enable_trace,
            supports_batched_prefill=runtime_config.supports_batched_prefill,
            disable_batched_prefill=_disables_batches(
                runtime_config, disable_batched_prefill, has_sampling_state=sampling_state is not None
            ),
            max_prefill_batch_size=runtime_config.max_prefill_batch_size,
            batched_prefill_batched_extract=runtime_config.batched_prefill_batched_extract,
            trace_capture_prime_sequence_lengths=trace_capture_prime_sequence_lengths,
            sampling_state_controller=sampling_state_controller,
            sampling_state=sampling_state,
        )
    )
    decode = DecodeRuntime(
        DecodeRuntimeConfig.resolve(
            model=model,
            output_reader=output_reader,
            lane_capacity=model.config.max_batch_size,
            page_table_layout=layout,
            device_sampling_enabled=config.device_sampling_enabled,
            force_greedy_top_k=config.warmup.include_decode_top_k,
            sampling_state_controller=sampling_state_controller,
            sampling_state=sampling_state,
        )
    )
    program_compiler = ProgramCompiler(model.config.mesh_device, lambda: kv_cache_manager.bound_context)
    eager = EagerExecutor(prefill=prefill, decode=decode, program_compiler=program_compiler)
    trace_compiler = traced = None
    if config.trace.mode != "none":
        trace_compiler = TraceCompiler(program_compiler)
        traced = TracedExecutor(eager=eager, trace_compiler=trace_compiler, trace_mode=config.trace.mode)
    warmup = WarmupCoordinator(
        config=WarmupCoordinatorConfig.resolve(
            warmup=config.warmup,
            trace=config.trace,
            prefill=prefill.config,
            decode=decode.config,
            prefill_sequence_lengths=prefill_sequence_lengths
            or resolve_prefill_warmup_seq_lens(runtime_config, config.trace),
        ),
        execution=traced or eager,
        ensure_sampling_buffers=ensure_sampling_buffers,
        validate_bound_cache=validate_bound_cache,
    )
    return Lane(
        kv_cache_manager,
        layout,
        output_reader,
        prefill,
        decode,
        program_compiler,
        eager,
        trace_compiler,
        traced,
        warmup,
    )


def _disables_batches(runtime_config: Any, explicit: bool | None, *, has_sampling_state: bool) -> bool:
    if explicit is not None:
        return explicit
    # A controller admits the state of one request per prepared prefill.
    return has_sampling_state or bool(runtime_config.disable_batched_prefill)
