# SPDX-License-Identifier: Apache-2.0
"""Qwen3 checkpoints in Hugging Face's layout."""

from __future__ import annotations

from pathlib import Path

from llm_models.checkpoints import LlamaCheckpoint
from llm_models.qwen2.checkpoint import load_qwen

__all__ = ["load_qwen3"]


def load_qwen3(folder: str | Path) -> LlamaCheckpoint:
    """Open a Qwen3 folder; errors as in `load_qwen`."""
    return load_qwen(folder, model_type="qwen3", head_norms=True)
