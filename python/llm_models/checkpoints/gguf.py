# SPDX-License-Identifier: Apache-2.0
"""Read Llama checkpoints from GGUF files, through the `gguf` library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from llm_models.checkpoints.checkpoint import (
    BpeVocabulary,
    CheckpointError,
    FloatArray,
    LlamaCheckpoint,
    weight_names,
)
from llm_models.llama.config import LlamaConfig

SUPPORTED_TENSOR_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
SUPPORTED_PRE_TOKENIZERS = ("smollm", "gpt-2")
CONTROL_TOKEN = 3

_LAYER_NAMES = {
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
_GLOBAL_NAMES = {"token_embedding": "token_embd", "final_norm": "output_norm", "lm_head": "output"}
_ROPE_FACTORS = "rope_freqs.weight"


def load_gguf(path: str | Path) -> LlamaCheckpoint:
    """Open a Llama GGUF file. Metadata is read at once; weights are dequantised to float32 one by one when asked.

    `CheckpointError` when there is no such file, it is no GGUF, the architecture, tokenizer, rotary scaling or a
    tensor type is not supported, or a weight is missing.
    """
    path = Path(path)
    file = _GgufFile(path)
    architecture = file.text("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{path}: architecture {architecture!r} is not supported, only 'llama' is")
    config = _config(file)
    file.require_weights(config)
    return LlamaCheckpoint(
        path=path,
        config=config,
        tokenizer=_vocabulary(file),
        chat_template=file.optional("tokenizer.chat_template"),
        bos_id=file.optional("tokenizer.ggml.bos_token_id"),
        eos_ids=_eos_ids(file),
        pad_id=file.optional("tokenizer.ggml.padding_token_id"),
        read=file.weight,
    )


class _WholeArrayReader(gguf.GGUFReader):  # type: ignore[misc]
    """Reads each metadata array as one part.

    The library makes two array objects per string, which costs seconds for a vocabulary. Should it stop calling
    this helper, files are still read, only slowly: `_values` understands both forms.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        kind = gguf.GGUFValueType
        if raw_type != kind.ARRAY:
            result: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return result
        item_type = self._get(orig_offs, np.uint32)
        count = self._get(orig_offs + 4, np.uint64)
        start, items = orig_offs + 12, int(count[0])
        scalar = self.gguf_scalar_to_np.get(kind(item_type[0]))
        if scalar is not None:
            values = self._get(start, scalar, items)
            end = start + values.nbytes
        elif item_type[0] == kind.STRING:
            values, end = self._strings(start, items)
        else:
            result = super()._get_field_parts(orig_offs, raw_type)
            return result
        return end - orig_offs, [item_type, count, values], [2], [kind.ARRAY, kind(item_type[0])]

    def _strings(self, offset: int, count: int) -> tuple[np.ndarray[Any, Any], int]:
        order: Any = "big" if self.endianess == gguf.GGUFEndian.BIG else "little"
        data = memoryview(self.data)
        values = np.empty(count, object)
        for index in range(count):
            length = int.from_bytes(data[offset : offset + 8], order)
            end = offset + 8 + length
            if end > len(data):
                raise ValueError("a string runs past the end of the file")
            values[index] = str(data[offset + 8 : end], "utf-8")
            offset = end
        return values, offset


