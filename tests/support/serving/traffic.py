# SPDX-License-Identifier: Apache-2.0
"""Requests of a serving run and how they arrive."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

VOCAB = 256
STOP_IDS = frozenset(range(0, 256, 23))


@dataclass(frozen=True)
class Sampling:
    """How one request picks tokens. Temperature 0 is greedy; `host_only` stands for whatever a device cannot do."""

    temperature: float = 0.0
    top_k: int = VOCAB
    top_p: float = 1.0
    seed: int | None = None
    host_only: bool = False

    @property
    def fits_device(self) -> bool:
        """What a server routes to the device: greedy rows, and stochastic ones within the sampler's top-k."""
        return not self.host_only and (self.temperature == 0.0 or self.top_k <= 32)


@dataclass(eq=False)
class Request:
    """One prompt on its way. `generated[i]` was picked on the side `sides[i]`, "host" or "device"."""

    number: int
    arrival: int
    prompt: list[int]
    budget: int
    sampling: Sampling
    abort_after: int | None = None
    generated: list[int] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)
    outcome: str | None = None
    blocks: list[int] = field(default_factory=list)
    lane: int = 0
    slot: int = -1
    in_flight: int = 0
    preemptions: int = 0

    @property
    def tokens(self) -> list[int]:
        """Prompt and everything that was generated."""
        return self.prompt + self.generated

    @property
    def next_position(self) -> int:
        """The position that the next step consumes; steps in flight have moved it."""
        return len(self.prompt) + len(self.generated) - 1 + self.in_flight

    def accept(self, token: int, side: str) -> None:
        """Take a token; sets `outcome` when it is the last."""
        self.generated.append(int(token))
        self.sides.append(side)
        if token in STOP_IDS:
            self.outcome = "stop"
        elif len(self.generated) == self.budget:
            self.outcome = "length"
        elif self.abort_after is not None and len(self.generated) >= self.abort_after:
            self.outcome = "abort"


def make_traffic(count: int, *, seed: int, max_model_len: int) -> list[Request]:
    """`count` requests with bursts, shared prefixes, long and short prompts, and every kind of sampling."""
    rng = np.random.default_rng(seed)
    prefixes = [rng.integers(0, VOCAB, int(length)).tolist() for length in rng.integers(32, 160, 6)]
    requests: list[Request] = []
    clock = 0
    for number in range(count):
        busy = number % 60 < 40
        clock += int(rng.choice([0, 0, 1, 4] if busy else [0, 6, 12, 40]))
        own = int(rng.choice([rng.integers(1, 8), rng.integers(8, 70), rng.integers(30, 140)], p=[0.2, 0.6, 0.2]))
        prompt = rng.integers(0, VOCAB, own).tolist()
        if rng.random() < 0.4:
            prompt = prefixes[int(rng.integers(len(prefixes)))] + prompt
        if rng.random() < 0.02:
            prompt = rng.integers(0, VOCAB, max_model_len - 24).tolist()
        prompt = prompt[: max_model_len - 24]
        requests.append(
            Request(
                number=number,
                arrival=clock,
                prompt=prompt,
                budget=int(rng.integers(1, 25)),
                sampling=_sampling(rng, number),
                abort_after=int(rng.integers(1, 8)) if rng.random() < 0.04 else None,
            )
        )
    return requests


def _sampling(rng: np.random.Generator, number: int) -> Sampling:
    kind = rng.choice(["greedy", "seeded", "unseeded", "wide", "host"], p=[0.52, 0.4, 0.04, 0.02, 0.02])
    if kind == "greedy":
        return Sampling(top_k=int(rng.choice([1, 40, VOCAB])))
    seed = None if kind == "unseeded" else 1000 + 7 * number
    temperature, top_p = float(rng.choice([0.3, 0.8, 1.0, 1.5])), float(rng.choice([0.5, 0.9, 1.0]))
    top_k = VOCAB if kind == "wide" else int(rng.integers(2, 33))
    return Sampling(temperature, top_k, top_p, seed, host_only=kind == "host")
