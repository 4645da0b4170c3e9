# SPDX-License-Identifier: Apache-2.0
"""Qwen2, the family of docs/new-model.md: biases on queries, keys and values, and an output head of its own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ttnn_twin
from llm_models.checkpoints import CheckpointError, load_checkpoint
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.llama.facade import LlamaLLM
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_models.qwen2.checkpoint import load_qwen2
from llm_models.qwen2.model import Qwen2Model
from llm_models.qwen2.vllm import Qwen2ForCausalLM
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig
from oracle.numpy_llama import NumpyLlama
from support.llama import random_weights, tiny_config, write_safetensors
from support.serving.deployment import write_tiny_model
from support.transformers_ids import require_same_greedy_ids, save_tiny_model

ROOT = Path(__file__).resolve().parents[3]
QKV = {"bq": "q_proj", "bk": "k_proj", "bv": "v_proj"}


class NumpyQwen2(NumpyLlama):
    """The reference Llama with biases behind its projections."""

    def _heads(self, index: int, x: Any) -> Any:
        size = self.config.head_dim

        def project(weight: str, bias: str) -> Any:
            wide = x @ self._weight(f"layers.{index}.{weight}").T + self._weight(f"layers.{index}.{bias}")
            return wide.reshape(len(x), -1, size)

        return self._rotate(project("wq", "bq")), self._rotate(project("wk", "bk")), project("wv", "bv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 in Hugging Face's layout."""
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny-qwen2"))
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**settings, "model_type": "qwen2", "use_sliding_window": False}))
    config, rng = tiny_config(), np.random.default_rng(2)
    biases = {
        f"model.layers.{index}.self_attn.{QKV[name]}.bias": ("F32", rng.standard_normal(width).astype(np.float32))
        for index in range(config.n_layers)
        for name, width in (("bq", 128), ("bk", 64), ("bv", 64))
    }
    write_safetensors(folder / "model-biases.safetensors", biases)
    return folder


def load(path: Path, mesh: Any, *, mode: str = "none", sampling: bool = False) -> LlamaLLM:
    """The product object over a Qwen2."""
    policy = ModelExecutorConfig(
        TraceConfig(mode),  # type: ignore[arg-type]
        WarmupConfig(),
        PagedKVCacheConfig(block_size=32, max_num_blocks=48, num_blocks=48, dtype=ttnn_twin.bfloat16),
        sampling,
    )
    model = Qwen2Model.from_checkpoint(
        load_qwen2(path), mesh, max_batch_size=4, max_seq_len=256, block_size=32, max_num_blocks=48
    )
    runtime_config = LlamaRuntimeConfig(max_seq_len=256)
    return LlamaLLM(model, runtime_config=runtime_config, executor=ModelExecutor(model, runtime_config, policy))


def test_the_family_is_short() -> None:
    lines = sum(
        len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "python/llm_models/qwen2").glob("*.py")
    )
    assert lines < 200


@pytest.mark.parametrize(("mode", "sampling"), [("none", False), ("decode_only", True), ("all", True)])
def test_greedy_text_follows_the_biased_reference(folder: Path, mesh: Any, mode: str, sampling: bool) -> None:
    checkpoint = load_qwen2(folder)
    biased = NumpyQwen2(checkpoint.config, checkpoint.tensor)
    unbiased = NumpyLlama(checkpoint.config, checkpoint.tensor)
    llm = load(folder, mesh, mode=mode, sampling=sampling)
    prompts = [[5, 9, 200, 31], [(7 * index) % 256 for index in range(70)]]
    ids = np.zeros((2, 70), np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, 70 - len(prompt) :], mask[row, 70 - len(prompt) :] = prompt, 1
    grown = llm.generate(ids, mask, max_new_tokens=10, eos_token_id=None)
    for row, prompt in enumerate(prompts):
        assert grown[row, 70:].tolist() == biased.greedy(prompt, max_new_tokens=10)
        assert grown[row, 70:].tolist() != unbiased.greedy(prompt, max_new_tokens=10)
    llm.cleanup()


def test_progress_counts_the_biases(folder: Path, mesh: Any) -> None:
    seen: list[tuple[int, int]] = []
    model = Qwen2Model.from_checkpoint(
        load_qwen2(folder),
        mesh,
        max_batch_size=1,
        max_seq_len=64,
        block_size=32,
        max_num_blocks=8,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (19, 19) and [done for done, _ in seen] == list(range(1, 20))
    model.release()


def test_a_server_drives_it(folder: Path, mesh: Any) -> None:
    checkpoint = load_qwen2(folder)
    model = Qwen2ForCausalLM.initialize_vllm_model(SimpleNamespace(_name_or_path=str(folder)), mesh, 2, 256)
    model.allocate_kv_cache((16, 2, 32, 32), ml_dtypes.bfloat16, 2)
    prompt = [(11 * index) % 256 for index in range(40)]
    logits = model.prefill_forward(
        np.array([prompt], np.int32), np.array([[3, 7]], np.int32), enable_trace=False, empty_slots=[1]
    )
    expected = NumpyQwen2(checkpoint.config, checkpoint.tensor).logits(prompt)[-1]
    np.testing.assert_allclose(logits[0, -1], expected, rtol=1e-3, atol=1e-3)
    assert type(model.model) is Qwen2Model
    model.cleanup()


def test_checkpoints_of_another_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="model type 'qwen2' is not supported, only 'llama' is"):
        load_checkpoint(folder)
    for name in ("model.safetensors", "model-biases.safetensors"):
        (tmp_path / name).symlink_to(folder / name)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**settings, "use_sliding_window": True}))
    with pytest.raises(CheckpointError, match="use_sliding_window"):
        load_qwen2(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model-biases.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"self_attn\.q_proj\.bias is missing"):
        load_qwen2(tmp_path)
    assert "layers.0.bq" not in random_weights(tiny_config())


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["none", "all"])
def test_greedy_ids_equal_transformers(tmp_path: Path, mesh: Any, mode: str) -> None:
    def biased(name: str, parameter: Any) -> None:
        if name.endswith("bias"):
            parameter.normal_()

    theirs = save_tiny_model(tmp_path, "Qwen2", randomise=biased, tie_word_embeddings=False)
    llm = load(tmp_path, mesh, mode=mode, sampling=mode == "all")
    require_same_greedy_ids(llm, theirs)
    llm.cleanup()
