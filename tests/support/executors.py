# SPDX-License-Identifier: Apache-2.0
"""Model executors over tiny Llamas on the twin, and the arguments that they are called with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ttnn_twin
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.llama.model import LlamaModel
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig
from llm_runtime.prefill.sampling_helpers import SamplingParams
from support.llama import tiny_checkpoint

BLOCK = 32
TRACE_REGION_BYTES = 50_000_000


@dataclass
class Bench:
    """One mesh and what was built on it. `close` releases models, executors first, and says what was left over."""

    mesh: Any
    models: list[LlamaModel] = field(default_factory=list)
    executors: list[ModelExecutor] = field(default_factory=list)

    def model(self, *, capacity: int = 2, max_seq_len: int = 512, max_blocks: int = 64, **options: Any) -> LlamaModel:
        """A two-layer Llama of 256 tokens with 2 KV heads of 32."""
        model = LlamaModel.from_checkpoint(
            tiny_checkpoint(),
            self.mesh,
            max_batch_size=capacity,
            max_seq_len=max_seq_len,
            block_size=BLOCK,
            max_num_blocks=max_blocks,
            **options,
        )
        self.models.append(model)
        return model

    def config(self, *, mode: str = "none", sampling: bool = True, **kv_cache: Any) -> ModelExecutorConfig:
        """An executor policy; the KV capacity is open unless `num_blocks` is given."""
        return ModelExecutorConfig(
            trace=TraceConfig(mode),  # type: ignore[arg-type]
            warmup=WarmupConfig(include_decode_top_k=True),
            paged_kv_cache=PagedKVCacheConfig(
                **{"block_size": BLOCK, "max_num_blocks": 64, "dtype": ttnn_twin.bfloat16, **kv_cache}
            ),
            device_sampling_enabled=sampling,
        )

    def runtime_config(self, model: Any, **options: Any) -> LlamaRuntimeConfig:
        """Prefill policy of the family for this model's context."""
        return LlamaRuntimeConfig(max_seq_len=model.config.max_seq_len, max_prefill_chunk_size=128, **options)

    def executor(
        self, *, mode: str = "none", sampling: bool = True, model: Any = None, options: Any = None, **kv_cache: Any
    ) -> ModelExecutor:
        """An executor whose KV capacity is open unless `num_blocks` is given."""
        model = model or self.model()
        executor = ModelExecutor(
            model,
            self.runtime_config(model),
            self.config(mode=mode, sampling=sampling, **kv_cache),
            **(options or {}),
        )
        self.executors.append(executor)
        return executor

    def close(self) -> list[Any]:
        """Release everything but the mesh; returns the device tensors that are still allocated."""
        self.mesh.faults.clear()
        for owner in self.executors:
            owner.cleanup()
        for model in self.models:
            model.release()
        return list(self.mesh.live_tensors())


def prefill_call(rows: int = 1, *, length: int = 20, sampled: bool = False) -> dict[str, Any]:
    """A prefill of `rows` prompts of `length` tokens on disjoint blocks."""
    blocks = -(-length // BLOCK)
    return {
        "tokens": np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 250 + 1,
        "page_table": np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks),
        "prompt_lens": np.full(rows, length),
        "empty_slots": list(range(rows)),
        "sampling_params": greedy(rows) if sampled else None,
    }


def decode_call(positions: list[int], *, sampled: bool = False) -> dict[str, Any]:
    """A decode step of a lane; row i owns blocks 8 i to 8 i + 7."""
    rows = len(positions)
    return {
        "tokens": np.arange(rows, dtype=np.int64) + 3,
        "start_pos": np.array(positions, np.int64),
        "page_table": np.arange(rows * 8, dtype=np.int32).reshape(rows, 8),
        "sampling_params": greedy(rows) if sampled else None,
        "reset_batch": True,
    }


def greedy(rows: int) -> SamplingParams:
    """Temperature 0 for every row."""
    return SamplingParams(temperature=[0.0] * rows, top_k=[1] * rows, top_p=[1.0] * rows)
