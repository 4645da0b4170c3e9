# SPDX-License-Identifier: Apache-2.0
"""Entry point of the bundle: the Llama of tt-llm-runtime under the name that the plugin looks up."""

from __future__ import annotations

from llm_models.llama.vllm import LlamaForCausalLM as TTLlamaForCausalLM

__all__ = ["TTLlamaForCausalLM"]
