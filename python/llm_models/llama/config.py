# SPDX-License-Identifier: Apache-2.0
"""Hyper-parameters of a Llama checkpoint, and how its rotary frequencies may be scaled."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """What a Llama checkpoint says about its own architecture.

    Sizes are counts of elements. `rope_factors`, one per rotary pair, divide the frequencies
    `rope_theta ** (-2 i / head_dim)`; `None` leaves them as they are. `tied_embeddings` means that the output head
    is the token embedding. `ValueError` names the field that is no positive number or does not fit another one.
    """

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    rope_theta: float
    rms_eps: float
    max_context_len: int
    tied_embeddings: bool
    rope_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{name} must be a positive int, got {value!r}")
        for name in ("rope_theta", "rms_eps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive finite number, got {value!r}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary pairs, got {self.head_dim}")
        factors = self.rope_factors
        if factors is not None:
            if len(factors) != self.head_dim // 2:
                raise ValueError(f"rope_factors has {len(factors)} entries, expected {self.head_dim // 2}")
            if any(not 0 < factor < math.inf for factor in factors):
                raise ValueError("rope_factors must be positive finite numbers")


_SIZES = (
    "dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "ffn_dim",
    "vocab_size",
    "max_context_len",
)


@dataclass(frozen=True, kw_only=True)
class Llama3RopeScaling:
    """The `llama3` form of rotary scaling: long wavelengths are stretched by `factor`, short ones kept.

    `original_context_len` is in tokens; the two wavelength limits are that length divided by
    `low_frequency_factor` and `high_frequency_factor`, and frequencies between them are interpolated.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context_len: int

    def __post_init__(self) -> None:
        if not (self.factor > 0 and self.original_context_len > 0):
            raise ValueError(f"factor and original_context_len must be positive, got {self!r}")
        if not 0 < self.low_frequency_factor < self.high_frequency_factor:
            raise ValueError(
                f"low_frequency_factor {self.low_frequency_factor} must be positive and below "
                f"high_frequency_factor {self.high_frequency_factor}"
            )

    def rope_factors(self, *, rope_theta: float, head_dim: int) -> tuple[float, ...]:
        """One divisor per rotary pair, 1.0 where the frequency is kept."""
        return tuple(self._divisor(rope_theta ** (-pair / head_dim)) for pair in range(0, head_dim, 2))

    def _divisor(self, frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        turns = self.original_context_len / wavelength
        if turns > self.high_frequency_factor:
            return 1.0
        if turns < self.low_frequency_factor:
            return self.factor
        kept = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        return 1.0 / (kept + (1.0 - kept) / self.factor)