class _GgufFile:
    """Metadata and weights of an open GGUF file, with one-line errors that name it."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
        try:
            reader = _WholeArrayReader(path)
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise CheckpointError(f"{path}: not a readable GGUF file ({error})") from error
        self.path = path
        self._fields: dict[str, Any] = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def optional(self, key: str) -> Any:
        """The value of a metadata key (arrays as lists), or `None` when the file does not have it."""
        field = self._fields.get(key)
        return None if field is None else _values(field)

    def required(self, key: str) -> Any:
        """The value of a metadata key that must be there."""
        if key not in self._fields:
            raise CheckpointError(f"{self.path}: metadata key {key} is missing")
        return self.optional(key)

    def text(self, key: str) -> str:
        """A required metadata string."""
        return str(self.required(key))

    def has(self, tensor: str) -> bool:
        """Whether the file holds a tensor of this (file's own) name."""
        return tensor in self._tensors

    def rows(self, tensor: str) -> int:
        """The outermost size of a tensor that must be there."""
        return int(self._find(tensor).shape[-1])

    def require_weights(self, config: LlamaConfig) -> None:
        """Refuse missing weights and unsupported tensor types before anything is read."""
        for name in weight_names(config):
            tensor = self._find(_file_name(name))
            if tensor.tensor_type.name not in SUPPORTED_TENSOR_TYPES:
                raise CheckpointError(
                    f"{self.path}: tensor {tensor.name} has type {tensor.tensor_type.name}; "
                    f"supported are {', '.join(SUPPORTED_TENSOR_TYPES)}"
                )

    def weight(self, name: str) -> FloatArray:
        """The weight of canonical `name`, dequantised to float32."""
        return self.array(_file_name(name))

    def array(self, tensor: str) -> FloatArray:
        """A tensor by the file's own name, dequantised to float32."""
        found = self._find(tensor)
        return np.asarray(gguf.quants.dequantize(found.data, found.tensor_type), np.float32)

    def _find(self, name: str) -> Any:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: weight {name} is missing")
        return self._tensors[name]


def _values(field: Any) -> Any:
    part = field.parts[field.data[0]] if field.data else None
    if part is not None and part.dtype == object:
        return part.tolist()
    return field.contents()


def _file_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[name]}.weight"
    _, index, weight = name.split(".")
    return f"blk.{index}.{_LAYER_NAMES[weight]}.weight"


def _config(file: _GgufFile) -> LlamaConfig:
    required: Callable[[str], Any] = file.required
    n_heads = required("llama.attention.head_count")
    dim = required("llama.embedding_length")
    head_dim = file.optional("llama.attention.key_length") or dim // n_heads
    rotated = file.optional("llama.rope.dimension_count")
    if rotated not in (None, head_dim):
        raise CheckpointError(f"{file.path}: rotates {rotated} of {head_dim} head dimensions, not supported")
    scaling = file.optional("llama.rope.scaling.type")
    if scaling not in (None, "none"):
        raise CheckpointError(f"{file.path}: rotary scaling {scaling!r} is not supported in GGUF files")
    # Llama 3.1 and later store the divisors themselves instead of the parameters that lead to them.
    factors = file.array(_ROPE_FACTORS) if file.has(_ROPE_FACTORS) else None
    try:
        return LlamaConfig(
            dim=dim,
            n_layers=required("llama.block_count"),
            n_heads=n_heads,
            n_kv_heads=file.optional("llama.attention.head_count_kv") or n_heads,
            head_dim=head_dim,
            ffn_dim=required("llama.feed_forward_length"),
            vocab_size=file.rows("token_embd.weight"),
            rope_theta=file.optional("llama.rope.freq_base") or 10000.0,
            rms_eps=required("llama.attention.layer_norm_rms_epsilon"),
            max_context_len=required("llama.context_length"),
            tied_embeddings=not file.has("output.weight"),
            rope_factors=None if factors is None else tuple(float(factor) for factor in factors),
        )
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{file.path}: {error}") from error


def _vocabulary(file: _GgufFile) -> BpeVocabulary:
    model = file.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(f"{file.path}: tokenizer model {model!r} is not supported, only 'gpt2' is")
    pre_tokenizer = file.text("tokenizer.ggml.pre")
    if pre_tokenizer not in SUPPORTED_PRE_TOKENIZERS:
        raise CheckpointError(
            f"{file.path}: pre-tokenizer {pre_tokenizer!r} is not supported; "
            f"supported are {', '.join(SUPPORTED_PRE_TOKENIZERS)}"
        )
    types = file.required("tokenizer.ggml.token_type")
    return BpeVocabulary(
        tokens=tuple(file.required("tokenizer.ggml.tokens")),
        merges=tuple(file.required("tokenizer.ggml.merges")),
        control_ids=tuple(index for index, kind in enumerate(types) if kind == CONTROL_TOKEN),
        pre_tokenizer=pre_tokenizer,
    )


def _eos_ids(file: _GgufFile) -> tuple[int, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = (file.optional(key) for key in keys)
    return tuple(dict.fromkeys(int(value) for value in found if value is not None))
