# SPDX-License-Identifier: Apache-2.0
"""Norms, gated feed-forward and output head of a Llama. Op forms follow chapter 40, section F."""

from __future__ import annotations

from typing import Any

from llm_models.llama.model_config import ModuleConfig


class RmsNorm:
    """Root-mean-square norm over the last dimension; the weight is borrowed, the input is not freed."""

    def __init__(self, ns: Any, config: ModuleConfig, *, weight: Any, epsilon: float) -> None:
        self.config = config
        self._ns = ns
        self._weight = weight
        self._epsilon = epsilon

    def forward(self, x: Any) -> Any:
        """[1, 1, rows, dim] -> the same."""
        ns = self._ns
        return ns.rms_norm(x, epsilon=self._epsilon, weight=self._weight, memory_config=ns.DRAM_MEMORY_CONFIG)

    def decode_forward(self, x: Any) -> Any:
        """The same as `forward`, under the name that input checks look for."""
        return self.forward(x)


class FeedForward:
    """down(silu(gate(x)) * up(x)); weights are borrowed, the input is not freed."""

    def __init__(self, ns: Any, config: ModuleConfig, *, gate: Any, up: Any, down: Any) -> None:
        self.config = config
        self._ns = ns
        self._gate = gate
        self._up = up
        self._down = down

    def forward(self, x: Any) -> Any:
        """[1, 1, rows, dim] -> the same."""
        ns = self._ns
        options = {"dtype": ns.bfloat16, "memory_config": ns.DRAM_MEMORY_CONFIG}
        gate = ns.linear(x, self._gate, **options)
        up = ns.linear(x, self._up, **options)
        product = ns.mul(gate, up, input_tensor_a_activations=[ns.UnaryOpType.SILU], **options)
        ns.deallocate(gate)
        ns.deallocate(up)
        result = ns.linear(product, self._down, **options)
        ns.deallocate(product)
        return result

    def decode_forward(self, x: Any) -> Any:
        """The same as `forward`, under the name that input checks look for."""
        return self.forward(x)


class LmHead:
    """Hidden states to logits; the weight is borrowed, the input is not freed."""

    def __init__(self, ns: Any, config: ModuleConfig, *, weight: Any) -> None:
        self.config = config
        self._ns = ns
        self._weight = weight

    def forward(self, x: Any) -> Any:
        """[1, 1, rows, dim] -> [1, 1, rows, vocabulary]."""
        ns = self._ns
        return ns.linear(x, self._weight, dtype=ns.bfloat16, memory_config=ns.DRAM_MEMORY_CONFIG)

    def decode_forward(self, x: Any) -> Any:
        """The same as `forward`, under the name that input checks look for."""
        return self.forward(x)
