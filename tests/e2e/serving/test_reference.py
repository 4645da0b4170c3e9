# SPDX-License-Identifier: Apache-2.0
"""What the serving reference takes for rounding, and what not."""

from __future__ import annotations

import numpy as np

from support.serving.reference import TOLERANCE
from support.serving.sampling import acceptable, candidates, uniform
from support.serving.traffic import Sampling

SEEDED = Sampling(temperature=1.0, top_k=8, top_p=0.9, seed=5)


def test_only_candidates_closer_than_rounding_may_stand_for_each_other() -> None:
    rng = np.random.default_rng(1)
    swapped = 0
    for position in range(200):
        row = rng.standard_normal(64)
        expected, nearby = acceptable(row, SEEDED, position, "device", tolerance=TOLERANCE)
        assert expected in nearby and len(nearby) <= 2
        ids, _ = candidates(row, SEEDED)
        other = int(ids[(list(ids).index(expected) + 1) % len(ids)])
        assert other not in nearby or len(nearby) == 2
        row[other] = row[expected] - 2e-6  # as close as two float32 implementations come
        tied, either = acceptable(row, SEEDED, position, "device", tolerance=TOLERANCE)
        swapped += {expected, other} <= either and tied in (expected, other)
    assert swapped > 150


def test_greedy_rows_and_sides() -> None:
    row = np.array([0.0, 1.0, 1.0 - 2e-6, 0.99])
    assert acceptable(row, Sampling(), 3, "host", tolerance=TOLERANCE) == (1, {1, 2})
    assert uniform(5, 3, "host") != uniform(5, 3, "device")
    unseeded = Sampling(temperature=1.0, top_k=2)
    assert acceptable(row, unseeded, 3, "device", tolerance=TOLERANCE) == (-1, {1, 2})
