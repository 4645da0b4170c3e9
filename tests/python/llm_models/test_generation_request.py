# SPDX-License-Identifier: Apache-2.0
"""Checks of generation requests, and their random streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_models.generation_request import GenerationRequest, check_requests, stream_seeds

GOOD = GenerationRequest(prompt_ids=(1, 2, 3), max_new_tokens=5, temperature=0.8, top_k=8, top_p=0.9, seed=3)


def check(request: GenerationRequest) -> None:
    check_requests([GOOD, request], vocab_size=10, max_seq_len=8, max_top_k=32)


def test_accepts_a_request_that_fills_the_context() -> None:
    check(GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": ()}, "prompt 1 is empty"),
        ({"prompt_ids": (1, 10)}, "prompt 1 has token id 10, outside the vocabulary of 10"),
        ({"prompt_ids": (1, -1)}, "prompt 1 has token id -1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"max_new_tokens": 6}, "prompt 1 has 3 tokens and may add 6, more than the context of 8"),
        ({"temperature": -0.5}, "temperature must be a finite number >= 0, got -0.5"),
        ({"temperature": float("nan")}, "temperature must be a finite number >= 0, got nan"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_k": 33}, "top_k 33 is above the device sampler's 32"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\], got 0.0"),
        ({"top_p": 1.5}, r"top_p must lie in \(0, 1\], got 1.5"),
        ({"seed": -1}, "seed must not be negative, got -1"),
    ],
)
def test_names_the_request_the_value_and_the_limit(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(replace(GOOD, **change))  # type: ignore[arg-type]


def test_a_greedy_request_may_keep_any_top_k() -> None:
    check(replace(GOOD, temperature=0.0, top_k=50))


def test_host_sampling_has_no_top_k_bound() -> None:
    check_requests([replace(GOOD, top_k=1000)], vocab_size=10, max_seq_len=8, max_top_k=None)


def test_a_stream_depends_on_the_request_alone() -> None:
    other = replace(GOOD, prompt_ids=(4,))
    alone = stream_seeds([GOOD])[0]
    assert stream_seeds([other, GOOD])[1] == alone
    assert stream_seeds([other])[0] != alone
    assert stream_seeds([replace(GOOD, seed=4)])[0] != alone


def test_an_exact_repeat_gets_a_stream_of_its_own() -> None:
    first, second = stream_seeds([GOOD, GOOD])
    assert first == stream_seeds([GOOD])[0]
    assert second != first


def test_without_a_seed_there_is_no_stream() -> None:
    assert stream_seeds([replace(GOOD, seed=None)]) == [None]
