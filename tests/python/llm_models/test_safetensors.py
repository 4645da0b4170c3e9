# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: types, shards, rotary row order and scaling, and one-line errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from llm_models.checkpoints import CheckpointError, load_checkpoint, load_safetensors
from llm_models.llama.config import Llama3RopeScaling
from oracle.numpy_llama import NumpyLlama
from support.llama import random_weights, tiny_config, write_hf_folder

LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}
GLOBAL_NAMES = {"token_embedding": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}
TYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def hf_tensors(
    weights: dict[str, npt.NDArray[np.float32]], kind: str = "F32"
) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """Half-split weights by canonical name -> the folder's tensors."""
    named = {}
    for name, array in weights.items():
        *layer, weight = name.split(".")
        prefix = f"model.layers.{layer[1]}.{LAYER_NAMES[weight]}" if layer else GLOBAL_NAMES[weight]
        named[f"{prefix}.weight"] = (kind, array.astype(TYPES[kind]))
    return named


@pytest.mark.parametrize("heads", [(4, 2), (9, 3)])
def test_half_split_weights_give_the_same_logits_in_pair_order(tmp_path: Path, heads: tuple[int, int]) -> None:
    config = tiny_config(n_heads=heads[0], n_kv_heads=heads[1])
    weights = random_weights(config)
    write_hf_folder(tmp_path, config, hf_tensors(weights))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.config == config
    tokens = list(range(3, 200, 11))
    expected = NumpyLlama(config, lambda name: weights[_tied(name)], half_split=True).logits(tokens)
    np.testing.assert_allclose(NumpyLlama(config, checkpoint.tensor).logits(tokens), expected, rtol=1e-4, atol=1e-4)
    wrong_order = NumpyLlama(config, lambda name: weights[_tied(name)]).logits(tokens)
    assert np.abs(wrong_order - expected).max() > 0.1


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_types_are_read_exactly(tmp_path: Path, kind: str) -> None:
    config = tiny_config(tied_embeddings=False)
    weights = random_weights(config)
    write_hf_folder(tmp_path, config, hf_tensors(weights, kind))
    checkpoint = load_safetensors(tmp_path)
    for name in ("token_embedding", "layers.1.w_down", "final_norm", "lm_head"):
        expected = weights[name].astype(TYPES[kind]).astype(np.float32)
        read = checkpoint.tensor(name)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, expected)


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    config = tiny_config()
    weights = random_weights(config)
    write_hf_folder(tmp_path, config, hf_tensors(weights), shards=3)
    checkpoint = load_safetensors(tmp_path)
    np.testing.assert_array_equal(checkpoint.tensor("layers.1.w_up"), weights["layers.1.w_up"])
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors: no such file"):
        load_safetensors(tmp_path)


def test_special_ids_template_and_tokenizer_path(tmp_path: Path) -> None:
    config = tiny_config()
    write_hf_folder(tmp_path, config, hf_tensors(random_weights(config)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    checkpoint = load_safetensors(tmp_path)
    assert (checkpoint.bos_id, checkpoint.eos_ids, checkpoint.chat_template) == (1, (2, 3), "{{ messages }}")
    assert checkpoint.tokenizer == tmp_path / "tokenizer.json"
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    (tmp_path / "chat_template.jinja").write_text("newer")
    checkpoint = load_safetensors(tmp_path)
    assert (checkpoint.eos_ids, checkpoint.chat_template) == ((9,), "newer")


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_llama3_rope_scaling_follows_its_definition(tmp_path: Path) -> None:
    config = tiny_config()
    write_hf_folder(tmp_path, config, hf_tensors(random_weights(config)), settings={"rope_scaling": LLAMA3_ROPE})
    factors = load_safetensors(tmp_path).config.rope_factors
    assert factors is not None
    for pair, factor in enumerate(factors):
        frequency = config.rope_theta ** (-2 * pair / config.head_dim)
        wavelength = 2 * math.pi / frequency
        if wavelength < 64 / 4:
            expected = frequency
        elif wavelength > 64:
            expected = frequency / 8
        else:
            share = (64 / wavelength - 1) / (4 - 1)
            expected = (1 - share) * frequency / 8 + share * frequency
        assert frequency / factor == pytest.approx(expected, rel=1e-12)
    assert factors[0] == 1.0
    assert factors[-1] == 8.0
    assert 1.0 < sorted(set(factors))[1] < 8.0


def test_rope_scaling_limits_must_be_ordered() -> None:
    with pytest.raises(ValueError, match="low_frequency_factor"):
        Llama3RopeScaling(factor=8, low_frequency_factor=4, high_frequency_factor=4, original_context_len=64)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "qwen2"}, ["model type", "'qwen2'"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rotary scaling", "'linear'"]),
        ({"rope_scaling": {"rope_type": "llama3"}}, ["config.json has no factor"]),
        ({"attention_bias": True}, ["bias"]),
        ({"num_key_value_heads": 3}, ["n_heads 4", "n_kv_heads 3"]),
    ],
)
def test_unsupported_settings_are_refused(tmp_path: Path, settings: dict[str, Any], words: list[str]) -> None:
    config = tiny_config()
    write_hf_folder(tmp_path, config, hf_tensors(random_weights(config)), settings=settings)
    with pytest.raises(CheckpointError) as error:
        load_safetensors(tmp_path)
    for word in words:
        assert word in str(error.value)


def test_missing_weight_and_unsupported_type_are_named(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = hf_tensors(random_weights(config))
    removed = tensors.pop("model.layers.1.mlp.up_proj.weight")
    write_hf_folder(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load_safetensors(tmp_path)
    tensors["model.layers.1.mlp.up_proj.weight"] = ("I8", removed[1].astype(np.int8))
    write_hf_folder(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight has type I8"):
        load_safetensors(tmp_path)


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = hf_tensors(random_weights(config))
    tensors["model.layers.0.self_attn.q_proj.weight"] = ("F32", np.zeros((100, 64), np.float32))
    write_hf_folder(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match=r"layers\.0\.wq has shape \(100, 64\), expected \(128, 64\)"):
        load_safetensors(tmp_path).tensor("layers.0.wq")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load_safetensors(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        load_safetensors(tmp_path)
    config = tiny_config()
    write_hf_folder(tmp_path, config, hf_tensors(random_weights(config)))
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    for bad in (b"", b"\x08", content[:-8]):
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            load_safetensors(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        load_safetensors(tmp_path)


def _tied(name: str) -> str:
    return "token_embedding" if name == "lm_head" else name
