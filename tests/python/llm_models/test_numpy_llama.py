# SPDX-License-Identifier: Apache-2.0
"""The NumPy reference itself: golden greedy ids of the real model, and causality."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from oracle.numpy_llama import NumpyLlama
from support.llama import golden, smollm2, tiny_checkpoint


@functools.cache
def smollm2_reference() -> NumpyLlama:
    checkpoint = smollm2()
    return NumpyLlama(checkpoint.config, checkpoint.tensor)


@pytest.mark.parametrize("case", golden(), ids=lambda case: case["prompt"])
def test_greedy_ids_equal_the_golden_ids(case: dict[str, Any]) -> None:
    # One pass over prompt and answer shows every greedy choice: each must lead to the next golden id.
    prompt, new = case["prompt_ids"], case["new_ids"]
    logits = smollm2_reference().logits([*prompt, *new])[len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == new
    highest = np.sort(logits, -1)
    assert (highest[:, -1] - highest[:, -2]).min() == pytest.approx(case["min_margin"], abs=1e-3)


def test_greedy_stops_behind_the_ending_id() -> None:
    case = golden()[0]
    prompt, new = case["prompt_ids"], case["new_ids"]
    # The last two ids only, so that the whole sequence is computed twice and not eight times.
    found = smollm2_reference().greedy([*prompt, *new[:-2]], max_new_tokens=8, eos_ids=(2,))
    assert found == new[-2:]


def test_later_tokens_change_nothing_before_them() -> None:
    checkpoint = tiny_checkpoint()
    reference = NumpyLlama(checkpoint.config, checkpoint.tensor)
    tokens = [5, 9, 200, 31]
    np.testing.assert_allclose(reference.logits([*tokens, 77, 78])[:4], reference.logits(tokens), rtol=1e-5, atol=1e-5)
