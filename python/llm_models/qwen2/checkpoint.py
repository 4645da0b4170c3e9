# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Qwen2, and what all Qwen families have in common, in Hugging Face's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_models.checkpoints import CheckpointError, LlamaCheckpoint, load_safetensors

__all__ = ["load_qwen", "load_qwen2"]


def load_qwen2(folder: str | Path) -> LlamaCheckpoint:
    """Open a Qwen2 folder; errors as in `load_qwen`."""
    return load_qwen(folder, model_type="qwen2", attention_biases=True)


def load_qwen(folder: str | Path, *, model_type: str, **features: Any) -> LlamaCheckpoint:
    """Open a folder with what `load_safetensors` knows of the family.

    Errors are `CheckpointError`, also for windowed attention, which is not supported.
    """
    checkpoint = load_safetensors(folder, model_type=model_type, **features)
    settings = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    if settings.get("use_sliding_window"):
        raise CheckpointError(f"{folder}: windowed attention (use_sliding_window) is not supported")
    return checkpoint
