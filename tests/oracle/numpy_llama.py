# SPDX-License-Identifier: Apache-2.0
"""A slow, obvious Llama in NumPy: the reference for every faster form.

The whole sequence is computed at once in float32, with no cache, pages, batches or chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


class NumpyLlama:
    """Logits of whole sequences.

    `config` has the fields of `LlamaConfig`; `tensor` gives weights by canonical name. `half_split` says that the
    rows of the query and key projections are in Hugging Face's order instead of rotary pairs.
    """

    def __init__(self, config: Any, tensor: Callable[[str], Array], *, half_split: bool = False) -> None:
        self.config = config
        self.half_split = half_split
        self._tensor = tensor
        self._kept: dict[str, Array] = {}

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits [sequence, vocabulary] after each token of `tokens`."""
        x = self._weight("token_embedding")[np.asarray(tokens)]
        for index in range(self.config.n_layers):
            x = x + self._attention(index, self._norm(x, f"layers.{index}.attention_norm"))
            x = x + self._mlp(index, self._norm(x, f"layers.{index}.mlp_norm"))
        logits: Array = self._norm(x, "final_norm") @ self._weight("lm_head").T
        return logits

    def keys_and_values(self, tokens: Sequence[int]) -> list[tuple[Array, Array]]:
        """Rotated keys and values of each layer, both [kv heads, sequence, head size]."""
        x = self._weight("token_embedding")[np.asarray(tokens)]
        found = []
        for index in range(self.config.n_layers):
            normed = self._norm(x, f"layers.{index}.attention_norm")
            _, key, value = self._heads(index, normed)
            found.append((key.swapaxes(0, 1), value.swapaxes(0, 1)))
            x = x + self._attention(index, normed)
            x = x + self._mlp(index, self._norm(x, f"layers.{index}.mlp_norm"))
        return found

    def greedy(self, prompt: Sequence[int], *, max_new_tokens: int, eos_ids: Sequence[int] = ()) -> list[int]:
        """Greedy continuation, the whole sequence again for each token; includes the ending id."""
        new: list[int] = []
        while len(new) < max_new_tokens and not (new and new[-1] in eos_ids):
            new.append(int(self.logits([*prompt, *new])[-1].argmax()))
        return new

    def _attention(self, index: int, x: Array) -> Array:
        query, key, value = self._heads(index, x)
        length, group = len(x), self.config.n_heads // self.config.n_kv_heads
        future = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        heads = []
        for head in range(self.config.n_heads):
            scores = query[:, head] @ key[:, head // group].T / np.float32(np.sqrt(self.config.head_dim)) + future
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ value[:, head // group])
        mixed: Array = np.concatenate(heads, -1) @ self._weight(f"layers.{index}.wo").T
        return mixed

    def _heads(self, index: int, x: Array) -> tuple[Array, Array, Array]:
        def project(name: str, heads: int) -> Array:
            wide: Array = x @ self._weight(f"layers.{index}.{name}").T
            return wide.reshape(len(x), heads, self.config.head_dim)

        query = project("wq", self.config.n_heads)
        key = project("wk", self.config.n_kv_heads)
        return self._rotate(query), self._rotate(key), project("wv", self.config.n_kv_heads)

    def _rotate(self, x: Array) -> Array:
        size = self.config.head_dim
        frequency = self.config.rope_theta ** (-np.arange(0, size, 2) / size)
        if self.config.rope_factors is not None:
            frequency = frequency / np.asarray(self.config.rope_factors)
        angle = np.arange(len(x))[:, None, None] * frequency
        turn = np.exp(1j * angle)
        if self.half_split:
            turned = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turn
            return np.concatenate([turned.real, turned.imag], -1).astype(np.float32)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape).astype(np.float32)

    def _mlp(self, index: int, x: Array) -> Array:
        gate = x @ self._weight(f"layers.{index}.w_gate").T
        up = x @ self._weight(f"layers.{index}.w_up").T
        down: Array = (gate / (1 + np.exp(-gate)) * up) @ self._weight(f"layers.{index}.w_down").T
        return down

    def _norm(self, x: Array, name: str) -> Array:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.config.rms_eps))
        normed: Array = x / scale * self._weight(name)
        return normed

    def _weight(self, name: str) -> Array:
        if name not in self._kept:
            self._kept[name] = self._tensor(name)
        return self._kept[name]
