# SPDX-License-Identifier: Apache-2.0
"""Token selection from logits on the host: greedy, or seeded with temperature, top-k and top-p."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


def select_token(
    logits: npt.NDArray[Any],
    *,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    position: int,
) -> int:
    """Pick the id at absolute `position` from `logits` [vocab].

    Temperature 0 (or `top_k` 1) takes the largest logit, the lowest id among equals. Otherwise the logits are divided
    by the temperature, cut to the `top_k` largest (`None`, 0 or -1: no cut) and then to the smallest set whose
    probability reaches `top_p` (at least one id), and one id is drawn. With a `seed` the draw depends on seed and
    position alone, so that equal requests give equal text in every batch. `ValueError` names a parameter or logit
    that is out of range.
    """
    _check(logits, temperature=temperature, top_k=top_k, top_p=top_p, position=position)
    limit = len(logits) if top_k in (None, 0, -1) else min(int(top_k or 0), len(logits))
    if temperature == 0 or limit == 1:
        return int(np.argmax(logits))
    ids, probabilities = _candidates(logits, temperature, limit)
    kept = max(1, int(np.searchsorted(np.cumsum(probabilities), top_p, side="left")) + 1)
    cumulative = np.cumsum(probabilities[:kept])
    drawn = _uniform(seed, position) * cumulative[-1]
    return int(ids[min(int(np.searchsorted(cumulative, drawn, side="right")), len(cumulative) - 1)])


def _candidates(
    logits: npt.NDArray[Any], temperature: float, limit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The `limit` most probable ids, best first and the lower id first among equals, with their probabilities."""
    values = logits.astype(np.float64)
    if limit < len(values):
        # Keeps every id that ties with the last one, so that the order among equals decides and not the partition.
        threshold = np.partition(values, len(values) - limit)[len(values) - limit]
        ids = np.flatnonzero(values >= threshold)
    else:
        ids = np.arange(len(values))
    ids = ids[np.argsort(-values[ids], kind="stable")][:limit]
    scaled = (values[ids] - values[ids[0]]) / temperature
    weights = np.exp(scaled)
    return ids, weights / weights.sum()


def _uniform(seed: int | None, position: int) -> float:
    if seed is None:
        return float(np.random.default_rng().random())
    sequence = np.random.SeedSequence(abs(seed), spawn_key=(position, int(seed < 0)))
    return float(np.random.Generator(np.random.Philox(sequence)).random())


def _check(logits: npt.NDArray[Any], *, temperature: float, top_k: int | None, top_p: float, position: int) -> None:
    if logits.ndim != 1 or not len(logits):
        raise ValueError(f"logits must be one row [vocab], got shape {logits.shape}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be a finite number of at least 0, got {temperature}")
    if top_k is not None and top_k < -1:
        raise ValueError(f"top_k must be positive, or 0 or -1 for no limit, got {top_k}")
    if not 0 <= top_p <= 1:
        raise ValueError(f"top_p must lie in 0..1, got {top_p}")
    if position < 0:
        raise ValueError(f"position must not be negative, got {position}")
    largest = logits.max()
    if not np.isfinite(largest):
        raise ValueError(f"position {position}: logits hold NaN or +inf, or nothing but -inf (largest is {largest})")
