# SPDX-License-Identifier: Apache-2.0
"""Resolved static collaborators, capabilities and geometry ceilings of the prefill runtime.

Follows chapter 10, section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_runtime import _core
from llm_runtime._validation import positive_int, require_bool, require_instance
from llm_runtime.config import SUPPORTED_PREFILL_BATCH_SIZES, PageTableLayout
from llm_runtime.output_reader import OutputReader
from llm_runtime.prefill.plan import _TILE_SIZE

DEFAULT_MAX_PREFILL_BATCH_SIZE = 8

_CHUNK_GRANULARITY = 2048


@dataclass(frozen=True)
class SamplingCapabilities:
    """What the model's device sampler can do; all off when device sampling is disabled."""

    allow_force_argmax: bool
    max_device_top_k: int
    sampling_batch_size: int
    static_q128_topk_supported: bool


@dataclass(frozen=True, kw_only=True)
class PrefillRuntimeConfig:
    """Everything about prefill that is fixed at construction; build it with :meth:`resolve`.

    ``model``, ``output_reader``, ``sampling_state_controller`` and ``sampling_state`` are borrowed.
    ``prefill_start_alignment`` is in tokens: a cached offset is rounded down to a multiple of it and the
    difference is computed again. The four sampler capabilities are derived and must equal what the sampler
    says.
    """

    model: Any
    mesh_device: Any
    output_reader: OutputReader
    page_table_layout: PageTableLayout
    page_table_layout_ceiling: PageTableLayout
    max_batch_size: int
    max_prefill_chunk_size: int
    supports_batched_prefill: bool
    disable_batched_prefill: bool
    max_prefill_batch_size: int
    batched_prefill_batched_extract: bool
    prefill_start_alignment: int
    cluster_shape: tuple[int, int]
    device_sampling_enabled: bool
    can_enable_trace: Callable[[int, int], bool]
    trace_capture_prime_sequence_lengths: tuple[int, ...]
    allow_force_argmax: bool
    max_device_top_k: int
    sampling_batch_size: int
    static_q128_topk_supported: bool
    sampling_state_controller: Any
    sampling_state: Any

    @classmethod
    def resolve(
        cls,
        *,
        model: Any,
        output_reader: OutputReader,
        page_table_layout: PageTableLayout,
        max_batch_size: int,
        max_prefill_chunk_size: int,
        device_sampling_enabled: bool,
        can_enable_trace: Callable[[int, int], bool],
        supports_batched_prefill: bool = False,
        disable_batched_prefill: bool = False,
        max_prefill_batch_size: int = DEFAULT_MAX_PREFILL_BATCH_SIZE,
        batched_prefill_batched_extract: bool = True,
        prefill_start_alignment: int | None = None,
        trace_capture_prime_sequence_lengths: tuple[int, ...] = (),
        sampling_state_controller: Any = None,
        sampling_state: Any = None,
    ) -> PrefillRuntimeConfig:
        """Validate the collaborators, derive the sampler capabilities and fix the geometry ceiling.

        ``max_prefill_chunk_size`` is in tokens: a power of two of at least 128 or a multiple of 2048, and a
        multiple of the block size. Without ``prefill_start_alignment`` the model's attribute of that name
        decides, else the block size. Raises ``ValueError`` for a bad value and ``TypeError`` for a bad
        type, naming the field.
        """
        _check_sizes(max_batch_size, max_prefill_chunk_size)
        _check_batching(
            supports_batched_prefill,
            disable_batched_prefill,
            max_prefill_batch_size,
            batched_prefill_batched_extract,
        )
        require_instance(output_reader, OutputReader, name="output_reader")
        mesh = output_reader.mesh_device
        cluster_shape = _cluster_shape_of(mesh)
        _check_switches(device_sampling_enabled, can_enable_trace)
        _check_prime_lengths(trace_capture_prime_sequence_lengths)
        for index, length in enumerate(trace_capture_prime_sequence_lengths):
            if length > max_prefill_chunk_size:
                raise ValueError(
                    f"trace_capture_prime_sequence_lengths[{index}] {length} exceeds max_prefill_chunk_size "
                    f"{max_prefill_chunk_size}"
                )
        require_instance(page_table_layout, PageTableLayout, name="page_table_layout")
        if prefill_start_alignment is None:
            declared = getattr(model, "prefill_start_alignment", None)
            prefill_start_alignment = page_table_layout.block_size if declared is None else declared
        _check_model_mesh(model, mesh)
        capabilities = sampling_capabilities(
            model, device_sampling_enabled=device_sampling_enabled, max_batch_size=max_batch_size
        )
        return cls(
            model=model,
            mesh_device=mesh,
            output_reader=output_reader,
            page_table_layout=page_table_layout,
            page_table_layout_ceiling=page_table_layout,
            max_batch_size=max_batch_size,
            max_prefill_chunk_size=max_prefill_chunk_size,
            supports_batched_prefill=supports_batched_prefill,
            disable_batched_prefill=disable_batched_prefill,
            max_prefill_batch_size=max_prefill_batch_size,
            batched_prefill_batched_extract=batched_prefill_batched_extract,
            prefill_start_alignment=prefill_start_alignment,
            cluster_shape=cluster_shape,
            device_sampling_enabled=device_sampling_enabled,
            can_enable_trace=can_enable_trace,
            trace_capture_prime_sequence_lengths=trace_capture_prime_sequence_lengths,
            sampling_state_controller=sampling_state_controller,
            sampling_state=sampling_state,
            **dataclasses.asdict(capabilities),
        )

    def __post_init__(self) -> None:
        _check_sizes(self.max_batch_size, self.max_prefill_chunk_size)
        _check_batching(
            self.supports_batched_prefill,
            self.disable_batched_prefill,
            self.max_prefill_batch_size,
            self.batched_prefill_batched_extract,
        )
        require_instance(self.output_reader, OutputReader, name="output_reader")
        _check_cluster_shape(self.cluster_shape)
        _check_switches(self.device_sampling_enabled, self.can_enable_trace)
        _check_prime_lengths(self.trace_capture_prime_sequence_lengths)
        require_instance(self.page_table_layout, PageTableLayout, name="page_table_layout")
        require_instance(self.page_table_layout_ceiling, PageTableLayout, name="page_table_layout_ceiling")
        _check_below_ceiling(self.page_table_layout, self.page_table_layout_ceiling)
        block_size = self.page_table_layout.block_size
        _check_alignment(self.prefill_start_alignment, self.max_prefill_chunk_size, block_size)
        if self.mesh_device is None or self.mesh_device is not self.output_reader.mesh_device:
            raise ValueError("mesh_device must be the output reader's mesh")
        _check_model_mesh(self.model, self.mesh_device)
        self._check_capabilities()
        _check_controller(self.model, self.sampling_state_controller, self.sampling_state)

    def _check_capabilities(self) -> None:
        require_bool(self.allow_force_argmax, name="allow_force_argmax")
        require_bool(self.static_q128_topk_supported, name="static_q128_topk_supported")
        if not self.device_sampling_enabled and self.max_device_top_k != 0:
            raise ValueError(f"max_device_top_k must be 0 without device sampling, got {self.max_device_top_k!r}")
        current = sampling_capabilities(
            self.model, device_sampling_enabled=self.device_sampling_enabled, max_batch_size=self.max_batch_size
        )
        for item in dataclasses.fields(current):
            wanted, stored = getattr(current, item.name), getattr(self, item.name)
            if stored != wanted:
                raise ValueError(f"{item.name} is {stored!r}, the model's sampler says {wanted!r}")

    def with_page_table_layout(self, layout: PageTableLayout) -> PrefillRuntimeConfig:
        """Return a copy with ``layout``, which may shrink and grow again inside the construction-time
        ceiling.

        Raises ``ValueError`` for another block size or a width above the ceiling, ``TypeError`` for a
        foreign type.
        """
        require_instance(layout, PageTableLayout, name="page_table_layout")
        _check_below_ceiling(layout, self.page_table_layout_ceiling)
        return dataclasses.replace(self, page_table_layout=layout)


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


