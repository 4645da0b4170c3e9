# SPDX-License-Identifier: Apache-2.0
"""The Qwen3 tensor model: Llama's modules, with a norm over every query and key head before the rotation."""

from __future__ import annotations

from typing import Any

from llm_models.llama.attention import Attention
from llm_models.llama.feed_forward import RmsNorm
from llm_models.llama.model import LlamaModel
from llm_models.llama.model_config import AttentionConfig, ModuleConfig
from llm_models.llama.parts import AttentionKind
from llm_models.llama.rope import RopeSetup
from llm_models.llama.weights import DeviceWeights

__all__ = ["Qwen3Attention", "Qwen3Model"]


class Qwen3Attention(Attention):
    """Grouped-query attention whose heads are normed over `head_dim`: one norm for queries, one for keys."""

    def __init__(
        self,
        ns: Any,
        config: AttentionConfig,
        *,
        wqkv: Any,
        wo: Any,
        rope: RopeSetup,
        q_norm: RmsNorm,
        k_norm: RmsNorm,
    ) -> None:
        super().__init__(ns, config, wqkv=wqkv, wo=wo, rope=rope)
        self._q_norm = q_norm
        self._k_norm = k_norm

    def _before_rotation(self, q: Any, k: Any) -> tuple[Any, Any]:
        return self._norm_heads(q, self._q_norm), self._norm_heads(k, self._k_norm)

    def _norm_heads(self, heads: Any, norm: RmsNorm) -> Any:
        ns, placement = self._ns, heads.memory_config()
        if placement == ns.DRAM_MEMORY_CONFIG:
            normed = norm.forward(heads)
            ns.deallocate(heads)
            return normed
        # Norms of sharded rows need a program for their grid; heads of one token are small, so they take a detour.
        plain = ns.to_memory_config(heads, ns.DRAM_MEMORY_CONFIG)
        ns.deallocate(heads)
        normed = norm.decode_forward(plain)
        ns.deallocate(plain)
        sharded = ns.to_memory_config(normed, placement)
        ns.deallocate(normed)
        return sharded


def normed_attention(
    ns: Any, config: AttentionConfig, weights: DeviceWeights, at: str, rope: RopeSetup
) -> Qwen3Attention:
    """The attention of the layer whose weights stand below `at`."""
    module = ModuleConfig(decode_input_memcfg=ns.DRAM_MEMORY_CONFIG)

    def norm(name: str) -> RmsNorm:
        return RmsNorm(ns, module, weight=weights.norm(f"{at}.{name}"), epsilon=weights.architecture.rms_eps)

    return Qwen3Attention(
        ns,
        config,
        wqkv=weights.matrix(f"{at}.wq", f"{at}.wk", f"{at}.wv"),
        q_norm=norm("q_norm"),
        k_norm=norm("k_norm"),
        wo=weights.matrix(f"{at}.wo"),
        rope=rope,
    )


class Qwen3Model(LlamaModel):
    """A Qwen3 on one device; everything but the attention is Llama's."""

    attention_kind = AttentionKind(normed_attention, extra_weights=2)
