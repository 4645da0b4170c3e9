# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to a serving-ready Llama on one mesh: model, executor, KV cache, warmup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llm_models.checkpoints import LlamaCheckpoint
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.llama.config import LlamaConfig
from llm_models.llama.memory import DeviceMemory, device_memory, require_memory
from llm_models.llama.model import LlamaModel
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_models.llama.sampling_state import SamplingStateController1D
from llm_models.llama.tile_end_warmup import TileEndWarmup
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, TraceMode, WarmupConfig, fit_paged_kv_num_blocks
from llm_runtime.device import namespace_of
from llm_runtime.prefill.config_checks import check_alignment
from llm_runtime.tensor_resources import attach_cleanup_failures

Progress = Callable[[int, int], None]
DeviceFloat = Literal["bfloat16", "bfloat8_b"]


@dataclass(frozen=True, kw_only=True)
class LlamaOptions:
    """Capacity and policy of one lane. Lengths and `block_size` are in tokens.

    `num_blocks` defaults to what `max_batch_size` sequences of `max_seq_len` tokens need. With
    `device_stochastic_sampling` decode also covers top-k programs, and greedy rows then share them; with
    `device_log_probs` the programs that return log-probabilities of sampled tokens too, and with `device_penalties`
    those with presence, frequency and repetition penalties. `weight_dtype` is the device
    type of the matrices; `weight_cache` a folder for converted weights.
    """

    max_batch_size: int
    max_seq_len: int
    block_size: int = 32
    max_prefill_chunk_size: int = 2048
    trace_mode: TraceMode = "all"
    device_sampling: bool = True
    device_stochastic_sampling: bool = True
    device_log_probs: bool = False
    device_penalties: bool = False
    num_blocks: int | None = None
    weight_dtype: DeviceFloat = "bfloat16"
    kv_cache_dtype: DeviceFloat = "bfloat16"
    weight_cache: Path | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be planned with, before any weight is read."""
        check_alignment(self.block_size, self.runtime_config.max_prefill_chunk_size, self.block_size)

    @property
    def fitted_num_blocks(self) -> int:
        """Blocks of the cache."""
        return fit_paged_kv_num_blocks(
            self.num_blocks or self.max_batch_size * -(-self.max_seq_len // self.block_size),
            max_seq_len=self.max_seq_len,
            block_size=self.block_size,
        )

    def device_memory(self, config: LlamaConfig) -> DeviceMemory:
        """What the lane keeps allocated on its device."""
        return device_memory(
            config,
            n_layers=config.n_layers,
            max_seq_len=self.max_seq_len,
            num_blocks=self.fitted_num_blocks,
            block_size=self.block_size,
            weight_dtype=self.weight_dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            penalties=self.device_sampling and self.device_penalties,
        )

    @property
    def runtime_config(self) -> LlamaRuntimeConfig:
        """The family's prefill policy for these options."""
        return LlamaRuntimeConfig(max_prefill_chunk_size=self.max_prefill_chunk_size, max_seq_len=self.max_seq_len)


class Llama:
    """A Llama with its executor: owns both, borrows the mesh. `cleanup` releases everything, executor first."""

    def __init__(self, model: LlamaModel, executor: ModelExecutor, kv_cache: list[list[Any]]) -> None:
        self.model = model
        self.executor = executor
        self.kv_cache = kv_cache  # borrowed from the executor's cache manager

    @classmethod
    def open(
        cls,
        checkpoint: LlamaCheckpoint,
        mesh_device: Any,
        options: LlamaOptions,
        *,
        progress: Progress | None = None,
    ) -> Llama:
        """Load weights onto `mesh_device`, build the executor and allocate the KV cache.

        `progress(done, total)` follows the weights. `ValueError` when the device has too little memory, before
        anything is read. A failure releases what was made and is raised unchanged.
        """
        namespace = namespace_of(mesh_device)
        require_memory(options.device_memory(checkpoint.config), namespace, mesh_device)
        num_blocks, kv_cache_dtype = options.fitted_num_blocks, getattr(namespace, options.kv_cache_dtype)
        config = ModelExecutorConfig(
            trace=TraceConfig(options.trace_mode),
            warmup=WarmupConfig(
                include_decode_top_k=options.device_sampling and options.device_stochastic_sampling
            ),
            paged_kv_cache=PagedKVCacheConfig(
                block_size=options.block_size,
                max_num_blocks=num_blocks,
                num_blocks=num_blocks,
                dtype=kv_cache_dtype,
            ),
            device_sampling_enabled=options.device_sampling,
        )
        model = LlamaModel.from_checkpoint(
            checkpoint,
            mesh_device,
            max_batch_size=options.max_batch_size,
            max_seq_len=options.max_seq_len,
            block_size=options.block_size,
            max_num_blocks=num_blocks,
            dtype=getattr(namespace, options.weight_dtype),
            kv_cache_dtype=kv_cache_dtype,
            progress=progress,
            cache_path=options.weight_cache,
            log_probs=options.device_log_probs,
        )
        executor = None
        try:
            executor = ModelExecutor(
                model,
                options.runtime_config,
                config,
                prefill_warmup=TileEndWarmup(),
                **_sampling_state(model, options),
            )
            return cls(model, executor, executor.allocate_kv_cache())
        except BaseException as primary:
            attach_cleanup_failures(primary, _release(executor, model))
            raise

    def warm_up(self, *, progress: Progress | None = None) -> None:
        """Compile everything that serving can ask for, and capture what the trace policy selects.

        `progress(done, total)` follows the compile cases of both operations.
        """
        self.executor.warmup.progress = None if progress is None else lambda done, total, _case: progress(done, total)
        trace, sampling = self.executor.config.trace, self.executor.config.device_sampling_enabled
        self.executor.warmup_model_prefill(
            kv_cache=self.kv_cache, can_sample_on_device=sampling, enable_trace=trace.prefill_enabled
        )
        self.executor.warmup_model_decode(
            kv_cache=self.kv_cache,
            max_batch_size=self.model.config.max_batch_size,
            num_blocks=self.executor.page_table_layout.raw_capacity_width,
            can_sample_on_device=sampling,
            enable_trace=trace.decode_enabled,
        )

    def cleanup(self) -> None:
        """Release the executor, then the weights; the mesh stays open. Idempotent, and retryable after a failure."""
        self.executor.cleanup()
        self.model.release()


def _sampling_state(model: LlamaModel, options: LlamaOptions) -> dict[str, Any]:
    """The controller that penalties need, with its state. It takes waves of requests, so they stay batched."""
    if not (options.device_sampling and options.device_penalties):
        return {}
    controller = SamplingStateController1D(model.sampling)
    return {
        "sampling_state_controller": controller,
        "sampling_state": controller.create_state(),
        "disable_batched_prefill": options.runtime_config.disable_batched_prefill,
        "request_state_fields": ("prompt_tokens", "output_tokens", "slot_remap"),
    }


def _release(executor: ModelExecutor | None, model: LlamaModel) -> list[BaseException]:
    failures: list[BaseException] = []
    for release in [model.release] if executor is None else [executor.cleanup, model.release]:
        try:
            release()
        except BaseException as failure:  # the caller raises its primary error with these attached
            failures.append(failure)
    return failures