def _check_sizes(max_batch_size: Any, max_prefill_chunk_size: Any) -> None:
    positive_int(max_batch_size, name="max_batch_size")
    positive_int(max_prefill_chunk_size, name="max_prefill_chunk_size")
    _core.validate_prefill_chunk_size(max_prefill_chunk_size)


def _check_batching(supports: Any, disable: Any, max_rows: Any, batched_extract: Any) -> None:
    require_bool(supports, name="supports_batched_prefill")
    require_bool(disable, name="disable_batched_prefill")
    positive_int(max_rows, name="max_prefill_batch_size")
    if max_rows not in SUPPORTED_PREFILL_BATCH_SIZES:
        raise ValueError(f"max_prefill_batch_size must be one of {SUPPORTED_PREFILL_BATCH_SIZES}, got {max_rows}")
    require_bool(batched_extract, name="batched_prefill_batched_extract")


def _check_switches(device_sampling_enabled: Any, can_enable_trace: Any) -> None:
    require_bool(device_sampling_enabled, name="device_sampling_enabled")
    if not callable(can_enable_trace):
        raise TypeError(f"can_enable_trace must be callable, got {can_enable_trace!r}")


def _check_prime_lengths(lengths: Any) -> None:
    if not isinstance(lengths, tuple):
        raise TypeError(f"trace_capture_prime_sequence_lengths must be a tuple, got {type(lengths).__name__}")
    if len(set(lengths)) != len(lengths):
        raise ValueError(f"trace_capture_prime_sequence_lengths must be unique, got {lengths}")
    for index, length in enumerate(lengths):
        positive_int(length, name=f"trace_capture_prime_sequence_lengths[{index}]")


