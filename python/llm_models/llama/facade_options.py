# SPDX-License-Identifier: Apache-2.0
"""Options of one `generate` call: what the call says, then the checkpoint, then defaults. Chapter 40, E.2."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_runtime._validation import require_bool

__all__ = ["UNSET", "GenerationConfig", "GenerationOptions", "resolve_options"]

#: Stands for an argument that was not given, where `None` means something.
UNSET: Any = object()

DEFAULT_NEW_TOKENS = 128

#: Options of other generation libraries with the value that changes nothing; any other value cannot be honoured.
_NEUTRAL: dict[str, Any] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "diversity_penalty": 0.0,
    "length_penalty": 1.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "early_stopping": False,
}
#: What describes a checkpoint or is read here; everything else has to be absent, `None` or false.
_READ = {
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "max_new_tokens",
    "max_length",
    "eos_token_id",
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
    "transformers_version",
    "use_cache",
}


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Defaults of a checkpoint for `generate`. `unsupported` lists its options that cannot be honoured."""

    max_new_tokens: int = DEFAULT_NEW_TOKENS
    do_sample: bool = False
    temperature: float = 0.0
    top_k: int = 50
    top_p: float = 1.0
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    unsupported: tuple[str, ...] = ()

    @classmethod
    def of(cls, checkpoint: Any) -> GenerationConfig:
        """The `generation_config.json` of a checkpoint folder, or what its model configuration gives."""
        special = {"eos_token_ids": tuple(checkpoint.eos_ids), "pad_token_id": checkpoint.pad_id}
        path = Path(checkpoint.path) / "generation_config.json"
        if not path.is_file():
            return cls(**special)
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            max_new_tokens=values.get("max_new_tokens") or DEFAULT_NEW_TOKENS,
            do_sample=bool(values.get("do_sample", False)),
            temperature=1.0 if values.get("temperature") is None else values["temperature"],
            top_k=50 if values.get("top_k") is None else values["top_k"],
            top_p=1.0 if values.get("top_p") is None else values["top_p"],
            unsupported=tuple(sorted(name for name, value in values.items() if not _changes_nothing(name, value))),
            **special,
        )


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """One call's options. `pad` fills rows that ended; `configured_pad` is what a prompt may be padded with."""

    max_new_tokens: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    eos_ids: frozenset[int]
    pad: int
    configured_pad: int | None


def resolve_options(
    config: GenerationConfig,
    *,
    vocab_size: int,
    max_new_tokens: Any,
    do_sample: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    eos_token_id: Any,
    pad_token_id: Any,
) -> GenerationOptions:
    """Fill `None` (for `eos_token_id`: `UNSET`) from `config` and check: `ValueError`, or `TypeError` for a flag."""
    sample = config.do_sample if do_sample is None else require_bool(do_sample, name="do_sample")
    heat = config.temperature if temperature is None else temperature
    if isinstance(heat, bool) or not isinstance(heat, (int, float)) or not math.isfinite(heat):
        raise ValueError(f"temperature must be a finite number, got {heat!r}")
    if sample and heat <= 0:
        raise ValueError(f"temperature must be above 0 when sampling, got {heat}")
    limit = config.top_p if top_p is None else top_p
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {limit!r}")
    ended = _ids(config.eos_token_ids if eos_token_id is UNSET else eos_token_id, vocab_size)
    padding = config.pad_token_id if pad_token_id is None else pad_token_id
    if padding is not None:
        _token("pad_token_id", padding, vocab_size)
    return GenerationOptions(
        max_new_tokens=_count("max_new_tokens", config.max_new_tokens if max_new_tokens is None else max_new_tokens),
        do_sample=sample,
        temperature=float(heat),
        top_k=_count("top_k", config.top_k if top_k is None else top_k),
        top_p=float(limit),
        eos_ids=frozenset(ended),
        pad=padding if padding is not None else (ended[0] if ended else 0),
        configured_pad=padding,
    )


def _changes_nothing(name: str, value: Any) -> bool:
    if name in _READ or name.startswith("_") or value is None or value is False:
        return True
    return name in _NEUTRAL and bool(value == _NEUTRAL[name])


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be an int of at least 0, got {value!r}")
    return value


def _ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    values = () if value is None else (value,) if isinstance(value, int) else value
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"eos_token_id must be an int, a list of them or None, got {value!r}")
    for token in values:
        _token("eos_token_id", token, vocab_size)
    return tuple(dict.fromkeys(values))


def _token(name: str, value: Any, vocab_size: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise ValueError(f"{name} {value!r} is no token id of a vocabulary of {vocab_size}")
