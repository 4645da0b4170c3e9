# SPDX-License-Identifier: Apache-2.0
"""Four lanes of 8 slots answer as one lane of 32 does, eager and traced, whichever slots the rows come in."""

from __future__ import annotations

import numpy as np
import pytest

from support.lanes_model import OneLane, TwinLanes, prompts_of

LANES, CAPACITY, STEPS = 4, 8, 4
LENGTHS = np.random.default_rng(5).integers(3, 120, LANES * CAPACITY).tolist()
PROMPTS = prompts_of(LENGTHS, seed=5)
ALL = range(LANES * CAPACITY)
ROWS = {
    "temperature": [0.0 if row % 3 == 0 else 0.6 + 0.02 * row for row in ALL],
    "top_k": [1 if row % 3 == 0 else 2 + row % 31 for row in ALL],
    "top_p": [1.0 if row % 2 == 0 else 0.85 for row in ALL],
    "seed": [None if row % 3 == 0 else 100 + row for row in ALL],
}


def shuffled(seed, count=None):
    """`count` slots of the whole group in random order."""
    return np.random.default_rng(seed).permutation(len(ALL))[:count].tolist()


@pytest.fixture(scope="module")
def one_lane():
    lane = OneLane(LANES * CAPACITY)
    yield lane
    lane.close()


@pytest.fixture(scope="module", params=["none", "all"], ids=["eager", "traced"])
def group(request):
    lanes = TwinLanes(LANES, CAPACITY, trace_mode=request.param, stochastic=True)
    if request.param == "all":
        lanes.warm_up()
    yield lanes
    lanes.close()


@pytest.fixture(scope="module")
def greedy(one_lane):
    tokens = one_lane.serving.generate(PROMPTS, ALL, steps=STEPS, sampled=False)
    assert len({tuple(row) for row in tokens}) > len(ALL) // 2, "rows must be told apart"
    return tokens


@pytest.fixture(scope="module")
def drawn(one_lane, greedy):
    tokens = one_lane.serving.generate(PROMPTS, ALL, steps=STEPS, sampled=True, row_sampling=ROWS)
    assert [tokens[row] == greedy[row] for row in ALL[::3]] == [True] * len(ALL[::3])
    assert sum(tokens[row] != greedy[row] for row in ALL) > len(ALL) // 3
    return tokens


@pytest.mark.parametrize("slots", [list(ALL), list(ALL)[::-1], shuffled(1), shuffled(2)], ids=lambda slots: slots[0])
@pytest.mark.parametrize("sampled", [False, True], ids=["logits", "sampled"])
def test_greedy(group, greedy, sampled, slots):
    assert group.serving.generate(PROMPTS, slots, steps=STEPS, sampled=sampled) == greedy


@pytest.mark.parametrize("seed", [3, 4])
def test_seeded_rows(group, drawn, seed):
    assert group.serving.generate(PROMPTS, shuffled(seed), steps=STEPS, sampled=True, row_sampling=ROWS) == drawn


@pytest.mark.parametrize("count", [1, 5, 19, 31])
def test_some_rows(group, greedy, count):
    """Lanes with some rows, and lanes with none."""
    slots = shuffled(count, count)
    assert group.serving.generate(PROMPTS[:count], slots, steps=STEPS, sampled=True) == greedy[:count]


def test_requests_that_come_and_go(group, greedy):
    """Slots are taken one after the other while others decode; every request gets its own tokens."""
    order, serving = shuffled(6), group.serving
    made: dict[int, list[int]] = {}
    slot_of = dict(zip(ALL, order, strict=True))
    while len(made) < len(ALL) or any(len(tokens) <= STEPS for tokens in made.values()):
        fresh = list(ALL)[len(made) : len(made) + 5]
        if fresh:
            logits = serving.prefill([PROMPTS[row] for row in fresh], [slot_of[row] for row in fresh])
            made |= {row: [int(logits[index, -1].argmax())] for index, row in enumerate(fresh)}
        active = {row: tokens for row, tokens in made.items() if len(tokens) <= STEPS}
        logits, _ = serving.step(
            {slot_of[row]: tokens[-1] for row, tokens in active.items()},
            {slot_of[row]: LENGTHS[row] + len(tokens) - 1 for row, tokens in active.items()},
            reset_batch=True,
        )
        for row, tokens in active.items():
            tokens.append(int(logits[slot_of[row], -1].argmax()))
    assert [made[row] for row in ALL] == greedy
