# SPDX-License-Identifier: Apache-2.0
"""A valid adapter configuration that tests change one field of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ttnn_twin
from llm_runtime.config import PagedKVCacheConfig, TraceConfig
from llm_runtime.vllm_adapter import VLLMAdapter, VLLMAdapterConfig


def policy(**changes: Any) -> PagedKVCacheConfig:
    """Blocks of 32 tokens, 128 at most, the count open."""
    return PagedKVCacheConfig(**{"block_size": 32, "max_num_blocks": 128, "dtype": ttnn_twin.bfloat16, **changes})


def fields(**changes: Any) -> dict[str, Any]:
    """Arguments of `VLLMAdapterConfig.resolve` for 32 layers of 8 heads of 128."""
    return {
        "trace": TraceConfig("all"),
        "paged_kv_cache": policy(),
        "expected_num_layers": 32,
        "expected_kv_heads_per_device": 8,
        "expected_head_dim": 128,
        "model_kv_cache_dtype": ttnn_twin.bfloat16,
        **changes,
    }


@pytest.fixture
def config_fields() -> Callable[..., dict[str, Any]]:
    return fields


@pytest.fixture
def cache_policy() -> Callable[..., PagedKVCacheConfig]:
    return policy


@pytest.fixture
def make_adapter() -> Callable[..., VLLMAdapter]:
    return lambda **changes: VLLMAdapter(VLLMAdapterConfig.resolve(**fields(**changes)))
