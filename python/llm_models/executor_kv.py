# SPDX-License-Identifier: Apache-2.0
"""The KV cache of one executor: late capacity, sealing and allocation. Follows chapter 40, sections A.4 and A.5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llm_models.executor_state import ExecutorState
from llm_models.lane import resolve_layout
from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.paged_kv_cache.layers import read_kv_layers

KVCache = list[list[Any]]


class ExecutorKVCache(ExecutorState):
    """The part of `ModelExecutor` that fixes the KV capacity."""

    @property
    def paged_kv_cache_config(self) -> PagedKVCacheConfig:
        """The KV cache manager's current config."""
        return self.kv_cache_manager.config

    def configure_paged_kv_cache(self, config: PagedKVCacheConfig) -> None:
        """Install the physical KV capacity once, before sealing (chapter 40 A.4 with decision D7).

        The capacity may shrink inside the construction ceiling. `RuntimeError` when sealed or already resolved,
        `TypeError` for another type, `ValueError` for another block size, dtype, memory config or maximum, and for a
        capacity below one decode table. Nothing has changed then.
        """
        self._require_active()
        current = self.paged_kv_cache_config
        if self._sealed:
            raise RuntimeError(f"{self._owner_name} is sealed: configure the KV cache before it is allocated")
        if not isinstance(config, PagedKVCacheConfig):
            raise TypeError(f"config must be a PagedKVCacheConfig, got {type(config).__name__}")
        if current.is_resolved():
            raise RuntimeError(f"{self._owner_name} already has {current.num_blocks} KV blocks")
        for field in ("dtype", "memory_config", "block_size", "max_num_blocks"):
            wanted, given = getattr(current, field), getattr(config, field)
            if wanted != given:
                raise ValueError(f"a late KV config cannot change {field} from {wanted!r} to {given!r}")
        layout = resolve_layout(self.model, self.runtime_config, config)
        owners = (self.prefill_runtime, self.decode_runtime, self.warmup)
        for owner in owners:  # a refusal must come before the first of them changes
            owner.config.with_page_table_layout(layout)
        self.kv_cache_manager.configure(config)
        self.config = replace(self.config, paged_kv_cache=config)
        for owner in owners:
            owner.configure_page_table_layout(layout)
        self.page_table_layout = layout

    def allocate_kv_cache(
        self, kv_cache_shape: Any = None, dtype: Any = None, num_layers: int | None = None
    ) -> KVCache:
        """Seal the configuration, allocate and bind the KV cache; returns the borrowed handle `[layer][k, v]`.

        Give none or all of the server's shape `(num_blocks, kv_heads, block_size, head_dim)`, dtype and layer count
        (`TypeError` otherwise). `RuntimeError` while the capacity is unresolved, `ValueError` for a shape, dtype or
        count that does not fit the model (chapter 40 A.5). A failed allocation leaves the executor sealed and may be
        repeated.
        """
        self._require_active()
        given = [value is not None for value in (kv_cache_shape, dtype, num_layers)]
        if any(given) and not all(given):
            raise TypeError("kv_cache_shape, dtype and num_layers must be supplied together")
        if all(given):
            self._resolve_server_shape(kv_cache_shape, dtype, num_layers)
        if not self.paged_kv_cache_config.is_resolved():
            raise RuntimeError(f"{self._owner_name} does not know its number of KV blocks: configure it first")
        self.warmup.seal_configuration()
        self._sealed = True
        return self.kv_cache_manager.allocate()

    def _resolve_server_shape(self, kv_cache_shape: Any, dtype: Any, num_layers: int | None) -> None:
        shape = tuple(int(size) for size in kv_cache_shape)
        if len(shape) != 4:
            raise ValueError(f"kv_cache_shape must have 4 entries, got {shape}")
        layers = len(self.kv_cache_manager.per_layer_dtypes)
        if num_layers != layers:
            raise ValueError(f"num_layers {num_layers} does not match the model's {layers} layers")
        current = self.paged_kv_cache_config
        self.kv_cache_manager.validate_vllm_cache_spec(block_size=shape[2], dtype=dtype, num_blocks=shape[0])
        if current.is_resolved() and current.num_blocks != shape[0]:
            raise ValueError(f"kv_cache_shape has {shape[0]} blocks, the cache is configured for {current.num_blocks}")
        for index, layer in enumerate(read_kv_layers(self.model, current, self.model.config.mesh_device)):
            own = (shape[0], layer.local_heads, shape[2], layer.head_dim)
            if shape != own:
                raise ValueError(f"kv_cache_shape {shape} does not match layer {index}, which needs {own}")
        if not current.is_resolved():
            self.configure_paged_kv_cache(replace(current, num_blocks=shape[0]))
