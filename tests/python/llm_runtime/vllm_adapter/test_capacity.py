# SPDX-License-Identifier: Apache-2.0
"""Resolving a server's uniform KV cache against the model and the cache policy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ttnn_twin

SHAPE = (64, 8, 32, 128)
BF16 = ml_dtypes.bfloat16


@pytest.mark.covers("VLA-25")
def test_the_server_chooses_the_number_of_blocks_only(make_adapter: Any, cache_policy: Any) -> None:
    base = cache_policy()
    resolved = make_adapter(paged_kv_cache=base).resolve_legacy_kv_cache_config(SHAPE, BF16, 32)
    assert (resolved.num_blocks, resolved.block_size, resolved.max_num_blocks) == (64, 32, 128)
    assert resolved.dtype == base.dtype and resolved.memory_config is base.memory_config
    assert base.num_blocks is None


@pytest.mark.covers("VLA-26", "VLA-27", "VLA-28")
@pytest.mark.parametrize(
    ("shape", "dtype", "layers", "match"),
    [
        ((64, 8, 16, 128), BF16, 32, "block size 16, the cache policy 32"),
        ((64, 8, 0, 128), BF16, 32, "block size must be positive, got 0"),
        ((64, 4, 32, 128), BF16, 32, "KV heads per device 4, the model 8"),
        ((64, 8, 32, 64), BF16, 32, "head dimension 64, the model 128"),
        ((0, 8, 32, 128), BF16, 32, "num_blocks must be positive, got 0"),
        ((64, 8, 32, 128), np.float32, 32, "dtype float32"),
        ((64, 8, 32, 128), np.float16, 32, "dtype float16"),
        ((64, 8, 32, 128), BF16, 31, "layer count 31"),
        ((64, 8, 32, 128), BF16, True, "layer count True"),
        ((129, 8, 32, 128), BF16, 32, "num_blocks 129 exceeds the cache policy's maximum of 128"),
        ((64, 8, 32), BF16, 32, "rank 4"),
        ((64, 8, 32, 128, 1), BF16, 32, "rank 4"),
    ],
)
def test_what_does_not_fit_is_named(make_adapter: Any, shape: Any, dtype: Any, layers: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make_adapter().resolve_legacy_kv_cache_config(shape, dtype, layers)


def test_a_dtype_is_a_dtype(make_adapter: Any) -> None:
    with pytest.raises(TypeError, match="dtype must be a torch or NumPy dtype, got 'bfloat16'"):
        make_adapter().resolve_legacy_kv_cache_config(SHAPE, "bfloat16", 32)


@pytest.mark.covers("VLA-29")
def test_block_formats_stand_behind_bfloat16(make_adapter: Any, cache_policy: Any) -> None:
    bf4 = ttnn_twin.bfloat4_b
    adapter = make_adapter(paged_kv_cache=cache_policy(dtype=bf4), model_kv_cache_dtype=bf4)
    resolved = adapter.resolve_legacy_kv_cache_config(SHAPE, BF16, 32)
    assert resolved.dtype == bf4 and resolved.num_blocks == 64


@pytest.mark.torch
def test_torch_dtypes(make_adapter: Any) -> None:
    torch = pytest.importorskip("torch")
    adapter = make_adapter()
    assert adapter.resolve_legacy_kv_cache_config(torch.Size(SHAPE), torch.bfloat16, 32).num_blocks == 64
    with pytest.raises(ValueError, match="dtype float16"):
        adapter.resolve_legacy_kv_cache_config(SHAPE, torch.float16, 32)


@pytest.mark.covers("VLA-30")
def test_a_resolved_capacity_stays(make_adapter: Any, cache_policy: Any) -> None:
    adapter = make_adapter(paged_kv_cache=cache_policy(num_blocks=32))
    with pytest.raises(ValueError, match="already resolved to 32 blocks, not 64"):
        adapter.resolve_legacy_kv_cache_config(SHAPE, BF16, 32)
    assert adapter.resolve_legacy_kv_cache_config((32, 8, 32, 128), BF16, 32).num_blocks == 32


def test_layers_of_different_host_dtypes_fit_no_server(make_adapter: Any) -> None:
    adapter = make_adapter(expected_num_layers=2, model_kv_cache_dtype=[ttnn_twin.bfloat16, ttnn_twin.float32])
    for dtype in (BF16, np.float32):
        with pytest.raises(ValueError, match="does not stand for the model's KV dtype"):
            adapter.resolve_legacy_kv_cache_config(SHAPE, dtype, 2)
    mixed = make_adapter(expected_num_layers=2, model_kv_cache_dtype=[ttnn_twin.bfloat16, ttnn_twin.bfloat8_b])
    assert mixed.resolve_legacy_kv_cache_config(SHAPE, BF16, 2).num_blocks == 64
