# SPDX-License-Identifier: Apache-2.0
"""Lanes of a two-layer Llama with random weights, in the shapes of real models, on a mesh of either namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.checkpoints import BpeVocabulary, LlamaCheckpoint, weight_shape
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.llama.config import LlamaConfig
from llm_models.llama.model import LlamaModel
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, TraceMode, WarmupConfig
from llm_runtime.device import namespace_of

BLOCK = 32
MODELS = {
    "smollm2": LlamaConfig(
        dim=576,
        n_layers=2,
        n_heads=9,
        n_kv_heads=3,
        head_dim=64,
        ffn_dim=1536,
        vocab_size=49152,
        rope_theta=100000.0,
        rms_eps=1e-5,
        max_context_len=8192,
        tied_embeddings=True,
    ),
    "llama-3.2-1b": LlamaConfig(
        dim=2048,
        n_layers=2,
        n_heads=32,
        n_kv_heads=8,
        head_dim=64,
        ffn_dim=8192,
        vocab_size=128256,
        rope_theta=500000.0,
        rms_eps=1e-5,
        max_context_len=131072,
        tied_embeddings=True,
    ),
}
_RANDOM = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32) * np.float32(0.02)


def random_checkpoint(config: LlamaConfig, path: Path) -> LlamaCheckpoint:
    """Weights that repeat one small random block: a large vocabulary costs no time. `path` is a file, see caches."""
    return LlamaCheckpoint(
        path=path,
        config=config,
        tokenizer=BpeVocabulary(tokens=(), merges=(), control_ids=(), pre_tokenizer="gpt-2"),
        chat_template=None,
        bos_id=None,
        eos_ids=(),
        pad_id=None,
        read=lambda name: np.resize(_RANDOM, weight_shape(config, name)),
    )


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A model and its executor with an allocated cache; `close` releases both."""

    mesh: Any
    model: LlamaModel
    executor: ModelExecutor
    kv_cache: Any
    blocks_per_row: int

    def prefill_request(
        self,
        lengths: Sequence[int],
        *,
        cached: Sequence[int] | None = None,
        slots: Sequence[int] | None = None,
        sampling: Any = None,
    ) -> dict[str, Any]:
        """Arguments of one prefill call: row r has `lengths[r]` tokens, of which `cached[r]` are in the cache."""
        slots = list(range(len(lengths)) if slots is None else slots)
        request: dict[str, Any] = {
            "tokens": np.ones((len(lengths), max(lengths)), np.int64),
            "page_table": self.page_table(slots),
            "prompt_lens": np.array(lengths),
            "empty_slots": slots,
            "kv_cache": self.kv_cache,
        }
        if cached is not None:
            request["start_pos"] = np.array(cached)
        if sampling is not None:
            request["sampling_params"] = sampling
        return request

    def decode_request(self, positions: Sequence[int], *, sampling: Any = None) -> dict[str, Any]:
        """Arguments of one decode step."""
        request: dict[str, Any] = {
            "tokens": np.ones(len(positions), np.int64),
            "start_pos": np.array(positions),
            "page_table": self.page_table(range(len(positions))),
            "kv_cache": self.kv_cache,
        }
        if sampling is not None:
            request["sampling_params"] = sampling
        return request

    def prefill(self, lengths: Sequence[int], **options: Any) -> Any:
        """Compile what an eager call needs, then run it."""
        request = self.prefill_request(lengths, **options)
        self.executor.compile_prefill(**request)
        return self.executor.prefill_forward(**request)

    def decode(self, positions: Sequence[int], *, sampling: Any = None, **options: Any) -> Any:
        """Compile what an eager step needs, then run it as the first one of a batch."""
        request = {**self.decode_request(positions, sampling=sampling), "reset_batch": True}
        self.executor.compile_decode(**request)
        return self.executor.decode_forward(**request, **options)

    def page_table(self, slots: Sequence[int]) -> npt.NDArray[np.int32]:
        """Blocks of each slot, one slot after the other."""
        first = np.asarray(list(slots), np.int32)[:, None] * self.blocks_per_row
        return np.ascontiguousarray(first + np.arange(self.blocks_per_row, dtype=np.int32))

    def warm_up(self) -> None:
        """Compile everything and capture what the trace policy selects."""
        config = self.executor.config
        options = {"kv_cache": self.kv_cache, "can_sample_on_device": config.device_sampling_enabled}
        self.executor.warmup_model_prefill(**options, enable_trace=config.trace.prefill_enabled)
        self.executor.warmup_model_decode(
            **options,
            max_batch_size=self.model.config.max_batch_size,
            num_blocks=self.executor.page_table_layout.raw_capacity_width,
            enable_trace=config.trace.decode_enabled,
        )

    def close(self) -> None:
        """Release executor and model; the mesh stays open."""
        self.executor.cleanup()
        self.model.release()


def open_lane(
    mesh: Any,
    checkpoint: LlamaCheckpoint,
    *,
    batch: int,
    max_seq_len: int,
    chunk: int = 2048,
    trace: TraceMode = "none",
    top_k: bool = False,
    **model: Any,
) -> Lane:
    """A lane with a cache for `batch` rows of `max_seq_len` tokens."""
    blocks_per_row = -(-max_seq_len // BLOCK)
    num_blocks = batch * blocks_per_row
    llama = LlamaModel.from_checkpoint(
        checkpoint,
        mesh,
        max_batch_size=batch,
        max_seq_len=max_seq_len,
        block_size=BLOCK,
        max_num_blocks=num_blocks,
        **model,
    )
    executor = ModelExecutor(
        llama,
        LlamaRuntimeConfig(max_prefill_chunk_size=chunk, max_seq_len=max_seq_len),
        ModelExecutorConfig(
            trace=TraceConfig(trace),
            warmup=WarmupConfig(include_decode_top_k=top_k),
            paged_kv_cache=PagedKVCacheConfig(
                block_size=BLOCK,
                max_num_blocks=num_blocks,
                num_blocks=num_blocks,
                dtype=model.get("kv_cache_dtype") or namespace_of(mesh).bfloat16,
            ),
            device_sampling_enabled=True,
        ),
    )
    return Lane(
        mesh=mesh,
        model=llama,
        executor=executor,
        kv_cache=executor.allocate_kv_cache(),
        blocks_per_row=blocks_per_row,
    )
