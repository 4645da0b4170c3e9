# SPDX-License-Identifier: Apache-2.0
"""The server's side of sampling: the parameter object that it sends, and its sampler for logits on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime.seed_manager import device_seed
from support.serving.traffic import VOCAB, Request, Sampling

Row = npt.NDArray[np.float64]
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class ServerSamplingParams:
    """Lists with one entry per row, by the names and padding values of the protocol; a type of the server's own."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    presence_penalty: list[float]
    frequency_penalty: list[float]
    repetition_penalty: list[float]
    seed: list[int | None]
    num_logprobs: list[int]
    enable_log_probs: list[bool]


def sampling_params(rows: Sequence[Request | None]) -> ServerSamplingParams:
    """Parameters of `rows`; `None` is a padding row."""
    picked = [None if request is None else request.sampling for request in rows]
    count = len(rows)
    return ServerSamplingParams(
        temperature=[0.0 if row is None else row.temperature for row in picked],
        top_k=[1 if row is None else min(row.top_k, VOCAB) for row in picked],
        top_p=[1.0 if row is None else (0.0 if row.top_k == 1 else row.top_p) for row in picked],
        presence_penalty=[0.0] * count,
        frequency_penalty=[0.0] * count,
        repetition_penalty=[1.0] * count,
        seed=[None if row is None else row.seed for row in picked],
        num_logprobs=[-2] * count,
        enable_log_probs=[False] * count,
    )


def pick_on_host(logits: Any, sampling: Sampling, position: int) -> int:
    """The server's own sampler for one row of logits, whose token stands behind `position`."""
    row = np.asarray(logits, np.float64)
    assert np.isfinite(row).all(), "logits hold NaN or infinity"
    if sampling.temperature == 0.0:
        return int(row.argmax())
    number = uniform(sampling.seed, position, "host")
    return draw(row, sampling, np.random.default_rng().random() if number is None else number)


def acceptable(logits: Any, sampling: Sampling, position: int, side: str, *, tolerance: float) -> tuple[int, set[int]]:
    """The token that belongs behind `position`, and those that rounding of the logits could make of it.

    Without a seed every candidate is acceptable and the token is -1.
    """
    row = np.asarray(logits, np.float64)
    if sampling.temperature == 0.0:
        return int(row.argmax()), set(np.flatnonzero(row >= row.max() - tolerance).tolist())
    number = uniform(sampling.seed, position, side)
    if number is None:
        ids, _ = candidates(row, sampling, tolerance)
        return -1, set(ids.tolist())
    picks = {
        draw(row, sampling, min(max(number + shift, 0.0), 1.0 - 1e-12), slack)
        for shift in (-tolerance, 0.0, tolerance)
        for slack in (-tolerance, 0.0, tolerance)
    }
    # Candidates whose logits are closer than rounding may stand in either order, also around the last of the top-k.
    nearby = {int(token) for pick in picks for token in np.flatnonzero(np.abs(row - row[pick]) <= tolerance)}
    return draw(row, sampling, number), nearby


def uniform(seed: int | None, position: int, side: str) -> float | None:
    """The number in [0, 1) that a seeded request draws behind `position`, on the server or on the device."""
    if seed is None:
        return None
    if side == "host":
        return (_split_mix(_split_mix(seed * 1_000_003 + position)) >> 11) * 2.0**-53
    return (_split_mix(_split_mix(device_seed(seed, position))) >> 11) * 2.0**-53


def draw(row: Row, sampling: Sampling, number: float, slack: float = 0.0) -> int:
    """The candidate that `number` hits."""
    ids, mass = candidates(row, sampling, slack)
    return int(ids[min(int((mass <= number * mass[-1]).sum()), len(mass) - 1)])


def candidates(row: Row, sampling: Sampling, slack: float = 0.0) -> tuple[npt.NDArray[np.int64], Row]:
    """Top-k, softmax, the smallest prefix that reaches top-p (plus `slack`): ids and their cumulative weights."""
    order = np.argsort(-row, kind="stable")[: sampling.top_k]
    weights = np.exp((row[order] - row[order[0]]) / sampling.temperature)
    weights /= weights.sum()
    kept = np.cumsum(weights) - weights < sampling.top_p + slack
    kept[0] = True
    return order[kept], np.cumsum(weights[kept])


def _split_mix(state: int) -> int:
    value = (state + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
