# SPDX-License-Identifier: Apache-2.0
"""The one form in which the model layer sees a checkpoint, whatever file it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llm_models.llama.config import LlamaConfig

FloatArray = npt.NDArray[np.float32]

LAYER_BIASES = ("bq", "bk", "bv")
"""Canonical names of the biases that families with biased query, key and value projections have in each layer."""

LAYER_HEAD_NORMS = ("q_norm", "k_norm")
"""Canonical names of the norms over each query and key head of families that have them in each layer."""

LAYER_WEIGHTS = ("attention_norm", "wq", "wk", "wv", "wo", "mlp_norm", "w_gate", "w_up", "w_down")
"""Canonical names of one layer's weights, used as `layers.<index>.<name>`."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one line and names the file and the part at fault."""


@dataclass(frozen=True, kw_only=True)
class BpeVocabulary:
    """A byte-level BPE vocabulary: tokens by id, merges in rank order, ids of control tokens, pre-tokenizer name."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    control_ids: tuple[int, ...]
    pre_tokenizer: str


@dataclass(frozen=True, kw_only=True)
class LlamaCheckpoint:
    """A Llama checkpoint whose weights are read one at a time.

    `tokenizer` is a vocabulary or the path of a `tokenizer.json`. `read` (owned; it keeps the mapped file open)
    gives a weight by its canonical name; use `tensor`, which checks name and shape.
    """

    path: Path
    config: LlamaConfig
    tokenizer: BpeVocabulary | Path
    chat_template: str | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    read: Callable[[str], FloatArray] = field(repr=False, compare=False)

    def tensor(self, name: str) -> FloatArray:
        """The weight `name` as float32, C-contiguous.

        Matrices are [output width, input width]; the rows of `wq` and `wk` (and of the biases `bq` and `bk`, and of
        the head norms) come in rotary pairs (2i, 2i+1) inside each head. Names: `token_embedding`,
        `layers.<index>.<name>` with a name of LAYER_WEIGHTS or, where the family has them, LAYER_BIASES or
        LAYER_HEAD_NORMS, `final_norm`, `lm_head` (the token embedding when they are tied). `CheckpointError` for an
        unknown or missing weight, or a wrong shape.
        """
        if name == "lm_head" and self.config.tied_embeddings:
            name = "token_embedding"
        expected = weight_shape(self.config, name)
        array = self.read(name)
        if array.shape != expected:
            raise CheckpointError(
                f"{self.path}: weight {name} has shape {array.shape}, expected {expected} from the configuration"
            )
        return np.ascontiguousarray(array, np.float32)


def weight_shape(config: LlamaConfig, name: str) -> tuple[int, ...]:
    """The shape of the canonical weight `name`; `CheckpointError` when there is no such weight."""
    query_width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    globals_ = {
        "token_embedding": (config.vocab_size, config.dim),
        "lm_head": (config.vocab_size, config.dim),
        "final_norm": (config.dim,),
    }
    of_layer = {
        "attention_norm": (config.dim,),
        "wq": (query_width, config.dim),
        "wk": (kv_width, config.dim),
        "wv": (kv_width, config.dim),
        "wo": (config.dim, query_width),
        "bq": (query_width,),
        "bk": (kv_width,),
        "bv": (kv_width,),
        "q_norm": (config.head_dim,),
        "k_norm": (config.head_dim,),
        "mlp_norm": (config.dim,),
        "w_gate": (config.ffn_dim, config.dim),
        "w_up": (config.ffn_dim, config.dim),
        "w_down": (config.dim, config.ffn_dim),
    }
    if name in globals_:
        return globals_[name]
    prefix, _, rest = name.partition(".")
    index, _, weight = rest.partition(".")
    if prefix != "layers" or not index.isdecimal() or int(index) >= config.n_layers or weight not in of_layer:
        raise CheckpointError(f"there is no weight named {name!r} in a Llama of {config.n_layers} layers")
    return of_layer[weight]


def weight_names(config: LlamaConfig) -> tuple[str, ...]:
    """Every canonical weight name of the model, in execution order; a tied `lm_head` is left out."""
    layers = (f"layers.{index}.{name}" for index in range(config.n_layers) for name in LAYER_WEIGHTS)
    head = () if config.tied_embeddings else ("lm_head",)
    return ("token_embedding", *layers, "final_norm", *head)
