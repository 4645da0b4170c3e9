# SPDX-License-Identifier: Apache-2.0
"""What a caller asks of generation, what comes back, and the checks that run before any device work."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One prompt and how to continue it.

    `temperature` 0 is greedy. `top_k` keeps that many tokens, `top_p` the smallest set of at least that probability.
    A `seed` makes the text a function of the request alone; without one every run draws anew.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 32
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """The new ids of one request, the end-of-text id included, and why it ended."""

    prompt_ids: tuple[int, ...]
    new_ids: tuple[int, ...]
    finish_reason: FinishReason


def check_requests(
    requests: Sequence[GenerationRequest], *, vocab_size: int, max_seq_len: int, max_top_k: int | None
) -> None:
    """Refuse bad requests with a `ValueError` that names the request, the bad value and the limit.

    `max_top_k` is the device sampler's bound, `None` when tokens are selected on the host.
    """
    for index, request in enumerate(requests):
        where = f"prompt {index}"
        length = len(request.prompt_ids)
        if not length:
            raise ValueError(f"{where} is empty")
        for token in request.prompt_ids:
            if not 0 <= token < vocab_size:
                raise ValueError(f"{where} has token id {token}, outside the vocabulary of {vocab_size}")
        if request.max_new_tokens < 1:
            raise ValueError(f"{where}: max_new_tokens must be at least 1, got {request.max_new_tokens}")
        if length + request.max_new_tokens > max_seq_len:
            raise ValueError(
                f"{where} has {length} tokens and may add {request.max_new_tokens}, "
                f"more than the context of {max_seq_len}"
            )
        if not (math.isfinite(request.temperature) and request.temperature >= 0):
            raise ValueError(f"{where}: temperature must be a finite number >= 0, got {request.temperature}")
        if request.top_k < 1:
            raise ValueError(f"{where}: top_k must be at least 1, got {request.top_k}")
        if not 0 < request.top_p <= 1:
            raise ValueError(f"{where}: top_p must lie in (0, 1], got {request.top_p}")
        if request.seed is not None and request.seed < 0:
            raise ValueError(f"{where}: seed must not be negative, got {request.seed}")
        if max_top_k is not None and request.temperature > 0 and request.top_k > max_top_k:
            raise ValueError(
                f"{where}: top_k {request.top_k} is above the device sampler's {max_top_k}; use host sampling"
            )


def stream_seeds(requests: Sequence[GenerationRequest]) -> list[int | None]:
    """One random stream a request: its seed mixed with its prompt.

    Rows with one seed would get different salts on the device, so that a row's text depended on its neighbours. Only
    an exact repeat of a request in one call gets a stream of its own.
    """
    repeats: Counter[tuple[int, tuple[int, ...]]] = Counter()
    seeds: list[int | None] = []
    for request in requests:
        if request.seed is None:
            seeds.append(None)
            continue
        key = (request.seed, request.prompt_ids)
        text = repr((*key, repeats[key])).encode()
        repeats[key] += 1
        seeds.append(int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") >> 1)
    return seeds
