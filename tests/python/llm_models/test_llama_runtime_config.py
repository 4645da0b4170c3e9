# SPDX-License-Identifier: Apache-2.0
"""Prefill policy of the Llama family: buckets that are warmed and traced, and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llm_models.llama.runtime_config import LlamaRuntimeConfig


def test_defaults() -> None:
    config = LlamaRuntimeConfig(max_seq_len=4096)
    assert config.max_prefill_chunk_size == 2048
    assert (config.supports_batched_prefill, config.disable_batched_prefill) == (True, False)
    assert (config.max_prefill_batch_size, config.batched_prefill_batched_extract) == (32, True)
    assert config.model_cache_path is None


@pytest.mark.parametrize(
    ("max_seq_len", "chunk", "expected"),
    [(4096, 2048, (128, 1024, 2048)), (512, 256, (128, 256)), (4096, 128, (128,))],
)
def test_every_length_of_a_prefill_call_can_be_traced(max_seq_len: int, chunk: int, expected: tuple[int, ...]) -> None:
    config = LlamaRuntimeConfig(max_seq_len=max_seq_len, max_prefill_chunk_size=chunk)
    assert config.trace_prefill_supported_seq_lens == expected
    for length in range(0, 4224, 32):
        for cached in (0, 64):
            assert config.can_enable_trace(length, cached) == (length in expected)


@pytest.mark.parametrize(
    ("max_seq_len", "chunk", "expected"),
    [(100, 2048, 128), (1000, 2048, 512), (3000, 4096, 2048), (4096, 2048, 2048), (512, 128, 128)],
)
def test_the_chunk_cap_stays_within_the_context(max_seq_len: int, chunk: int, expected: int) -> None:
    config = LlamaRuntimeConfig(max_seq_len=max_seq_len, max_prefill_chunk_size=chunk)
    assert config.max_prefill_chunk_size == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_prefill_chunk_size": 100}, "100"),
        ({"max_prefill_chunk_size": 64}, "64"),
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"max_prefill_batch_size": True}, "max_prefill_batch_size"),
    ],
)
def test_policies_that_cannot_be_planned_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LlamaRuntimeConfig(**{"max_seq_len": 512, **changes})


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LlamaRuntimeConfig(max_seq_len=512).max_seq_len = 8  # type: ignore[misc]
