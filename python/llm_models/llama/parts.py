# SPDX-License-Identifier: Apache-2.0
"""The modules of a Llama and how they are made from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.attention import Attention
from llm_models.llama.config import LlamaConfig
from llm_models.llama.feed_forward import FeedForward, LmHead, RmsNorm
from llm_models.llama.model_config import (
    TILE_ROWS,
    AttentionConfig,
    BlockConfig,
    LlamaModelConfig,
    ModuleConfig,
    PagedAttentionConfig,
    local_kv_heads,
    require_positive_int,
)
from llm_models.llama.rope import RopeConfig, RopeSetup, rope_table_len
from llm_models.llama.sampling import Sampling1D, Sampling1DConfig
from llm_models.llama.weight_cache import WeightCache
from llm_models.llama.weights import DeviceWeights, Progress
from llm_runtime.device import namespace_of
from llm_runtime.tensor_resources import attach_cleanup_failures

WEIGHTS_PER_LAYER = 7
WEIGHTS_OUTSIDE_LAYERS = 3


@dataclass(frozen=True, kw_only=True)
class TransformerLayer:
    """The four modules of one layer, in execution order."""

    attn_norm: RmsNorm
    attention: Attention
    ff_norm: RmsNorm
    mlp: FeedForward


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """Everything a `LlamaModel` owns. `embedding` is the table [1, 1, vocabulary, dim], owned by `weights`."""

    weights: DeviceWeights
    embedding: Any
    rope_setup: RopeSetup
    layers: tuple[TransformerLayer, ...]
    norm: RmsNorm
    lm_head: LmHead
    sampling: Sampling1D


def plain_attention(ns: Any, config: AttentionConfig, weights: DeviceWeights, at: str, rope: RopeSetup) -> Attention:
    """Llama's attention from the weights below `at`."""
    wqkv = weights.matrix(f"{at}.wq", f"{at}.wk", f"{at}.wv")
    return Attention(ns, config, wqkv=wqkv, wo=weights.matrix(f"{at}.wo"), rope=rope)


@dataclass(frozen=True)
class AttentionKind:
    """How a family makes the attention of a layer, and how many weights that uploads beyond Llama's."""

    build: Callable[[Any, AttentionConfig, DeviceWeights, str, RopeSetup], Attention] = plain_attention
    extra_weights: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """What the caller chooses: lane capacity, context in tokens, KV geometry, layers, device types."""

    max_batch_size: int
    max_seq_len: int
    block_size: int
    max_num_blocks: int
    n_layers: int
    dtype: Any
    kv_cache_dtype: Any


def model_config(architecture: LlamaConfig, mesh_device: Any, sizes: ModelSizes) -> LlamaModelConfig:
    """The runtime-facing configuration; `ValueError` names a size that the mesh or the checkpoint cannot have.

    Each device of the mesh holds an equal part of the KV heads.
    """
    require_positive_int("n_layers", sizes.n_layers)
    if sizes.n_layers > architecture.n_layers:
        raise ValueError(f"n_layers {sizes.n_layers} is above the checkpoint's {architecture.n_layers}")
    require_positive_int("max_seq_len", sizes.max_seq_len)
    if sizes.max_seq_len > architecture.max_context_len:
        raise ValueError(
            f"max_seq_len {sizes.max_seq_len} is above the checkpoint's context of {architecture.max_context_len}"
        )
    for name in ("dim", "head_dim", "ffn_dim", "vocab_size"):
        value = getattr(architecture, name)
        if value % TILE_ROWS:
            raise ValueError(f"{name} must be a multiple of {TILE_ROWS} on the device, got {value}")
    require_positive_int("block_size", sizes.block_size)
    require_positive_int("max_num_blocks", sizes.max_num_blocks)
    geometry = PagedAttentionConfig(block_size=sizes.block_size, max_num_blocks=sizes.max_num_blocks)
    rows, columns = mesh_device.shape
    local_heads = local_kv_heads(architecture.n_kv_heads, rows * columns)
    blocks = [
        BlockConfig(
            attention_config=AttentionConfig(
                n_heads=architecture.n_heads,
                n_kv_heads=architecture.n_kv_heads,
                n_local_kv_heads=local_heads,
                head_dim=architecture.head_dim,
                max_batch_size=sizes.max_batch_size,
                kv_cache_dtype=sizes.kv_cache_dtype,
                paged_attention_config=geometry,
                decode_input_memcfg=namespace_of(mesh_device).DRAM_MEMORY_CONFIG,
            )
        )
        for _ in range(sizes.n_layers)
    ]
    return LlamaModelConfig(
        mesh_device=mesh_device,
        num_devices=rows * columns,
        max_batch_size=sizes.max_batch_size,
        max_seq_len=sizes.max_seq_len,
        dim=architecture.dim,
        n_layers=sizes.n_layers,
        vocab_size=architecture.vocab_size,
        block_configs=tuple(blocks),
    )


