# SPDX-License-Identifier: Apache-2.0
"""Tiny Llama checkpoints with random weights, in memory and as files, for the tests of the model layer."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llm_models.checkpoints import (
    BpeVocabulary,
    CheckpointError,
    LlamaCheckpoint,
    find_smollm2,
    load_gguf,
    weight_names,
    weight_shape,
)
from llm_models.llama.config import LlamaConfig

Array = npt.NDArray[np.float32]

GOLDEN_FILE = Path(__file__).resolve().parent.parent / "data" / "smollm2-greedy.json"


@functools.cache
def smollm2() -> LlamaCheckpoint:
    """The real small model; the test is skipped, saying how to install it, where it is absent."""
    try:
        return load_gguf(find_smollm2())
    except CheckpointError as error:
        pytest.skip(str(error))


@functools.cache
def golden() -> list[dict[str, Any]]:
    """Prompts with the ids that `transformers` gives greedily in float32: `prompt`, `prompt_ids`, `new_ids`, `text`."""
    cases: list[dict[str, Any]] = json.loads(GOLDEN_FILE.read_text(encoding="utf-8"))
    return cases


def tiny_config(**changes: Any) -> LlamaConfig:
    """Two layers, 4 query and 2 key heads of 32, width 64, vocabulary 256; any field may be changed."""
    fields: dict[str, Any] = {
        "dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 32,
        "ffn_dim": 96,
        "vocab_size": 256,
        "rope_theta": 10000.0,
        "rms_eps": 1e-5,
        "max_context_len": 1024,
        "tied_embeddings": True,
    }
    return LlamaConfig(**{**fields, **changes})


def random_weights(config: LlamaConfig, *, seed: int = 0) -> dict[str, Array]:
    """Weights by canonical name, scaled so that activations keep their size and logits spread."""
    generator = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name in weight_names(config):
        shape = weight_shape(config, name)
        values = generator.standard_normal(shape)
        if len(shape) == 1:
            values = 1.0 + 0.1 * values
        elif name != "token_embedding":
            values = values / np.sqrt(shape[-1])
        weights[name] = values.astype(np.float32)
    return weights


def tiny_checkpoint(config: LlamaConfig | None = None, *, seed: int = 0) -> LlamaCheckpoint:
    """A checkpoint over `random_weights` with a vocabulary of single bytes (ids 0 to 255)."""
    config = config or tiny_config()
    weights = random_weights(config, seed=seed)

    def read(name: str) -> Array:
        if name not in weights:
            raise CheckpointError(f"weight {name} is missing")
        return weights[name]

    return LlamaCheckpoint(
        path=Path("tiny"),
        config=config,
        tokenizer=BpeVocabulary(tokens=byte_tokens(), merges=(), control_ids=(), pre_tokenizer="gpt-2"),
        chat_template=None,
        bos_id=None,
        eos_ids=(),
        pad_id=None,
        read=read,
    )


def byte_tokens() -> tuple[str, ...]:
    """The 256 printable stand-ins that byte-level BPE uses for single bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable}
    stand_in.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return tuple(stand_in[byte] for byte in range(256))


def write_hf_folder(
    folder: Path,
    config: LlamaConfig,
    tensors: dict[str, tuple[str, npt.NDArray[Any]]],
    *,
    shards: int = 1,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write a folder in Hugging Face's layout; `tensors` maps file names to (type name, array)."""
    values = {
        "model_type": "llama",
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_dim,
        "vocab_size": config.vocab_size,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_eps,
        "max_position_embeddings": config.max_context_len,
        "tie_word_embeddings": config.tied_embeddings,
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
    }
    (folder / "config.json").write_text(json.dumps({**values, **(settings or {})}))
    names = sorted(tensors)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        write_safetensors(folder / file, part)
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_safetensors(path: Path, tensors: dict[str, tuple[str, npt.NDArray[Any]]]) -> None:
    """Write the safetensors format by hand: header length, JSON header, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, array) in tensors.items():
        offsets = [offset, offset + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        offset += array.nbytes
    text = json.dumps(header).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for _, array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
