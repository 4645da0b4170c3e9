# SPDX-License-Identifier: Apache-2.0
"""Construction of the adapter's configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from llm_runtime.config import PagedKVCacheConfig, TraceConfig
from llm_runtime.vllm_adapter import VLLMAdapter, VLLMAdapterConfig


@pytest.mark.covers("VLA-01")
def test_model_metadata_becomes_plain_values(config_fields: Any, cache_policy: Any) -> None:
    trace, cache = TraceConfig("all"), cache_policy()
    config = VLLMAdapterConfig.resolve(
        **config_fields(
            trace=trace,
            paged_kv_cache=cache,
            expected_num_layers=32.0,
            expected_kv_heads_per_device=8.0,
            expected_head_dim=128.0,
            model_kv_cache_dtype=[ttnn_twin.bfloat16] * 32,
        )
    )
    sizes = (config.expected_num_layers, config.expected_kv_heads_per_device, config.expected_head_dim)
    assert sizes == (32, 8, 128) and all(type(size) is int for size in sizes)
    assert config.model_kv_cache_dtypes == (ttnn_twin.bfloat16,) * 32
    assert config.trace is trace and config.paged_kv_cache is cache
    assert config.request_state_fields == ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.expected_num_layers = 3  # type: ignore[misc]


def test_one_dtype_stands_for_all_layers_and_unchecked_sizes_stay_open(config_fields: Any) -> None:
    config = VLLMAdapterConfig.resolve(
        **config_fields(expected_num_layers=np.int64(32), expected_kv_heads_per_device=None, expected_head_dim=None)
    )
    assert config.model_kv_cache_dtypes == (ttnn_twin.bfloat16,)
    assert (config.expected_num_layers, config.expected_kv_heads_per_device, config.expected_head_dim) == (
        32,
        None,
        None,
    )


@pytest.mark.covers("VLA-02")
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"expected_num_layers": 0}, ValueError, "expected_num_layers must be a positive integer, got 0"),
        ({"model_kv_cache_dtypes": [ttnn_twin.bfloat16]}, TypeError, "model_kv_cache_dtypes must be a tuple"),
        ({"request_state_fields": ["slot_remap"]}, TypeError, "request_state_fields must be a tuple"),
    ],
)
def test_direct_construction_wants_finished_values(
    config_fields: Any, change: dict[str, Any], error: type[Exception], match: str
) -> None:
    values = config_fields(model_kv_cache_dtypes=(ttnn_twin.bfloat16,))
    del values["model_kv_cache_dtype"]
    assert VLLMAdapterConfig(**values).expected_num_layers == 32
    with pytest.raises(error, match=match):
        VLLMAdapterConfig(**{**values, **change})


class _Trace(TraceConfig):
    pass


class _Cache(PagedKVCacheConfig):
    pass


@pytest.mark.covers("VLA-03", "VLA-07")
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"trace": "all"}, "trace must be exactly TraceConfig, got str"),
        ({"paged_kv_cache": None}, "paged_kv_cache must be exactly PagedKVCacheConfig, got NoneType"),
        ({"trace": _Trace("all")}, "trace must be exactly TraceConfig, got _Trace"),
        (
            {"paged_kv_cache": _Cache(block_size=32, max_num_blocks=128, dtype=ttnn_twin.bfloat16)},
            "paged_kv_cache must be exactly PagedKVCacheConfig, got _Cache",
        ),
    ],
)
def test_policies_are_of_exactly_their_type(config_fields: Any, change: dict[str, Any], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        VLLMAdapterConfig.resolve(**config_fields(**change))


@pytest.mark.covers("VLA-04")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expected_num_layers", 0),
        ("expected_num_layers", True),
        ("expected_kv_heads_per_device", 0),
        ("expected_kv_heads_per_device", -1),
        ("expected_kv_heads_per_device", True),
        ("expected_kv_heads_per_device", 8.5),
        ("expected_head_dim", -1),
        ("expected_head_dim", 0),
        ("expected_head_dim", True),
        ("expected_head_dim", 128.5),
    ],
)
def test_sizes_are_positive_integers(config_fields: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got {value}"):
        VLLMAdapterConfig.resolve(**config_fields(**{name: value}))


@pytest.mark.covers("VLA-05")
@pytest.mark.parametrize(
    ("dtypes", "error", "match"),
    [
        ([], ValueError, "cannot be empty"),
        ([ttnn_twin.bfloat16] * 2, ValueError, r"one dtype per model layer \(32\)"),
        (None, TypeError, "from model metadata"),
    ],
)
def test_one_dtype_or_one_per_layer(config_fields: Any, dtypes: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        VLLMAdapterConfig.resolve(**config_fields(model_kv_cache_dtype=dtypes))


@pytest.mark.covers("VLA-06")
def test_the_cache_has_the_model_owned_dtype(config_fields: Any, cache_policy: Any) -> None:
    with pytest.raises(ValueError, match="model-owned"):
        VLLMAdapterConfig.resolve(**config_fields(paged_kv_cache=cache_policy(dtype=ttnn_twin.bfloat8_b)))


@pytest.mark.parametrize(
    ("names", "error", "match"),
    [
        ("slot_remap", TypeError, "sequence of names"),
        (7, TypeError, "sequence of names"),
        (("slot_remap", "slot_remap"), ValueError, "repeats"),
        (("history",), ValueError, "got 'history'"),
        (("slot_remap", "prompt_tokens"), ValueError, "order"),
    ],
)
def test_request_state_is_a_canonical_subset(
    config_fields: Any, names: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        VLLMAdapterConfig.resolve(**config_fields(request_state_fields=names))


@pytest.mark.covers("VLA-08")
def test_an_adapter_holds_one_config_and_nothing_else(make_adapter: Any) -> None:
    adapter = make_adapter()
    assert type(adapter.config) is VLLMAdapterConfig
    assert VLLMAdapter.__slots__ == ("config",) and not hasattr(adapter, "__dict__")
    with pytest.raises(TypeError):
        VLLMAdapter()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="config must be a VLLMAdapterConfig, got dict"):
        VLLMAdapter({})  # type: ignore[arg-type]
