# SPDX-License-Identifier: Apache-2.0
"""From a generator's configuration to loaded Llamas, one per lane, and the executors over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_models.checkpoints import LlamaCheckpoint, load_checkpoint
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.hub import find_checkpoint
from llm_models.llama.model import LlamaModel
from llm_models.llama.model_config import LlamaModelConfig
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_models.llama.vllm_config import LlamaGeneratorConfig
from llm_models.vllm_lanes import PendingLanes
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig, fit_paged_kv_num_blocks
from llm_runtime.device import namespace_of
from llm_runtime.tensor_resources import attach_cleanup_failures
from llm_runtime.vllm_adapter import VLLMAdapter, VLLMAdapterConfig

__all__ = ["adapter_config", "load_lanes"]

PROVISIONAL_BLOCK_SIZE = 32


def load_lanes(
    config: LlamaGeneratorConfig,
    *,
    model_type: type[LlamaModel] = LlamaModel,
    load: Callable[[Path], LlamaCheckpoint] = load_checkpoint,
    executor_options: Callable[[LlamaModel], dict[str, Any]] = lambda _model: {},
) -> tuple[PendingLanes, VLLMAdapter]:
    """Load one model (`model_type`, from what `load` opens) per lane and describe them to an adapter.

    `executor_options` says what the executor of a model gets beside its policy.
    The KV geometry is provisional: blocks of 32 tokens, room for one whole sequence and a block per row. When a lane
    cannot be loaded those before it are released, with their failures attached to the primary error.
    """
    namespace = namespace_of(config.mesh_device)
    checkpoint = load(find_checkpoint(config.hf_model))
    blocks = fit_paged_kv_num_blocks(
        -(-config.max_seq_len // PROVISIONAL_BLOCK_SIZE) + config.lane_batch_size,
        max_seq_len=config.max_seq_len,
        block_size=PROVISIONAL_BLOCK_SIZE,
    )
    lanes = PendingLanes([], mesh_device=config.mesh_device, build_executor=_executor_builder(config, executor_options))
    try:
        for mesh in lane_meshes(config.mesh_device, config.tt_data_parallel):
            model = model_type.from_checkpoint(
                checkpoint,
                mesh,
                max_batch_size=config.lane_batch_size,
                max_seq_len=config.max_seq_len,
                block_size=PROVISIONAL_BLOCK_SIZE,
                max_num_blocks=blocks,
                n_layers=config.n_layers,
                dtype=namespace.bfloat8_b if config.optimizations == "performance" else None,
            )
            lanes.models.append(model)
            model.model_args = LlamaRuntimeConfig(max_seq_len=config.max_seq_len)
        return lanes, VLLMAdapter(adapter_config(config, lanes.models[0].config, blocks))
    except BaseException as primary:
        try:
            lanes.release()
        except BaseException as failure:  # it travels with the error that counts
            attach_cleanup_failures(primary, [failure])
        raise


def lane_meshes(mesh_device: Any, lanes: int) -> list[Any]:
    """The mesh itself, or its split into `lanes` equal submeshes; `ValueError` when it cannot be split so."""
    if lanes == 1:
        return [mesh_device]
    rows, columns = (int(size) for size in mesh_device.shape)
    if columns % lanes == 0:
        shape = (rows, columns // lanes)
    elif rows % lanes == 0:
        shape = (rows // lanes, columns)
    else:
        raise ValueError(f"a mesh of {rows}x{columns} devices does not split into {lanes} lanes")
    meshes = list(mesh_device.create_submeshes(namespace_of(mesh_device).MeshShape(*shape)))
    if len(meshes) != lanes:
        raise ValueError(f"splitting the mesh gave {len(meshes)} submeshes for {lanes} lanes")
    return meshes


def adapter_config(config: LlamaGeneratorConfig, model: LlamaModelConfig, blocks: int) -> VLLMAdapterConfig:
    """What a server's cache must look like: per device the heads of one lane, in at most `blocks` blocks until it says
    how many there are."""
    attentions = [block.attention_config for block in model.block_configs]
    return VLLMAdapterConfig.resolve(
        trace=TraceConfig(config.trace_mode),
        paged_kv_cache=PagedKVCacheConfig(
            block_size=PROVISIONAL_BLOCK_SIZE, max_num_blocks=blocks, dtype=attentions[0].kv_cache_dtype
        ),
        expected_num_layers=len(attentions),
        expected_kv_heads_per_device=attentions[0].n_local_kv_heads,
        expected_head_dim=attentions[0].head_dim,
        model_kv_cache_dtype=[attention.kv_cache_dtype for attention in attentions],
    )


def _executor_builder(config: LlamaGeneratorConfig, options: Callable[[LlamaModel], dict[str, Any]]) -> Any:
    def build(model: LlamaModel, paged_kv_cache: PagedKVCacheConfig) -> ModelExecutor:
        # Servers mix greedy and stochastic rows in one step, so decode needs its top-k programs from the start.
        policy = ModelExecutorConfig(
            trace=TraceConfig(config.trace_mode),
            warmup=WarmupConfig(include_decode_top_k=True),
            paged_kv_cache=paged_kv_cache,
            device_sampling_enabled=config.device_sampling_enabled,
        )
        return ModelExecutor(model, model.model_args, policy, owner_name=type(model).__name__, **options(model))

    return build
