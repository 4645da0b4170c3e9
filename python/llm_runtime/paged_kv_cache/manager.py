# SPDX-License-Identifier: Apache-2.0
"""The exclusive owner of the physical paged KV tensors: capacity, allocation, binding and release."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from llm_runtime._validation import is_positive_int, require_instance
from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.device import namespace_of
from llm_runtime.paged_kv_cache.dtypes import host_dtype_name, server_dtype_name, stored_bytes
from llm_runtime.paged_kv_cache.layers import model_mesh_device, read_kv_layers
from llm_runtime.paged_kv_cache.zeros import HostZeros
from llm_runtime.tensor_resources import (
    attach_cleanup_failures,
    best_effort_deallocate_owned_tensors,
    raise_counted_failures,
)

KVCache = list[list[Any]]


@dataclass(frozen=True, eq=False)
class PagedKVCacheContext:
    """Borrowed view of a bound cache: its config and, per layer, the (K, V) tensors, their shape and dtype."""

    config: PagedKVCacheConfig
    tensors: tuple[tuple[Any, Any], ...]
    cache_shapes: tuple[tuple[int, int, int, int], ...]
    per_layer_dtypes: tuple[Any, ...]


class _State(Enum):
    UNRESOLVED = "unresolved"
    CONFIGURED = "configured"
    BOUND = "bound"
    RELEASING = "releasing"
    RELEASED = "released"


class PagedKVCacheManager:
    """Allocates one K and one V tensor per layer, binds them to the model (borrowed) and frees them.

    Each tensor has the per-device shape `(num_blocks, local_kv_heads, block_size, head_dim)`, tile layout, the
    layer's dtype, zeros, in `config.memory_config` (DRAM when that is `None`). `ValueError` when the model's layers
    contradict the config. `model.model_args.model_cache_path`, where it is set, keeps files of zeros that are costly to
    make. Follows chapter 30, section 6.
    """

    def __init__(self, model: Any, config: PagedKVCacheConfig) -> None:
        require_instance(config, PagedKVCacheConfig, name="config")
        self._model = model
        self._mesh = model_mesh_device(model)
        self._namespace = namespace_of(self._mesh)
        self._layers = read_kv_layers(model, config, self._mesh)
        self._config = config
        self._state = _State.CONFIGURED if config.is_resolved() else _State.UNRESOLVED
        # Owned, in allocation order. The ids say which of them are freed already; both shrink together to nothing.
        self._tensors: list[Any] = []
        self._freed_ids: set[int] = set()
        self._handle: KVCache | None = None
        self._context: PagedKVCacheContext | None = None

    @property
    def config(self) -> PagedKVCacheConfig:
        """The current policy; the late replacement becomes current as the very object given."""
        return self._config

    @property
    def memory_config(self) -> Any:
        """Placement of the tensors: the policy's, or the namespace's `DRAM_MEMORY_CONFIG`."""
        return self._placement(self._config)

    @property
    def bound_context(self) -> PagedKVCacheContext | None:
        """The context of the bound cache, or `None`."""
        return self._context

    @property
    def per_layer_dtypes(self) -> tuple[Any, ...]:
        """Device dtype of each layer's cache."""
        return tuple(layer.dtype for layer in self._layers)

    @property
    def cache_shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Per layer the shape of K and of V on one device; empty while the block count is open."""
        blocks = self._config.num_blocks
        if blocks is None:
            return ()
        return tuple((blocks, layer.local_heads, self._config.block_size, layer.head_dim) for layer in self._layers)

    @property
    def capacity_tokens(self) -> int | None:
        """Tokens that the cache can hold, or `None` while the block count is open."""
        blocks = self._config.num_blocks
        return None if blocks is None else blocks * self._config.block_size

    @property
    def allocated_bytes(self) -> int:
        """Bytes per device of the tensors that are allocated now (block formats without their exponents)."""
        held = (tensor for tensor in self._tensors if id(tensor) not in self._freed_ids)
        return sum(stored_bytes(math.prod(int(size) for size in tensor.shape), tensor.dtype) for tensor in held)

    def configure(self, config: PagedKVCacheConfig) -> None:
        """Resolve the physical block count, once and before allocation.

        Only `num_blocks` may differ from the policy given at construction: another block size or maximum, dtype or
        placement is a `ValueError`; a second resolution, a bound or a released manager a `RuntimeError`.
        """
        require_instance(config, PagedKVCacheConfig, name="config")
        if self._state is not _State.UNRESOLVED:
            raise RuntimeError(f"the KV capacity can be resolved only once, the cache is {self._state.value}")
        if not config.is_resolved():
            raise ValueError("the replacement config has no num_blocks")
        if config.dtype != self._config.dtype:
            raise ValueError(f"dtype changed from {self._config.dtype!r} to {config.dtype!r}")
        if self._placement(config) != self.memory_config:
            raise ValueError(f"memory_config changed from {self.memory_config!r} to {config.memory_config!r}")
        for name in ("block_size", "max_num_blocks"):
            before, after = getattr(self._config, name), getattr(config, name)
            if before != after:
                raise ValueError(f"{name} changed from {before} to {after}")
        self._layers = read_kv_layers(self._model, config, self._mesh)
        self._config = config
        self._state = _State.CONFIGURED

    def validate_vllm_cache_spec(self, *, block_size: int, dtype: Any, num_blocks: int | None = None) -> None:
        """Check a server's cache spec against the policy; changes nothing.

        `dtype` is a torch or NumPy dtype (`TypeError` otherwise). `ValueError` for another block size, a dtype that
        does not stand for every layer's device dtype (the layers are listed), or a block count beyond the maximum.
        """
        if block_size != self._config.block_size:
            raise ValueError(f"server block_size {block_size!r} differs from the cache's {self._config.block_size}")
        name = server_dtype_name(dtype)
        wrong = [
            f"layer {index} ({layer.dtype!r})"
            for index, layer in enumerate(self._layers)
            if host_dtype_name(layer.dtype) != name
        ]
        if wrong:
            raise ValueError(f"server dtype {name} is incompatible with {', '.join(wrong)}")
        if num_blocks is None:
            return
        if not is_positive_int(num_blocks):
            raise ValueError(f"server num_blocks must be a positive integer, got {num_blocks!r}")
        if num_blocks > self._config.max_num_blocks:
            raise ValueError(
                f"server num_blocks {num_blocks} exceeds the configured maximum {self._config.max_num_blocks}"
            )

    def allocate(self) -> KVCache:
        """Allocate every layer's K and V, bind them to the model and return the `[[K, V], ...]` handle (borrowed).

        `RuntimeError` while unresolved, when bound, or when released. A failed allocation or binding frees what was
        allocated, newest first, with cleanup failures attached, and may be retried; when the model could not even
        be unbound, the cache counts as bound so that `release` can try again.
        """
        self._require_allocatable()
        self._free_leftovers()
        try:
            self._allocate_layers()
        except BaseException as primary:
            attach_cleanup_failures(primary, self._free(reversed(self._tensors)))
            raise
        pairs = tuple(zip(self._tensors[0::2], self._tensors[1::2], strict=True))
        handle: KVCache = [list(pair) for pair in pairs]
        context = PagedKVCacheContext(self._config, pairs, self.cache_shapes, self.per_layer_dtypes)
        try:
            self._model.set_kv_cache(handle)
        except BaseException as primary:
            self._undo_failed_binding(primary, handle, context)
            raise
        self._become_bound(handle, context)
        return handle

    def validate_borrowed_handle(self, cache: Any) -> None:
        """Accept only the very handle that `allocate` returned, with its tensors unchanged.

        `RuntimeError` when no cache is bound, `ValueError` for a copy or a changed handle.
        """
        if self._state is not _State.BOUND or self._handle is None:
            raise RuntimeError(f"no KV cache is bound, the cache is {self._state.value}")
        if cache is not self._handle:
            raise ValueError("kv_cache must be the exact manager-owned handle, not a copy")
        try:
            members = [tensor for key, value in cache for tensor in (key, value)]
        except (TypeError, ValueError) as error:
            raise ValueError("kv_cache is no longer a list of [K, V] pairs") from error
        if len(members) != len(self._tensors):
            raise ValueError(f"kv_cache has {len(members)} tensors, the manager owns {len(self._tensors)}")
        for index, (member, owned) in enumerate(zip(members, self._tensors, strict=True)):
            if member is not owned:
                raise ValueError(f"kv_cache layer {index // 2} {'KV'[index % 2]} is not the manager-owned tensor")

    def release(self) -> None:
        """Unbind the model, then free every tensor; idempotent, terminal.

        When unbinding fails nothing is freed. All tensors are attempted: failures end in one `RuntimeError` with
        their count and a retry frees only what is left. A manager that never allocated becomes terminal as well.
        """
        if self._state is _State.RELEASED:
            return
        if self._state is _State.BOUND:
            self._model.set_kv_cache(None)
            self._handle = self._context = None
            self._state = _State.RELEASING
        failures = self._free(iter(self._tensors))
        if failures:
            raise_counted_failures(f"failed to deallocate {len(failures)} KV cache tensor(s)", failures)
        self._state = _State.RELEASED

    def _placement(self, config: PagedKVCacheConfig) -> Any:
        return self._namespace.DRAM_MEMORY_CONFIG if config.memory_config is None else config.memory_config

    def _require_allocatable(self) -> None:
        if self._state is _State.UNRESOLVED:
            raise RuntimeError("the KV capacity must be resolved before allocation: call configure with num_blocks")
        if self._state is _State.BOUND:
            raise RuntimeError("the KV cache has already been allocated")
        if self._state is not _State.CONFIGURED:
            raise RuntimeError(f"the KV cache is terminal, it is {self._state.value}")

    def _free_leftovers(self) -> None:
        failures = self._free(iter(self._tensors))
        if failures:
            raise_counted_failures("failed to deallocate KV cache tensors of an earlier attempt", failures)

    def _allocate_layers(self) -> None:
        """K before V, layer by layer; the host zeros are gone with this call."""
        ns, placement = self._namespace, self.memory_config
        layers = list(zip(self.cache_shapes, self.per_layer_dtypes, strict=True))
        folder = getattr(getattr(self._model, "model_args", None), "model_cache_path", None)
        zeros = HostZeros(ns, None if folder is None else Path(folder), layers)
        for shape, dtype in layers:
            for kind in "kv":
                host = zeros.tensor(kind, shape, dtype)
                self._tensors.append(ns.to_device(host, device=self._mesh, memory_config=placement))

    def _undo_failed_binding(self, primary: BaseException, handle: KVCache, context: PagedKVCacheContext) -> None:
        try:
            self._model.set_kv_cache(None)
        except BaseException as unbinding:
            # The model may still point at the tensors: keep them, and let release() try the unbinding again.
            self._become_bound(handle, context)
            attach_cleanup_failures(primary, [unbinding])
        else:
            attach_cleanup_failures(primary, self._free(reversed(self._tensors)))

    def _become_bound(self, handle: KVCache, context: PagedKVCacheContext) -> None:
        self._handle, self._context, self._state = handle, context, _State.BOUND

    def _free(self, tensors: Iterator[Any]) -> list[BaseException]:
        failures = best_effort_deallocate_owned_tensors(list(tensors), self._freed_ids)
        # Forgetting a tensor and its id together: a later tensor may get the same id.
        self._tensors = [tensor for tensor in self._tensors if id(tensor) not in self._freed_ids]
        self._freed_ids.clear()
        return failures
