# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: GGUF files and Hugging Face folders, read into one form."""

from __future__ import annotations

from pathlib import Path

from llm_models.checkpoints.checkpoint import (
    BpeVocabulary,
    CheckpointError,
    LlamaCheckpoint,
    weight_names,
    weight_shape,
)
from llm_models.checkpoints.gguf import load_gguf
from llm_models.checkpoints.safetensors import load_safetensors
from llm_models.checkpoints.smollm2 import find_smollm2

__all__ = [
    "BpeVocabulary",
    "CheckpointError",
    "LlamaCheckpoint",
    "find_smollm2",
    "load_checkpoint",
    "load_gguf",
    "load_safetensors",
    "weight_names",
    "weight_shape",
]


def load_checkpoint(path: str | Path) -> LlamaCheckpoint:
    """Open a checkpoint: a folder as Hugging Face layout, a file as GGUF. Errors are `CheckpointError`."""
    return load_safetensors(path) if Path(path).is_dir() else load_gguf(path)
