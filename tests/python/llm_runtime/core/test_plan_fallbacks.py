# SPDX-License-Identifier: Apache-2.0
"""Which rule made single requests of a bucket, and the numbers in it (chapter 10, section 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Explained = Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]

RULES = {
    "fewer_than_two_rows": ([80], {}, "1 row pads to 128 tokens; a wave needs 2"),
    "not_supported": (
        [80] * 3,
        {"supports_batched_prefill": False},
        "3 rows, but the model does not support batched prefill",
    ),
    "disabled": ([80] * 3, {"disable_batched_prefill": True}, "3 rows, but batched prefill is disabled"),
    "cached_tokens": (
        [128, 160, 224],
        {"cached": [0, 64, 96]},
        "row 1 starts behind 64 cached tokens; every row of a wave starts at 0",
    ),
    "max_prefill_chunk_size": ([2049] * 2, {}, "padded length 4096 exceeds max_prefill_chunk_size 2048"),
    "physical_batch_sizes": (
        [80] * 33,
        {"max_batch_size": 40, "max_prefill_batch_size": 32},
        "33 rows exceed 32, the largest physical batch",
    ),
    "max_prefill_batch_size": (
        [80] * 9,
        {},
        "9 rows need a physical batch of 16, above max_prefill_batch_size 8",
    ),
    "max_batch_size": (
        [80] * 5,
        {"max_batch_size": 6},
        "5 rows need a physical batch of 8, above max_batch_size 6",
    ),
    "wave_token_ceiling": (
        [4096] * 32,
        {
            "max_prefill_chunk_size": 4096,
            "max_prefill_batch_size": 32,
        },
        "32 physical rows of 4096 tokens are 131072 padded tokens; a wave stays below 131072",
    ),
}


@pytest.mark.covers("PLAN-54")
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_tells_the_numbers_that_decided(explained: Explained, rule: str) -> None:
    lengths, changes, detail = RULES[rule]
    requests, (fallback,) = explained(lengths, **changes)
    assert [request.source_rows for request in requests] == [(row,) for row in range(len(lengths))]
    assert (fallback.rows, fallback.rule) == (tuple(range(len(lengths))), rule)
    assert fallback.detail == detail


def test_the_first_rule_in_the_order_of_the_chapter_is_told(explained: Explained) -> None:
    broken = {"supports_batched_prefill": False, "disable_batched_prefill": True, "max_prefill_batch_size": 2}
    for rule in ("not_supported", "disabled", "max_prefill_batch_size"):
        _, (fallback,) = explained([80] * 3, **broken)
        assert fallback.rule == rule
        del broken[next(iter(broken))]


def test_each_bucket_without_a_wave_has_its_own_reason(explained: Explained) -> None:
    requests, fallbacks = explained([80, 3000, 90, 700, 160], cached=[0, 0, 0, 0, 32])
    assert [request.source_rows for request in requests] == [(0,), (1,), (2,), (3,), (4,)]
    assert [(item.rows, item.rule) for item in fallbacks] == [
        ((0, 2, 4), "cached_tokens"),
        ((1,), "fewer_than_two_rows"),
        ((3,), "fewer_than_two_rows"),
    ]
    assert repr(fallbacks[1]) == (
        "PrefillFallback(rows=(1,), rule='fewer_than_two_rows', "
        "detail='1 row pads to 4096 tokens; a wave needs 2')"
    )


def test_a_wave_is_no_fallback(explained: Explained) -> None:
    requests, fallbacks = explained([80, 90, 700])
    assert [request.kind for request in requests] == ["batched", "single"]
    assert [item.rows for item in fallbacks] == [(2,)]


def test_a_refusal_is_the_same_as_without_reasons(explained: Explained) -> None:
    with pytest.raises(ValueError, match="row 1: the prompt is empty"):
        explained([5, 0, 7])
