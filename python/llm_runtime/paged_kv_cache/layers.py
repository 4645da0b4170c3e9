# SPDX-License-Identifier: Apache-2.0
"""What the model's attention layers say about their KV cache, checked against the cache policy.

Follows chapter 30, section 6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_runtime._validation import is_positive_int
from llm_runtime.config import PagedKVCacheConfig


@dataclass(frozen=True)
class KVLayer:
    """One layer's cache per device: its KV heads, head dimension and device dtype."""

    local_heads: int
    head_dim: int
    dtype: Any


def model_mesh_device(model: Any) -> Any:
    """`model.config.mesh_device`, else `model.mesh_device`; `ValueError` when neither is set."""
    mesh = getattr(getattr(model, "config", None), "mesh_device", None)
    if mesh is None:
        mesh = getattr(model, "mesh_device", None)
    if mesh is None:
        raise ValueError("model has no mesh_device")
    return mesh


def read_kv_layers(model: Any, config: PagedKVCacheConfig, mesh: Any) -> tuple[KVLayer, ...]:
    """Every layer's KV geometry; `ValueError` naming the layer where model and cache policy disagree."""
    devices = _device_count(model, mesh)
    layers = tuple(
        _read_layer(index, attention, config, devices) for index, attention in enumerate(_attention_configs(model))
    )
    dtypes = [layer.dtype for layer in layers]
    # Mixed dtypes are the model's own choice; one common dtype must be the one the policy was sized for.
    if all(dtype == dtypes[0] for dtype in dtypes) and dtypes[0] != config.dtype:
        raise ValueError(f"cache dtype {config.dtype!r} differs from the model-owned dtype {dtypes[0]!r}")
    return layers


def _device_count(model: Any, mesh: Any) -> int:
    count = getattr(getattr(model, "config", None), "num_devices", None)
    if count is None:
        count = getattr(model, "num_devices", None)
    if count is None:
        count = mesh.get_num_devices()
    if not is_positive_int(count):
        raise ValueError(f"num_devices must be a positive integer, got {count!r}")
    return int(count)


def _attention_configs(model: Any) -> Sequence[Any]:
    config = getattr(model, "config", None)
    blocks, layers = getattr(config, "block_configs", None), getattr(model, "layers", None)
    if blocks is not None:
        attentions = [getattr(block, "attention_config", None) for block in blocks]
    elif layers is not None:
        attentions = [getattr(getattr(layer, "attention", None), "config", None) for layer in layers]
    else:
        raise ValueError("model exposes neither config.block_configs nor layers with attention configs")
    if not attentions:
        raise ValueError("model has no attention layers")
    for index, attention in enumerate(attentions):
        if attention is None:
            raise ValueError(f"layer {index} has no attention config")
    declared = getattr(config, "n_layers", None)
    if declared is None:
        declared = getattr(model, "n_layers", None)
    if declared is not None and declared != len(attentions):
        raise ValueError(f"model declares n_layers {declared} but exposes {len(attentions)} attention configs")
    return attentions


def _read_layer(index: int, attention: Any, config: PagedKVCacheConfig, devices: int) -> KVLayer:
    head_dim = getattr(attention, "head_dim", None)
    if not is_positive_int(head_dim):
        raise ValueError(f"layer {index}: head_dim must be a positive integer, got {head_dim!r}")
    dtype = getattr(attention, "kv_cache_dtype", None)
    if dtype is None:
        raise ValueError(f"layer {index}: kv_cache_dtype is not set")
    paged = getattr(attention, "paged_attention_config", None)
    if paged is None:
        raise ValueError(f"layer {index}: paged_attention_config is not set")
    for name in ("block_size", "max_num_blocks"):
        found, wanted = getattr(paged, name, None), getattr(config, name)
        if found != wanted:
            raise ValueError(f"layer {index}: {name} {found!r} differs from the cache policy's {name} {wanted}")
    return KVLayer(_local_heads(index, attention, devices), int(head_dim), dtype)


def _local_heads(index: int, attention: Any, devices: int) -> int:
    local = getattr(attention, "n_local_kv_heads", None)
    if local is not None:
        if not is_positive_int(local):
            raise ValueError(f"layer {index}: n_local_kv_heads must be a positive integer, got {local!r}")
        return int(local)
    heads = getattr(attention, "n_kv_heads", None)
    if not is_positive_int(heads):
        raise ValueError(f"layer {index}: n_kv_heads must be a positive integer, got {heads!r}")
    if heads % devices:
        raise ValueError(f"layer {index}: n_kv_heads {heads} is not divisible by {devices} devices")
    return int(heads) // devices
