# SPDX-License-Identifier: Apache-2.0
"""The frozen policy of one model executor, and the checks of its construction arguments (chapter 40, A.1, A.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig
from llm_runtime.vllm_adapter.config import check_request_state_fields
from llm_runtime.wait_limit import require_wait_limit


@dataclass(frozen=True)
class ModelExecutorConfig:
    """Policy only: it never holds a model, a mesh, a tokenizer or a sampler.

    `TypeError` naming the field unless each policy is exactly of its type (a subclass is refused too).
    """

    trace: TraceConfig
    warmup: WarmupConfig
    paged_kv_cache: PagedKVCacheConfig
    device_sampling_enabled: bool

    def __post_init__(self) -> None:
        exact = {"trace": TraceConfig, "warmup": WarmupConfig, "paged_kv_cache": PagedKVCacheConfig}
        for name, kind in exact.items():
            if type(getattr(self, name)) is not kind:
                found = type(getattr(self, name)).__name__
                raise TypeError(f"{name} must be exactly {kind.__name__}, got {found}")
        if not isinstance(self.device_sampling_enabled, bool):
            raise TypeError(f"device_sampling_enabled must be a bool, got {self.device_sampling_enabled!r}")


def check_construction(
    model: Any,
    runtime_config: Any,
    config: Any,
    *,
    owner_name: Any,
    disable_batched_prefill: Any,
    sampling_state_controller: Any,
    sampling_state: Any,
    sampling_type: Any,
    request_state_fields: Any,
    prefill_warmup: Any,
    output_wait_limit: Any,
) -> None:
    """Refuse bad construction arguments, in the order of chapter 40 A.2, before any owner is built."""
    if not isinstance(config, ModelExecutorConfig):
        raise TypeError(f"config must be a ModelExecutorConfig, got {type(config).__name__}")
    if not isinstance(owner_name, str) or not owner_name:
        raise ValueError(f"owner_name must be a non-empty str, got {owner_name!r}")
    if sampling_type is not None and not isinstance(sampling_type, type):
        raise TypeError(f"sampling_type must be a class, got {sampling_type!r}")
    if prefill_warmup is not None and not callable(prefill_warmup):
        raise TypeError(f"prefill_warmup must be callable, got {type(prefill_warmup).__name__}")
    if disable_batched_prefill is not None and not isinstance(disable_batched_prefill, bool):
        raise TypeError(f"disable_batched_prefill must be a bool, got {disable_batched_prefill!r}")
    if (sampling_state_controller is None) != (sampling_state is None):
        raise ValueError("sampling_state_controller and sampling_state must be supplied together")
    if sampling_state_controller is not None and not config.device_sampling_enabled:
        raise ValueError("a sampling_state_controller requires device sampling")
    check_request_state_fields(request_state_fields)
    if not callable(getattr(model, "iter_executor_named_modules", None)):
        raise TypeError(f"{type(model).__name__} has no callable iter_executor_named_modules")
    if not callable(getattr(runtime_config, "can_enable_trace", None)):
        raise TypeError(f"{type(runtime_config).__name__} has no callable can_enable_trace")
    if getattr(getattr(model, "config", None), "mesh_device", None) is None:
        raise ValueError(f"{type(model).__name__} has no config.mesh_device")
    if config.device_sampling_enabled:
        _check_sampler(model, sampling_type)
    require_wait_limit(output_wait_limit, name="output_wait_limit")


def _check_sampler(model: Any, sampling_type: type | None) -> None:
    sampler = getattr(model, "sampling", None)
    if sampler is None or (sampling_type is not None and not isinstance(sampler, sampling_type)):
        wanted = "a sampler" if sampling_type is None else f"a {sampling_type.__name__}"
        raise TypeError(f"device sampling needs {wanted} as model.sampling, got {type(sampler).__name__}")
    is_resolved = getattr(getattr(sampler, "config", None), "is_resolved", None)
    if not callable(is_resolved) or not is_resolved():
        raise ValueError("device sampling needs a resolved model.sampling.config")
