# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint on this machine to a `LlamaLLM`. Follows chapter 40, section E.1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_models.checkpoints import LlamaCheckpoint, load_checkpoint
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.hub import find_checkpoint
from llm_models.llama.facade_options import GenerationConfig
from llm_models.llama.model import LlamaModel
from llm_models.llama.model_config import require_positive_int
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_models.llama.tile_end_warmup import TileEndWarmup
from llm_models.tokenizer import Tokenizer
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig, fit_paged_kv_num_blocks
from llm_runtime.device import namespace_of
from llm_runtime.tensor_resources import attach_cleanup_failures

__all__ = ["load"]

DEFAULT_BLOCK_SIZE = 32


def load(
    product: Any,
    mesh_device: Any,
    *,
    hf_model: str,
    hf_revision: str | None,
    instruct: bool,
    max_batch_size: int,
    max_seq_len: int,
    optimizations: str | None,
    n_layers: int | None,
    dtype: Any,
    paged_attention_config: Any,
    cache_dir: str | Path | None,
    executor_config: ModelExecutorConfig | None,
) -> Any:
    """Build a `product` (the class) as `LlamaLLM.from_pretrained` describes."""
    if executor_config is not None and not isinstance(executor_config, ModelExecutorConfig):
        raise TypeError(f"executor_config must be a ModelExecutorConfig, got {type(executor_config).__name__}")
    for name, value in (("max_batch_size", max_batch_size), ("max_seq_len", max_seq_len)):
        require_positive_int(name, value)
    namespace = namespace_of(mesh_device)
    policy = _resolve_policy(
        executor_config,
        paged_attention_config,
        max_batch_size=max_batch_size,
        max_seq_len=max_seq_len,
        kv_cache_dtype=namespace.bfloat16,
    )
    checkpoint = load_checkpoint(find_checkpoint(hf_model, revision=hf_revision, cache_dir=cache_dir))
    cache = policy.paged_kv_cache
    model = LlamaModel.from_checkpoint(
        checkpoint,
        mesh_device,
        max_batch_size=max_batch_size,
        max_seq_len=max_seq_len,
        block_size=cache.block_size,
        max_num_blocks=cache.max_num_blocks,
        n_layers=n_layers,
        dtype=dtype or (namespace.bfloat8_b if optimizations == "performance" else None),
        kv_cache_dtype=cache.dtype,
    )
    executor = None
    try:
        runtime_config = LlamaRuntimeConfig(max_seq_len=max_seq_len)
        executor = ModelExecutor(
            model, runtime_config, policy, owner_name=product.__name__, prefill_warmup=TileEndWarmup()
        )
        return product(
            model,
            runtime_config=runtime_config,
            tokenizer=_tokenizer(checkpoint),
            instruct=instruct,
            generation_config=GenerationConfig.of(checkpoint),
            executor=executor,
            max_context_len=checkpoint.config.max_context_len,
        )
    except BaseException as primary:
        failures: list[BaseException] = []
        for release in [model.release] if executor is None else [executor.cleanup, model.release]:
            try:
                release()
            except BaseException as failure:  # it travels with the error that counts
                failures.append(failure)
        attach_cleanup_failures(primary, failures)
        raise


def _resolve_policy(
    given: ModelExecutorConfig | None,
    geometry: Any,
    *,
    max_batch_size: int,
    max_seq_len: int,
    kv_cache_dtype: Any,
) -> ModelExecutorConfig:
    """The executor's policy with a known number of KV blocks."""
    if given is not None and geometry is not None:
        for name in ("block_size", "max_num_blocks"):
            wanted, found = getattr(geometry, name), getattr(given.paged_kv_cache, name)
            if wanted != found:
                raise ValueError(f"paged_attention_config has {name} {wanted}, executor_config {found}")
    if given is not None:
        cache = given.paged_kv_cache
        resolved = cache if cache.is_resolved() else replace(cache, num_blocks=cache.max_num_blocks)
        return replace(given, paged_kv_cache=resolved)
    block_size = DEFAULT_BLOCK_SIZE if geometry is None else geometry.block_size
    blocks = (
        fit_paged_kv_num_blocks(
            -(-max_seq_len // block_size) * max_batch_size, max_seq_len=max_seq_len, block_size=block_size
        )
        if geometry is None
        else geometry.max_num_blocks
    )
    return ModelExecutorConfig(
        trace=TraceConfig("none"),
        warmup=WarmupConfig(),
        paged_kv_cache=PagedKVCacheConfig(
            block_size=block_size, max_num_blocks=blocks, num_blocks=blocks, dtype=kv_cache_dtype
        ),
        device_sampling_enabled=False,
    )


def _tokenizer(checkpoint: LlamaCheckpoint) -> Tokenizer | None:
    """The checkpoint's tokenizer, or `None` when its folder has none."""
    source = checkpoint.tokenizer
    return None if isinstance(source, Path) and not source.is_file() else Tokenizer(checkpoint)
