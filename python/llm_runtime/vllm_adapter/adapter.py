# SPDX-License-Identifier: Apache-2.0
"""The adapter between a server's call shapes and the executors'. Follows chapter 40, sections C.2 to C.4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llm_runtime._validation import require_instance
from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.paged_kv_cache.dtypes import host_dtype_name, server_dtype_name
from llm_runtime.vllm_adapter.arrays import integers
from llm_runtime.vllm_adapter.commands import check_reload_commands
from llm_runtime.vllm_adapter.config import REQUEST_STATE_FIELDS, VLLMAdapterConfig

__all__ = ["VLLMAdapter"]

#: Arguments of other model families that a server may send to every model.
_IGNORED = frozenset({"page_tables_per_layer", "rope_deltas_all_users"})

Fields = dict[str, Any]


class VLLMAdapter:
    """Turns a server's arguments into the executors' and refuses what they cannot take; holds its config only."""

    __slots__ = ("config",)

    def __init__(self, config: VLLMAdapterConfig) -> None:
        require_instance(config, VLLMAdapterConfig, name="config")
        self.config = config

    def normalize_prefill(
        self,
        tokens: Any,
        page_table: Any,
        *,
        enable_trace: bool,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Any = None,
        kv_cache: Any = None,
        sampling_params: Any = None,
        compatibility_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Fields, bool]:
        """The executors' arguments of a prefill call, and whether it is to be traced.

        `tokens` `[N, T]`, `prompt_lens` and `start_pos` `[N]` become int64, `page_table` `[N, W]` int32; the rest
        passes as it is. Of the compatibility arguments the configured request state is kept and known ones of other
        families are dropped; any other is a `TypeError` as for an unexpected keyword. `ValueError` when tracing is
        asked for but no part of the static policy.
        """
        state = self._request_state(compatibility_kwargs, "prefill_forward", always=())
        self._check_trace(enable_trace, self.config.trace.prefill_enabled, "prefill")
        fields: Fields = {
            "tokens": integers(tokens, np.int64, name="tokens"),
            "page_table": integers(page_table, np.int32, name="page_table"),
            "prompt_lens": None if prompt_lens is None else integers(prompt_lens, np.int64, name="prompt_lens"),
            "start_pos": None if start_pos is None else integers(start_pos, np.int64, name="start_pos"),
            "empty_slots": empty_slots,
            "kv_cache": kv_cache,
            "sampling_params": sampling_params,
        }
        return {**fields, **state}, enable_trace

    def normalize_decode(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        *,
        enable_trace: bool,
        kv_cache: Any = None,
        sampling_params: Any = None,
        reset_batch: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
        reset_sampling_state: bool = False,
        compatibility_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Fields, bool]:
        """The executors' arguments of a decode step, and whether it is to be traced.

        `tokens` `[B]` or `[B, 1]` and `start_pos` `[B]` become int64, `page_table` `[B, W]` int32. While
        `reload_inputs` is `None` the step says `reset_batch`; with a bool it follows the reload contract of version 1
        (decision D12): the four commands are checked and forwarded, and `slot_remap` is forwarded even when it is no
        configured request state (an identity is left out while inputs stay on the device). Errors as in
        `normalize_prefill`.
        """
        explicit = reload_inputs is not None
        state = self._request_state(compatibility_kwargs, "decode_forward", always=("slot_remap",) if explicit else ())
        self._check_trace(enable_trace, self.config.trace.decode_enabled, "decode")
        commands = check_reload_commands(
            reset_batch=reset_batch,
            reload_inputs=reload_inputs,
            reload_page_table=reload_page_table,
            reload_sampling_params=reload_sampling_params,
            reset_sampling_state=reset_sampling_state,
            can_stay_resident=enable_trace and sampling_params is not None,
        )
        if reload_inputs is False and moves_nothing(state.get("slot_remap")):
            # Servers with stable slots send the identity every step; resident inputs could not follow a real move.
            state.pop("slot_remap", None)
        ids = integers(tokens, np.int64, name="tokens")
        fields: Fields = {
            "tokens": ids.reshape(-1) if ids.ndim > 1 and ids.shape[-1] == 1 else ids,
            "start_pos": integers(start_pos, np.int64, name="start_pos"),
            "page_table": integers(page_table, np.int32, name="page_table"),
            "kv_cache": kv_cache,
            "sampling_params": sampling_params,
        }
        return {**fields, **commands, **state}, enable_trace

    def resolve_legacy_kv_cache_config(self, kv_cache_shape: Any, dtype: Any, num_layers: Any) -> PagedKVCacheConfig:
        """The cache policy with the block count of a server's uniform cache; the base policy is untouched.

        `kv_cache_shape` is `(num_blocks, kv_heads_per_device, block_size, head_dim)`, `dtype` the torch (or NumPy)
        dtype that stands for every layer's device dtype. `ValueError` naming the part that does not fit the model or
        the policy: only the number of blocks is the server's to choose, up to the policy's maximum. `TypeError` for a
        `dtype` that is none.
        """
        config, policy = self.config, self.config.paged_kv_cache
        blocks, heads, block_size, head_dim = server_cache_shape(kv_cache_shape)
        for name, value in (("num_blocks", blocks), ("block size", block_size)):
            if value <= 0:
                raise ValueError(f"kv_cache_shape: {name} must be positive, got {value}")
        if block_size != policy.block_size:
            raise ValueError(f"kv_cache_shape has block size {block_size}, the cache policy {policy.block_size}")
        _require_expected("KV heads per device", heads, config.expected_kv_heads_per_device)
        _require_expected("head dimension", head_dim, config.expected_head_dim)
        if num_layers != config.expected_num_layers or isinstance(num_layers, bool):
            raise ValueError(f"layer count {num_layers!r} differs from the model's {config.expected_num_layers}")
        self._check_dtype(dtype)
        if policy.num_blocks not in (None, blocks):
            raise ValueError(f"the KV capacity is already resolved to {policy.num_blocks} blocks, not {blocks}")
        if blocks > policy.max_num_blocks:
            raise ValueError(f"num_blocks {blocks} exceeds the cache policy's maximum of {policy.max_num_blocks}")
        return replace(policy, num_blocks=blocks)

    def _check_dtype(self, dtype: Any) -> None:
        name = server_dtype_name(dtype)
        wrong = sorted({host_dtype_name(own) for own in self.config.model_kv_cache_dtypes} - {name})
        if wrong:
            raise ValueError(f"dtype {name} does not stand for the model's KV dtype ({', '.join(wrong)})")

    def _request_state(
        self, compatibility_kwargs: Mapping[str, Any] | None, operation: str, *, always: tuple[str, ...]
    ) -> Fields:
        if compatibility_kwargs is None:
            return {}
        if not isinstance(compatibility_kwargs, Mapping):
            raise TypeError(f"compatibility_kwargs must be a mapping, got {type(compatibility_kwargs).__name__}")
        unknown = sorted(key for key in compatibility_kwargs if key not in _IGNORED and key not in REQUEST_STATE_FIELDS)
        if unknown:
            raise TypeError(f"{operation}() got an unexpected keyword argument {unknown[0]!r}")
        kept = (*self.config.request_state_fields, *always)
        given = {name: compatibility_kwargs.get(name) for name in REQUEST_STATE_FIELDS if name in kept}
        return {name: value for name, value in given.items() if value is not None}

    def _check_trace(self, enable_trace: Any, configured: bool, operation: str) -> None:
        if not isinstance(enable_trace, bool):
            raise TypeError(f"enable_trace must be a bool, got {enable_trace!r}")
        if enable_trace and not configured:
            raise ValueError(
                f"enable_trace is true for {operation}, but the static trace policy is {self.config.trace.mode!r}"
            )


def server_cache_shape(kv_cache_shape: Any) -> tuple[int, int, int, int]:
    """`(num_blocks, kv_heads_per_device, block_size, head_dim)` as ints; `ValueError` for another rank."""
    shape = tuple(int(size) for size in kv_cache_shape)
    if len(shape) != 4:
        raise ValueError(f"kv_cache_shape must have rank 4 (blocks, KV heads, block size, head dim), got {shape}")
    return shape[0], shape[1], shape[2], shape[3]


def moves_nothing(slot_remap: Any) -> bool:
    """Whether a remap is absent or the identity."""
    if slot_remap is None:
        return True
    sources = slot_remap.tolist() if hasattr(slot_remap, "tolist") else list(slot_remap)
    return bool(sources == list(range(len(sources))))


def _require_expected(what: str, value: int, expected: int | None) -> None:
    if expected is not None and value != expected:
        raise ValueError(f"kv_cache_shape has {what} {value}, the model {expected}")
