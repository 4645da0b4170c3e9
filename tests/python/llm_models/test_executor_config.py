# SPDX-License-Identifier: Apache-2.0
"""The frozen policy of an executor: which fields it has, and that each is exactly of its type."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import ttnn_twin
from llm_models.executor import ModelExecutorConfig
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig


def fields(**changes: Any) -> dict[str, Any]:
    return {
        "trace": TraceConfig("none"),
        "warmup": WarmupConfig(),
        "paged_kv_cache": PagedKVCacheConfig(block_size=32, max_num_blocks=8, dtype=ttnn_twin.bfloat16),
        "device_sampling_enabled": True,
        **changes,
    }


@pytest.mark.covers("CFG-18")
def test_it_holds_policy_and_nothing_else() -> None:
    names = [field.name for field in dataclasses.fields(ModelExecutorConfig)]
    assert names == ["trace", "warmup", "paged_kv_cache", "device_sampling_enabled"]
    with pytest.raises(TypeError, match="model"):
        ModelExecutorConfig(**fields(model=object()))


@pytest.mark.covers("CFG-19")
@pytest.mark.parametrize("name", ["trace", "warmup", "paged_kv_cache", "device_sampling_enabled"])
def test_it_is_frozen(name: str) -> None:
    config = ModelExecutorConfig(**fields())
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, fields()[name])


@pytest.mark.covers("CFG-20")
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("trace", WarmupConfig(), "TraceConfig"),
        ("warmup", TraceConfig("all"), "WarmupConfig"),
        ("paged_kv_cache", WarmupConfig(), "PagedKVCacheConfig"),
    ],
)
def test_each_policy_is_exactly_of_its_type(name: str, value: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be exactly {kind}, got {type(value).__name__}"):
        ModelExecutorConfig(**fields(**{name: value}))
