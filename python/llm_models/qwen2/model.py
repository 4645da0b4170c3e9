# SPDX-License-Identifier: Apache-2.0
"""The Qwen2 tensor model: Llama's modules, with a bias behind the fused query, key and value projection."""

from __future__ import annotations

from typing import Any

from llm_models.llama.attention import Attention
from llm_models.llama.model import LlamaModel
from llm_models.llama.model_config import AttentionConfig
from llm_models.llama.parts import AttentionKind
from llm_models.llama.rope import RopeSetup
from llm_models.llama.weights import DeviceWeights

__all__ = ["Qwen2Attention", "Qwen2Model"]


class Qwen2Attention(Attention):
    """Grouped-query attention with a bias of [1, 1, 1, all heads] (borrowed) on queries, keys and values."""

    def __init__(self, ns: Any, config: AttentionConfig, *, wqkv: Any, bqkv: Any, wo: Any, rope: RopeSetup) -> None:
        super().__init__(ns, config, wqkv=wqkv, wo=wo, rope=rope)
        self._bqkv = bqkv

    def _project(self, x: Any, weight: Any) -> Any:
        if weight is not self._wqkv:
            return super()._project(x, weight)
        ns = self._ns
        return ns.linear(x, weight, bias=self._bqkv, dtype=ns.bfloat16, memory_config=ns.DRAM_MEMORY_CONFIG)


def biased_attention(
    ns: Any, config: AttentionConfig, weights: DeviceWeights, at: str, rope: RopeSetup
) -> Qwen2Attention:
    """The attention of the layer whose weights stand below `at`."""
    return Qwen2Attention(
        ns,
        config,
        wqkv=weights.matrix(f"{at}.wq", f"{at}.wk", f"{at}.wv"),
        bqkv=weights.row(f"{at}.bq", f"{at}.bk", f"{at}.bv"),
        wo=weights.matrix(f"{at}.wo"),
        rope=rope,
    )


class Qwen2Model(LlamaModel):
    """A Qwen2 on one device; everything but the attention is Llama's."""

    attention_kind = AttentionKind(biased_attention, extra_weights=1)
