# SPDX-License-Identifier: Apache-2.0
"""Qwen3 checkpoints in Hugging Face's layout."""

from __future__ import annotations

import json
from pathlib import Path

from llm_models.checkpoints import CheckpointError, LlamaCheckpoint, load_safetensors

__all__ = ["load_qwen3"]


def load_qwen3(folder: str | Path) -> LlamaCheckpoint:
    """Open a Qwen3 folder; errors are `CheckpointError`, also for windowed attention, which is not supported."""
    checkpoint = load_safetensors(folder, model_type="qwen3", head_norms=True)
    settings = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    if settings.get("use_sliding_window"):
        raise CheckpointError(f"{folder}: windowed attention (use_sliding_window) is not supported")
    return checkpoint