def _cluster_shape_of(mesh: Any) -> tuple[int, int]:
    try:
        shape = tuple(int(size) for size in mesh.shape)
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError("the output reader's mesh_device needs a two-dimensional shape") from error
    _check_cluster_shape(shape)
    return shape[0], shape[1]


def _check_cluster_shape(shape: Any) -> None:
    if not isinstance(shape, tuple):
        raise TypeError(f"cluster_shape must be a tuple, got {type(shape).__name__}")
    if len(shape) != 2:
        raise ValueError(f"cluster_shape must have two entries, got {shape}")
    for index, size in enumerate(shape):
        positive_int(size, name=f"cluster_shape[{index}]")


def _check_alignment(alignment: Any, chunk_size: int, block_size: int) -> None:
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


def _check_below_ceiling(layout: PageTableLayout, ceiling: PageTableLayout) -> None:
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


def _check_model_mesh(model: Any, mesh: Any) -> None:
    model_mesh = getattr(getattr(model, "config", None), "mesh_device", None)
    if model_mesh is None:
        model_mesh = getattr(model, "mesh_device", None)
    if model_mesh is None or model_mesh is not mesh:
        raise ValueError("the model and the prefill runtime's output reader must share one mesh device")


def _check_controller(model: Any, controller: Any, state: Any) -> None:
    if (controller is None) != (state is None):
        raise ValueError("sampling_state_controller and sampling_state must be given together")
    if controller is None:
        return
    if getattr(controller, "sampling", None) is not model.sampling:
        raise ValueError("sampling_state_controller.sampling must be model.sampling")
    for name in ("admit", "admit_prefill", "prefill_forward", "reset"):
        if not callable(getattr(controller, name, None)):
            raise TypeError(f"sampling_state_controller needs a callable {name}")
