# SPDX-License-Identifier: Apache-2.0
"""Tiny Qwen3 folders with random weights, a reference over their raw numbers, and the product over them on a twin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ttnn_twin
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.llama.facade import LlamaLLM
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_models.qwen3.checkpoint import load_qwen3
from llm_models.qwen3.model import Qwen3Model
from llm_models.qwen3.vllm import Qwen3ForCausalLM
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig
from oracle.numpy_llama import NumpyLlama
from support.llama import tiny_config, write_safetensors
from support.serving.deployment import write_tiny_model

FILE_NAMES = {
    "token_embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "lm_head": "lm_head",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{f"w{name}": f"self_attn.{name}_proj" for name in "qkvo"},
    **{f"{name}_norm": f"self_attn.{name}_norm" for name in "qk"},
    **{f"w_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


class NumpyQwen3(NumpyLlama):
    """The reference Llama with normed heads, over a folder's own numbers: nothing is reordered on the way."""

    def __init__(self, folder: Path, *, tied: bool = False) -> None:
        config = tiny_config(max_context_len=1024, tied_embeddings=tied)
        super().__init__(config, raw_tensors(folder, tied=tied), half_split=True)

    def _heads(self, index: int, x: Any) -> Any:
        def project(name: str) -> Any:
            wide = x @ self._weight(f"layers.{index}.{name}").T
            return wide.reshape(len(x), -1, self.config.head_dim)

        query = self._norm(project("wq"), f"layers.{index}.q_norm")
        key = self._norm(project("wk"), f"layers.{index}.k_norm")
        return self._rotate(query), self._rotate(key), project("wv")


def raw_tensors(folder: Path, *, tied: bool) -> Callable[[str], Any]:
    """The float32 tensors of a folder by canonical name, exactly as they are stored."""
    found: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:end]).items():
            if name != "__metadata__":
                first, last = (end + offset for offset in entry["data_offsets"])
                found[name] = np.frombuffer(data[first:last], np.float32).reshape(entry["shape"])

    def read(name: str) -> Any:
        if name == "lm_head" and tied:
            name = "token_embedding"
        *layer, weight = name.split(".")
        prefix = f"model.layers.{layer[1]}." if layer else ""
        return found[f"{prefix}{FILE_NAMES[weight]}.weight"]

    return read


def write_qwen3(folder: Path, **settings: Any) -> Path:
    """A random Qwen3 in Hugging Face's layout whose head norms differ in every element."""
    write_tiny_model(folder)
    known = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    changed = {**known, "model_type": "qwen3", "attention_bias": False, "use_sliding_window": False, **settings}
    (folder / "config.json").write_text(json.dumps(changed))
    config, rng = tiny_config(), np.random.default_rng(3)
    norms = {
        f"model.layers.{index}.self_attn.{name}_norm.weight": (
            "F32",
            (1.5 + 0.8 * rng.standard_normal(config.head_dim)).astype(np.float32),
        )
        for index in range(config.n_layers)
        for name in "qk"
    }
    write_safetensors(folder / "model-norms.safetensors", norms)
    return folder


def load_llm(path: Path, mesh: Any, *, mode: str = "none", sampling: bool = False) -> LlamaLLM:
    """The product object over a Qwen3."""
    policy = ModelExecutorConfig(
        TraceConfig(mode),  # type: ignore[arg-type]
        WarmupConfig(),
        PagedKVCacheConfig(block_size=32, max_num_blocks=48, num_blocks=48, dtype=ttnn_twin.bfloat16),
        sampling,
    )
    model = Qwen3Model.from_checkpoint(
        load_qwen3(path), mesh, max_batch_size=4, max_seq_len=256, block_size=32, max_num_blocks=48
    )
    model.model_args = LlamaRuntimeConfig(max_seq_len=256)
    executor = ModelExecutor(model, model.model_args, policy, **Qwen3ForCausalLM.executor_options(model))
    return LlamaLLM(model, runtime_config=model.model_args, executor=executor)
