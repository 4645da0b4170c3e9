# SPDX-License-Identifier: Apache-2.0
"""The Qwen2 class that a vLLM server registers as `TTQwen2ForCausalLM`; importing it opens no device."""

from __future__ import annotations

from pathlib import Path

from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.vllm import LlamaForCausalLM
from llm_models.qwen2.checkpoint import load_qwen2
from llm_models.qwen2.model import Qwen2Model

__all__ = ["Qwen2ForCausalLM"]


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 for a vLLM server; everything but the model and its checkpoints is as in `LlamaForCausalLM`."""

    model_type = Qwen2Model

    @staticmethod
    def load_checkpoint(path: Path) -> LlamaCheckpoint:
        """Open the Qwen2 folder at `path`."""
        return load_qwen2(path)
