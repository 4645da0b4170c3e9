# SPDX-License-Identifier: Apache-2.0
"""Qwen3: norms over query and key heads, an explicit head size, and an output head that may be tied."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llm_models.checkpoints import CheckpointError, load_checkpoint
from llm_models.qwen3.checkpoint import load_qwen3
from llm_models.qwen3.model import Qwen3Model
from llm_models.qwen3.vllm import Qwen3ForCausalLM
from oracle.numpy_llama import NumpyLlama
from support.qwen3 import NumpyQwen3, load_llm, write_qwen3
from support.transformers_ids import require_same_greedy_ids, save_tiny_model

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3(tmp_path_factory.mktemp("tiny-qwen3"))


def test_the_family_is_short() -> None:
    paths = (ROOT / "python/llm_models/qwen3").glob("*.py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths) < 200


@pytest.mark.parametrize(("mode", "sampling"), [("none", False), ("decode_only", True), ("all", True)])
def test_greedy_text_follows_the_normed_reference(folder: Path, mesh: Any, mode: str, sampling: bool) -> None:
    normed, checkpoint = NumpyQwen3(folder), load_qwen3(folder)
    plain = NumpyLlama(checkpoint.config, checkpoint.tensor)
    llm = load_llm(folder, mesh, mode=mode, sampling=sampling)
    prompts = [[5, 9, 200, 31], [(7 * index) % 256 for index in range(70)]]
    ids = np.zeros((2, 70), np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, 70 - len(prompt) :], mask[row, 70 - len(prompt) :] = prompt, 1
    grown = llm.generate(ids, mask, max_new_tokens=10, eos_token_id=None)
    for row, prompt in enumerate(prompts):
        assert grown[row, 70:].tolist() == normed.greedy(prompt, max_new_tokens=10)
        assert grown[row, 70:].tolist() != plain.greedy(prompt, max_new_tokens=10)
    llm.cleanup()


@pytest.mark.parametrize("tied", [False, True])
def test_a_server_drives_it(tmp_path: Path, mesh: Any, tied: bool) -> None:
    folder = write_qwen3(tmp_path, tie_word_embeddings=tied)
    model = Qwen3ForCausalLM.initialize_vllm_model(SimpleNamespace(_name_or_path=str(folder)), mesh, 2, 256)
    model.allocate_kv_cache((16, 2, 32, 32), ml_dtypes.bfloat16, 2)
    prompt = [(11 * index) % 256 for index in range(40)]
    logits = model.prefill_forward(
        np.array([prompt], np.int32), np.array([[3, 7]], np.int32), enable_trace=False, empty_slots=[1]
    )
    expected = NumpyQwen3(folder, tied=tied).logits(prompt)[-1]
    np.testing.assert_allclose(logits[0, -1], expected, rtol=1e-3, atol=1e-3)
    assert type(model.model) is Qwen3Model
    model.cleanup()


def test_progress_counts_the_head_norms(folder: Path, mesh: Any) -> None:
    seen: list[tuple[int, int]] = []
    model = Qwen3Model.from_checkpoint(
        load_qwen3(folder),
        mesh,
        max_batch_size=1,
        max_seq_len=64,
        block_size=32,
        max_num_blocks=8,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (21, 21) and [done for done, _ in seen] == list(range(1, 22))
    model.release()


def test_checkpoints_of_another_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="model type 'qwen3' is not supported, only 'llama' is"):
        load_checkpoint(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name in ("model.safetensors", "model-norms.safetensors"):
        (tmp_path / name).symlink_to(folder / name)
    for changes, words in (
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"attention_bias": True}, "projections with a bias are not supported"),
        ({"model_type": "qwen2"}, "model type 'qwen2' is not supported, only 'qwen3' is"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**settings, **changes}))
        with pytest.raises(CheckpointError, match=words):
            load_qwen3(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model-norms.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"self_attn\.q_norm\.weight is missing"):
        load_qwen3(tmp_path)


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["none", "all"])
@pytest.mark.parametrize("tied", [False, True])
def test_greedy_ids_equal_transformers(tmp_path: Path, mesh: Any, mode: str, tied: bool) -> None:
    def normed(name: str, parameter: Any) -> None:
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.normal_(mean=1.5, std=0.8)

    theirs = save_tiny_model(tmp_path, "Qwen3", randomise=normed, head_dim=64, tie_word_embeddings=tied)
    llm = load_llm(tmp_path, mesh, mode=mode, sampling=mode == "all")
    require_same_greedy_ids(llm, theirs)
    llm.cleanup()
