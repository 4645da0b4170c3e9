# SPDX-License-Identifier: Apache-2.0
"""Checks and derivations behind the prefill config. Follows chapter 10, sections 3.2 and 3.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_runtime import _core
from llm_runtime._validation import positive_int, require_bool
from llm_runtime.config import SUPPORTED_PREFILL_BATCH_SIZES, PageTableLayout
from llm_runtime.prefill.plan import _TILE_SIZE

_CHUNK_GRANULARITY = 2048


@dataclass(frozen=True)
class SamplingCapabilities:
    """What the model's device sampler can do; all off when device sampling is disabled."""

    allow_force_argmax: bool
    max_device_top_k: int
    sampling_batch_size: int
    static_q128_topk_supported: bool


def sampling_capabilities(model: Any, *, device_sampling_enabled: bool, max_batch_size: int) -> SamplingCapabilities:
    """Read the sampler's capabilities; ``model.sampling`` is not touched when device sampling is off."""
    if not device_sampling_enabled:
        return SamplingCapabilities(False, 0, max_batch_size, False)
    config = getattr(getattr(model, "sampling", None), "config", None)
    if config is None:
        raise TypeError("device sampling needs a resolved model.sampling.config")
    rows = positive_int(getattr(config, "max_batch_size", None), name="model.sampling.config.max_batch_size")
    return SamplingCapabilities(
        allow_force_argmax=require_bool(
            getattr(config, "allow_force_argmax", None), name="model.sampling.config.allow_force_argmax"
        ),
        max_device_top_k=positive_int(getattr(config, "max_top_k", None), name="model.sampling.config.max_top_k"),
        sampling_batch_size=rows,
        static_q128_topk_supported=rows >= _TILE_SIZE,
    )


def check_sizes(max_batch_size: Any, max_prefill_chunk_size: Any) -> None:
    positive_int(max_batch_size, name="max_batch_size")
    positive_int(max_prefill_chunk_size, name="max_prefill_chunk_size")
    _core.validate_prefill_chunk_size(max_prefill_chunk_size)


def check_batching(supports: Any, disable: Any, max_rows: Any, batched_extract: Any) -> None:
    require_bool(supports, name="supports_batched_prefill")
    require_bool(disable, name="disable_batched_prefill")
    positive_int(max_rows, name="max_prefill_batch_size")
    if max_rows not in SUPPORTED_PREFILL_BATCH_SIZES:
        raise ValueError(f"max_prefill_batch_size must be one of {SUPPORTED_PREFILL_BATCH_SIZES}, got {max_rows}")
    require_bool(batched_extract, name="batched_prefill_batched_extract")


def check_switches(device_sampling_enabled: Any, can_enable_trace: Any) -> None:
    require_bool(device_sampling_enabled, name="device_sampling_enabled")
    if not callable(can_enable_trace):
        raise TypeError(f"can_enable_trace must be callable, got {can_enable_trace!r}")


def check_prime_lengths(lengths: Any) -> None:
    if not isinstance(lengths, tuple):
        raise TypeError(f"trace_capture_prime_sequence_lengths must be a tuple, got {type(lengths).__name__}")
    if len(set(lengths)) != len(lengths):
        raise ValueError(f"trace_capture_prime_sequence_lengths must be unique, got {lengths}")
    for index, length in enumerate(lengths):
        positive_int(length, name=f"trace_capture_prime_sequence_lengths[{index}]")


def cluster_shape_of(mesh: Any) -> tuple[int, int]:
    try:
        shape = tuple(int(size) for size in mesh.shape)
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError("the output reader's mesh_device needs a two-dimensional shape") from error
    check_cluster_shape(shape)
    return shape[0], shape[1]


def check_cluster_shape(shape: Any) -> None:
    if not isinstance(shape, tuple):
        raise TypeError(f"cluster_shape must be a tuple, got {type(shape).__name__}")
    if len(shape) != 2:
        raise ValueError(f"cluster_shape must have two entries, got {shape}")
    for index, size in enumerate(shape):
        positive_int(size, name=f"cluster_shape[{index}]")


def check_alignment(alignment: Any, chunk_size: int, block_size: int) -> None:
    positive_int(alignment, name="prefill_start_alignment")
    if alignment % block_size:
        raise ValueError(f"prefill_start_alignment {alignment} must be a multiple of the block size {block_size}")
    granularity = _CHUNK_GRANULARITY if chunk_size % _CHUNK_GRANULARITY == 0 else chunk_size
    if granularity % block_size:
        # A chunk that starts inside a block would write its first tokens into the wrong offsets.
        raise ValueError(
            f"max_prefill_chunk_size {chunk_size} is cut in steps of {granularity} tokens, which must be a multiple "
            f"of the block size {block_size}"
        )


def check_below_ceiling(layout: PageTableLayout, ceiling: PageTableLayout) -> None:
    if layout.block_size != ceiling.block_size:
        raise ValueError(
            f"page_table_layout block_size {layout.block_size} differs from the resolved block_size "
            f"{ceiling.block_size}"
        )
    if layout.raw_capacity_width > ceiling.raw_capacity_width:
        raise ValueError(
            f"page_table_layout raw width {layout.raw_capacity_width} exceeds the capacity ceiling "
            f"{ceiling.raw_capacity_width}"
        )
    for name in ("prefill_width", "decode_width"):
        width, limit = getattr(layout, name), getattr(ceiling, name)
        if width > limit:
            raise ValueError(f"page_table_layout {name} {width} exceeds the canonical geometry ceiling {limit}")


def check_model_mesh(model: Any, mesh: Any) -> None:
    model_mesh = getattr(getattr(model, "config", None), "mesh_device", None)
    if model_mesh is None:
        model_mesh = getattr(model, "mesh_device", None)
    if model_mesh is None or model_mesh is not mesh:
        raise ValueError("the model and the prefill runtime's output reader must share one mesh device")


def check_controller(model: Any, controller: Any, state: Any) -> None:
    if (controller is None) != (state is None):
        raise ValueError("sampling_state_controller and sampling_state must be given together")
    if controller is None:
        return
    if getattr(controller, "sampling", None) is not model.sampling:
        raise ValueError("sampling_state_controller.sampling must be model.sampling")
    for name in ("admit", "admit_prefill", "prefill_forward", "reset"):
        if not callable(getattr(controller, name, None)):
            raise TypeError(f"sampling_state_controller needs a callable {name}")
