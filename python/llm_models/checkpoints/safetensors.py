# SPDX-License-Identifier: Apache-2.0
"""Read Llama checkpoints from a folder in Hugging Face's layout, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from llm_models.checkpoints.checkpoint import (
    LAYER_BIASES,
    LAYER_HEAD_NORMS,
    CheckpointError,
    FloatArray,
    LlamaCheckpoint,
    weight_names,
)
from llm_models.llama.config import Llama3RopeScaling, LlamaConfig

SUPPORTED_TENSOR_TYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}

_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}
_BIAS_NAMES = {"bq": "self_attn.q_proj", "bk": "self_attn.k_proj", "bv": "self_attn.v_proj"}
_GLOBAL_NAMES = {"token_embedding": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}


def load_safetensors(
    folder: str | Path, *, model_type: str = "llama", attention_biases: bool = False, head_norms: bool = False
) -> LlamaCheckpoint:
    """Open a folder with `config.json` and `*.safetensors` (one file, or shards with their index).

    Weights are mapped and converted to float32 one by one when asked; rows of the query and key projections are
    brought from half-split to rotary-pair order. `CheckpointError` when a file is missing or unreadable, the
    architecture, rotary scaling or a tensor type is not supported, or a weight is missing.

    Families that are a Llama but for small changes name their `model_type`; with `attention_biases` the query, key and
    value projections must have biases, with `head_norms` each layer norms over the heads of queries and keys.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    settings = _read_json(folder / "config.json")
    config = _config(folder, settings, model_type)
    weights = _Weights(folder, config)
    weights.require_all((LAYER_BIASES if attention_biases else ()) + (LAYER_HEAD_NORMS if head_norms else ()))
    generation = folder / "generation_config.json"
    special = {**settings, **(_read_json(generation) if generation.is_file() else {})}
    tokenizer_settings = folder / "tokenizer_config.json"
    named = _read_json(tokenizer_settings) if tokenizer_settings.is_file() else {}
    return LlamaCheckpoint(
        path=folder,
        config=config,
        tokenizer=folder / "tokenizer.json",
        chat_template=_chat_template(folder, named),
        bos_id=special.get("bos_token_id"),
        eos_ids=_as_ids(special.get("eos_token_id")),
        pad_id=special.get("pad_token_id"),
        read=weights.read,
    )


class _Weights:
    """The tensors of all safetensors files of a folder, mapped."""

    def __init__(self, folder: Path, config: LlamaConfig) -> None:
        self._folder = folder
        self._config = config
        self._entries: dict[str, tuple[np.ndarray[Any, Any], dict[str, Any]]] = {}
        for path in _weight_files(folder):
            data, header = _map_file(path)
            for name, entry in header.items():
                self._entries[name] = (data, entry)

    def require_all(self, of_layers: Sequence[str]) -> None:
        """Refuse missing weights, those of the family in each layer too, and unsupported tensor types."""
        extra = [f"layers.{index}.{name}" for index in range(self._config.n_layers) for name in of_layers]
        for name in (*weight_names(self._config), *extra):
            file_name = _file_name(name)
            if file_name not in self._entries:
                raise CheckpointError(f"{self._folder}: weight {file_name} is missing")
            kind = self._entries[file_name][1]["dtype"]
            if kind not in SUPPORTED_TENSOR_TYPES:
                raise CheckpointError(
                    f"{self._folder}: tensor {file_name} has type {kind}; "
                    f"supported are {', '.join(SUPPORTED_TENSOR_TYPES)}"
                )

    def read(self, name: str) -> FloatArray:
        """The weight of canonical `name` as float32."""
        data, entry = self._entries[_file_name(name)]
        begin, end = entry["data_offsets"]
        values = data[begin:end].view(SUPPORTED_TENSOR_TYPES[entry["dtype"]])
        array: FloatArray = values.reshape(entry["shape"]).astype(np.float32)
        if name.endswith((".wq", ".wk")) and array.ndim == 2:
            return pair_rows(array, self._config.head_dim)
        if name.endswith((".bq", ".bk", ".q_norm", ".k_norm")):
            return pair_rows(array.reshape(-1, 1), self._config.head_dim).reshape(-1)
        return array


def pair_rows(weight: FloatArray, head_dim: int) -> FloatArray:
    """Reorder rows of a projection from half-split (i, i + head_dim/2) to pairs (2i, 2i+1) inside each head."""
    rows, columns = weight.shape
    if rows % head_dim:
        return weight  # the caller's shape check names the fault
    halves = weight.reshape(rows // head_dim, 2, head_dim // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(_read_json(index)["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no *.safetensors file")
    for path in files:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file, though the index names it")
    return files


def _map_file(path: Path) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    try:
        data = np.memmap(path, np.uint8, "r")
        length = int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8 : 8 + length].tobytes())
        header.pop("__metadata__", None)
        body = data[8 + length :]
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from error
    if end > body.size:
        raise CheckpointError(f"{path}: truncated, {body.size} data bytes of {end}")
    return body, header


def _file_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[name]}.weight"
    _, index, weight = name.split(".")
    if weight in _BIAS_NAMES:
        return f"model.layers.{index}.{_BIAS_NAMES[weight]}.bias"
    return f"model.layers.{index}.{_LAYER_NAMES[weight]}.weight"


def _config(folder: Path, settings: dict[str, Any], model_type: str) -> LlamaConfig:
    kind = settings.get("model_type")
    if kind != model_type:
        raise CheckpointError(f"{folder}: model type {kind!r} is not supported, only {model_type!r} is")
    if settings.get("attention_bias") or settings.get("mlp_bias"):
        raise CheckpointError(f"{folder}: projections with a bias are not supported")
    try:
        n_heads, dim = settings["num_attention_heads"], settings["hidden_size"]
        head_dim = settings.get("head_dim") or dim // n_heads
        # Newer folders keep base and scaling together in rope_parameters.
        rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
        theta = settings.get("rope_theta") or rope.get("rope_theta") or 10000.0
        return LlamaConfig(
            dim=dim,
            n_layers=settings["num_hidden_layers"],
            n_heads=n_heads,
            n_kv_heads=settings.get("num_key_value_heads") or n_heads,
            head_dim=head_dim,
            ffn_dim=settings["intermediate_size"],
            vocab_size=settings["vocab_size"],
            rope_theta=theta,
            rms_eps=settings["rms_norm_eps"],
            max_context_len=settings["max_position_embeddings"],
            tied_embeddings=bool(settings.get("tie_word_embeddings", False)),
            rope_factors=_rope_factors(folder, rope, theta, head_dim),
        )
    except CheckpointError:
        raise
    except KeyError as error:
        raise CheckpointError(f"{folder}: config.json has no {error.args[0]}") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{folder}: {error}") from error


def _rope_factors(folder: Path, rope: dict[str, Any], theta: float, head_dim: int) -> tuple[float, ...] | None:
    kind = rope.get("rope_type", rope.get("type"))
    if kind in (None, "default"):
        return None
    if kind != "llama3":
        raise CheckpointError(f"{folder}: rotary scaling {kind!r} is not supported, only 'llama3' is")
    scaling = Llama3RopeScaling(
        factor=rope["factor"],
        low_frequency_factor=rope["low_freq_factor"],
        high_frequency_factor=rope["high_freq_factor"],
        original_context_len=rope["original_max_position_embeddings"],
    )
    return scaling.rope_factors(rope_theta=theta, head_dim=head_dim)


def _chat_template(folder: Path, named: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = named.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not readable JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return value


def _as_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