def build_parts(
    checkpoint: LlamaCheckpoint,
    config: LlamaModelConfig,
    *,
    dtype: Any,
    progress: Progress | None = None,
    cache_path: Path | None = None,
    log_probs: bool = False,
    kind: AttentionKind | None = None,
) -> ModelParts:
    """Upload the weights and make the modules; a failure frees what was uploaded, its own failures attached.

    Converted weights are kept in, and taken from, files below `cache_path`. `log_probs` is the sampler's. `kind` is
    the attention of families that differ from Llama there. The modules run on one device: `ValueError` for a mesh of
    several, before anything is uploaded.
    """
    if config.num_devices != 1:
        raise ValueError(f"this model runs on one device, the mesh has {config.num_devices}")
    kind = kind or AttentionKind()
    total = WEIGHTS_OUTSIDE_LAYERS + (WEIGHTS_PER_LAYER + kind.extra_weights) * config.n_layers
    cache = None
    if cache_path is not None:
        cache = WeightCache(cache_path, checkpoint, namespace_of(config.mesh_device))
    weights = DeviceWeights(checkpoint, config.mesh_device, dtype=dtype, total=total, progress=progress, cache=cache)
    try:
        return _build(checkpoint.config, config, weights, kind, log_probs=log_probs)
    except BaseException as primary:
        try:
            weights.release()
        except BaseException as failure:
            attach_cleanup_failures(primary, [failure])
        raise


def _build(
    architecture: LlamaConfig,
    config: LlamaModelConfig,
    weights: DeviceWeights,
    kind: AttentionKind,
    *,
    log_probs: bool,
) -> ModelParts:
    ns = namespace_of(config.mesh_device)
    module = ModuleConfig(decode_input_memcfg=ns.DRAM_MEMORY_CONFIG)
    rope = RopeSetup(
        RopeConfig(
            head_dim=architecture.head_dim,
            rope_theta=architecture.rope_theta,
            rope_factors=architecture.rope_factors,
            max_batch_size=config.max_batch_size,
            table_len=rope_table_len(config.max_seq_len),
            mesh_device=config.mesh_device,
        )
    )

    def norm(name: str) -> RmsNorm:
        return RmsNorm(ns, module, weight=weights.norm(name), epsilon=architecture.rms_eps)

    def layer(index: int, attention: AttentionConfig) -> TransformerLayer:
        at = f"layers.{index}"
        return TransformerLayer(
            attn_norm=norm(f"{at}.attention_norm"),
            attention=kind.build(ns, attention, weights, at, rope),
            ff_norm=norm(f"{at}.mlp_norm"),
            mlp=FeedForward(
                ns,
                module,
                gate=weights.matrix(f"{at}.w_gate"),
                up=weights.matrix(f"{at}.w_up"),
                down=weights.matrix(f"{at}.w_down"),
            ),
        )

    # The two largest weights come first: reading them takes the most host memory, and little is resident yet.
    embedding, head = weights.table("token_embedding"), weights.matrix("lm_head")
    return ModelParts(
        weights=weights,
        embedding=embedding,
        rope_setup=rope,
        layers=tuple(layer(index, block.attention_config) for index, block in enumerate(config.block_configs)),
        norm=norm("final_norm"),
        lm_head=LmHead(ns, module, weight=head),
        sampling=Sampling1D(
            Sampling1DConfig(mesh_device=config.mesh_device, vocab_size=config.vocab_size, supports_log_probs=log_probs)
        ),
    )
