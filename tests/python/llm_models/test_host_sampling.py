# SPDX-License-Identifier: Apache-2.0
"""Host sampling: greedy rows, cuts, and draws that depend on seed and position alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from llm_models.host_sampling import select_token

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def pick(logits: Any = LOGITS, **changes: Any) -> int:
    options: dict[str, Any] = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "seed": 5, "position": 3}
    return select_token(logits, **{**options, **changes})


def frequencies(count: int = 4000, **changes: Any) -> dict[int, float]:
    found = Counter(pick(position=position, **changes) for position in range(count))
    return {token: number / count for token, number in sorted(found.items())}


@pytest.mark.covers("D19")
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0, -1, 1), (1, 1, 0.5), (1, 0, 0), (0, 40, 0.9), (0.0, None, 1.0)]
)
def test_greedy_forms(temperature: float, top_k: int | None, top_p: float) -> None:
    assert {pick(temperature=temperature, top_k=top_k, top_p=top_p, seed=s) for s in (None, 1, 2)} == {1}


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert pick(np.array([1.0, 3.0, 3.0, 2.0], np.float32), temperature=0) == 1


def test_draws_follow_the_probabilities() -> None:
    found = frequencies()
    assert [found[token] for token in range(4)] == pytest.approx([0.1, 0.4, 0.2, 0.3], abs=0.03)


def test_temperature_sharpens() -> None:
    weights = np.array([0.1, 0.4, 0.2, 0.3]) ** 2
    found = frequencies(temperature=0.5)
    assert [found[token] for token in range(4)] == pytest.approx(list(weights / weights.sum()), abs=0.03)


def test_top_k_and_top_p_cut_and_renormalise() -> None:
    assert frequencies(top_k=2) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)
    assert frequencies(top_p=0.7) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)
    assert set(frequencies(top_p=0.71)) == {1, 2, 3}
    # top_p looks at what top_k left over: 4/7 of the rest is enough here.
    assert frequencies(top_k=2, top_p=0.57) == {1: 1.0}


def test_equal_logits_at_the_cut_keep_the_lower_ids() -> None:
    assert set(frequencies(500, logits=np.zeros(6, np.float32), top_k=2)) == {0, 1}


@given(
    logits=arrays(np.float32, 12, elements=st.floats(-20, 20, width=32)),
    seed=st.integers(-(2**80), 2**80),
    position=st.integers(0, 2**40),
    top_k=st.sampled_from([None, 1, 3, 40]),
    top_p=st.floats(0, 1),
)
def test_a_draw_depends_on_its_request_alone(
    logits: Any, seed: int, position: int, top_k: int | None, top_p: float
) -> None:
    options = {"seed": seed, "position": position, "top_k": top_k, "top_p": top_p}
    token = pick(logits, **options)
    assert 0 <= token < 12
    assert token == pick(logits.copy(), **options)


def test_seed_position_and_their_absence_matter() -> None:
    flat = np.zeros(1000, np.float32)
    by_seed = {pick(flat, seed=seed) for seed in range(50)}
    by_position = {pick(flat, position=position) for position in range(50)}
    assert len(by_seed) > 40
    assert len(by_position) > 40
    assert len({pick(flat, seed=None) for _ in range(50)}) > 40
    assert len({pick(flat, seed=seed) for seed in (7, -7, 7 + 2**32, 7 + 2**64)}) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"top_p": 1.5}, "top_p"),
        ({"position": -1}, "position"),
        ({"logits": np.zeros((1, 4), np.float32)}, r"\(1, 4\)"),
        ({"logits": np.array([0, np.nan], np.float32)}, "NaN"),
        ({"logits": np.array([0, np.inf], np.float32)}, r"\+inf"),
        ({"logits": np.full(3, -np.inf, np.float32)}, "-inf"),
    ],
)
def test_what_is_out_of_range_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pick(**changes)


def test_masked_ids_are_never_drawn() -> None:
    masked = np.array([-np.inf, 0.0, -np.inf, 0.0], np.float32)
    assert set(frequencies(300, logits=masked)) == {1, 3}
