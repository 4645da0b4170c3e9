# SPDX-License-Identifier: Apache-2.0
"""Greedy ids of a family against transformers' own `generate`, on random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: A tiny model of any family that transformers has.
TINY = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "eos_token_id": 250,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}


def save_tiny_model(folder: Path, family: str, *, randomise: Callable[[str, Any], None], **settings: Any) -> Any:
    """A tiny model of `family` ("Qwen2" …) with random weights, saved to `folder`; skips without transformers.

    `randomise(name, parameter)` changes what the family initialises to a constant.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    config = getattr(transformers, f"{family}Config")(**{**TINY, **settings})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            randomise(name, parameter)
    model.save_pretrained(folder)
    return model


def require_same_greedy_ids(llm: Any, theirs: Any) -> None:
    """Both generate 20 tokens for three prompts of 50, one of them padded on the left."""
    import torch

    ids = torch.randint(1, 250, (3, 50))
    mask = torch.ones_like(ids)
    ids[1, :20], mask[1, :20] = 0, 0
    with torch.no_grad():
        expected = theirs.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert torch.equal(llm.generate(ids, mask, max_new_tokens=20, eos_token_id=None), expected)
