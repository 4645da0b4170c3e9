# SPDX-License-Identifier: Apache-2.0
"""What the adapter knows about the model behind it. Follows chapter 40, section C.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_runtime._validation import positive_int
from llm_runtime.config import PagedKVCacheConfig, TraceConfig

__all__ = ["REQUEST_STATE_FIELDS", "VLLMAdapterConfig"]

#: Per-request state that a server may send beside tokens and positions, in the order in which it is forwarded.
REQUEST_STATE_FIELDS = ("prompt_tokens", "output_tokens", "slot_remap")

_EXPECTATIONS = ("expected_num_layers", "expected_kv_heads_per_device", "expected_head_dim")


@dataclass(frozen=True)
class VLLMAdapterConfig:
    """Static policies and the KV geometry that a server's shapes must have.

    `trace` and `paged_kv_cache` (usually without `num_blocks`) are of exactly these types. `None` for heads or head
    dimension skips that check. `model_kv_cache_dtypes` are device dtypes: one for all layers, or one per layer.
    `request_state_fields` names the request state that the executors take.

    Direct construction wants finished values (ints, tuples); `resolve` converts model metadata first. `TypeError` for
    kinds, `ValueError` for values, naming the field.
    """

    trace: TraceConfig
    paged_kv_cache: PagedKVCacheConfig
    expected_num_layers: int
    expected_kv_heads_per_device: int | None
    expected_head_dim: int | None
    model_kv_cache_dtypes: tuple[Any, ...]
    request_state_fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in (("trace", TraceConfig), ("paged_kv_cache", PagedKVCacheConfig)):
            value = getattr(self, name)
            if type(value) is not kind:
                raise TypeError(f"{name} must be exactly {kind.__name__}, got {type(value).__name__}")
        for name in _EXPECTATIONS:
            value = getattr(self, name)
            if value is not None or name == "expected_num_layers":
                positive_int(value, name=name)
        self._check_dtypes()
        check_request_state_fields(self.request_state_fields)

    def _check_dtypes(self) -> None:
        dtypes, layers = self.model_kv_cache_dtypes, self.expected_num_layers
        if not isinstance(dtypes, tuple):
            raise TypeError(f"model_kv_cache_dtypes must be a tuple, got {type(dtypes).__name__}")
        if not dtypes:
            raise ValueError("model_kv_cache_dtypes cannot be empty")
        if len(dtypes) not in (1, layers):
            raise ValueError(
                f"model_kv_cache_dtypes needs one dtype per model layer ({layers}) or one for all, got {len(dtypes)}"
            )
        if all(dtype == dtypes[0] for dtype in dtypes) and dtypes[0] != self.paged_kv_cache.dtype:
            raise ValueError(
                f"paged_kv_cache has dtype {self.paged_kv_cache.dtype!r}, the model-owned dtype is {dtypes[0]!r}"
            )

    @classmethod
    def resolve(
        cls,
        *,
        trace: TraceConfig,
        paged_kv_cache: PagedKVCacheConfig,
        expected_num_layers: Any,
        expected_kv_heads_per_device: Any,
        expected_head_dim: Any,
        model_kv_cache_dtype: Any = None,
        request_state_fields: Sequence[str] = (),
    ) -> VLLMAdapterConfig:
        """Build a config from model metadata: integral floats become ints, a dtype or a list of them a tuple."""
        counts = {
            "expected_num_layers": _integral(expected_num_layers),
            "expected_kv_heads_per_device": _integral(expected_kv_heads_per_device),
            "expected_head_dim": _integral(expected_head_dim),
        }
        if model_kv_cache_dtype is None:
            raise TypeError("model_kv_cache_dtype must be given, it comes from model metadata")
        one_for_all = isinstance(model_kv_cache_dtype, str) or not isinstance(model_kv_cache_dtype, Sequence)
        if isinstance(request_state_fields, str) or not isinstance(request_state_fields, Sequence):
            raise TypeError(f"request_state_fields must be a sequence of names, got {request_state_fields!r}")
        return cls(
            trace=trace,
            paged_kv_cache=paged_kv_cache,
            **counts,
            model_kv_cache_dtypes=(model_kv_cache_dtype,) if one_for_all else tuple(model_kv_cache_dtype),
            request_state_fields=tuple(request_state_fields),
        )


def check_request_state_fields(fields: Any) -> None:
    """Demand a tuple of distinct known names in canonical order: `TypeError`, else `ValueError` naming the fields."""
    if not isinstance(fields, tuple):
        raise TypeError(f"request_state_fields must be a tuple of names, got {fields!r}")
    if len(set(fields)) != len(fields):
        raise ValueError(f"request_state_fields repeats a field: {fields}")
    unknown = [name for name in fields if name not in REQUEST_STATE_FIELDS]
    if unknown:
        raise ValueError(f"request_state_fields knows {REQUEST_STATE_FIELDS}, got {unknown[0]!r}")
    if fields != tuple(name for name in REQUEST_STATE_FIELDS if name in fields):
        raise ValueError(f"request_state_fields must keep the order {REQUEST_STATE_FIELDS}, got {fields}")


def _integral(value: Any) -> Any:
    """An int for an integral float or NumPy integer; anything else unchanged, for the construction to judge."""
    if isinstance(value, np.integer) or (isinstance(value, (float, np.floating)) and float(value).is_integer()):
        return int(value)
    return value
