# SPDX-License-Identifier: Apache-2.0
"""Resolved static collaborators, capabilities and geometry ceilings of the prefill runtime.

Follows chapter 10, section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_runtime._validation import require_bool, require_instance
from llm_runtime.config import PageTableLayout
from llm_runtime.output_reader import OutputReader
from llm_runtime.prefill.config_checks import (
    check_alignment,
    check_batching,
    check_below_ceiling,
    check_cluster_shape,
    check_controller,
    check_model_mesh,
    check_prime_lengths,
    check_sizes,
    check_switches,
    cluster_shape_of,
    sampling_capabilities,
)

DEFAULT_MAX_PREFILL_BATCH_SIZE = 8


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
        check_sizes(max_batch_size, max_prefill_chunk_size)
        check_batching(
            supports_batched_prefill,
            disable_batched_prefill,
            max_prefill_batch_size,
            batched_prefill_batched_extract,
        )
        require_instance(output_reader, OutputReader, name="output_reader")
        mesh = output_reader.mesh_device
        cluster_shape = cluster_shape_of(mesh)
        check_switches(device_sampling_enabled, can_enable_trace)
        check_prime_lengths(trace_capture_prime_sequence_lengths)
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
        check_model_mesh(model, mesh)
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
        check_sizes(self.max_batch_size, self.max_prefill_chunk_size)
        check_batching(
            self.supports_batched_prefill,
            self.disable_batched_prefill,
            self.max_prefill_batch_size,
            self.batched_prefill_batched_extract,
        )
        require_instance(self.output_reader, OutputReader, name="output_reader")
        check_cluster_shape(self.cluster_shape)
        check_switches(self.device_sampling_enabled, self.can_enable_trace)
        check_prime_lengths(self.trace_capture_prime_sequence_lengths)
        require_instance(self.page_table_layout, PageTableLayout, name="page_table_layout")
        require_instance(self.page_table_layout_ceiling, PageTableLayout, name="page_table_layout_ceiling")
        check_below_ceiling(self.page_table_layout, self.page_table_layout_ceiling)
        block_size = self.page_table_layout.block_size
        check_alignment(self.prefill_start_alignment, self.max_prefill_chunk_size, block_size)
        if self.mesh_device is None or self.mesh_device is not self.output_reader.mesh_device:
            raise ValueError("mesh_device must be the output reader's mesh")
        check_model_mesh(self.model, self.mesh_device)
        self._check_capabilities()
        check_controller(self.model, self.sampling_state_controller, self.sampling_state)

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
        check_below_ceiling(layout, self.page_table_layout_ceiling)
        return dataclasses.replace(self, page_table_layout=layout)
