# SPDX-License-Identifier: Apache-2.0
"""Resolved warmup policy of one lane: lengths, capabilities and the two coverage plans.

Follows chapter 30, section 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llm_runtime._validation import positive_int, require_bool, require_instance
from llm_runtime.config import PageTableLayout, TraceConfig, WarmupConfig
from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.sampling_limits import serves_log_probs
from llm_runtime.warmup.cases import WarmupCase, WarmupPlan
from llm_runtime.warmup.checks import check_layout, check_lengths, check_shared, complete_lengths, traced_lengths
from llm_runtime.warmup.geometry import ServingLimits, capacity_tokens
from llm_runtime.warmup.plan import PlanInputs, build_plan, wave_gaps

__all__ = ["WarmupCoordinatorConfig"]

_TILE_END_ROWS = 32
_FLAGS = (
    "device_sampling_enabled",
    "allow_force_argmax",
    "prime_q128_tile_ends",
    "prefill_trace_enabled",
    "decode_trace_enabled",
    "decode_sampling_state_enabled",
    "sampling_logprobs_enabled",
)


@dataclass(frozen=True)
class WarmupCoordinatorConfig:
    """What warmup compiles and traces; ``model`` is borrowed, everything else is immutable.

    Construction checks the value as a whole, so ``dataclasses.replace`` cannot make plans and policy drift:
    TypeError for kinds, ValueError for contradictions.
    """

    warmup: WarmupConfig
    model: Any
    page_table_layout: PageTableLayout
    page_table_layout_ceiling: PageTableLayout
    prefill_sequence_lengths: tuple[int, ...]
    lane_batch_size: int
    device_sampling_enabled: bool
    allow_force_argmax: bool
    prime_q128_tile_ends: bool
    prefill_trace_enabled: bool
    decode_trace_enabled: bool
    eager_plan: WarmupPlan
    sampled_plan: WarmupPlan
    prefill_trace_sequence_lengths: tuple[int, ...]
    limits: ServingLimits
    decode_sampling_state_enabled: bool = False
    sampling_logprobs_enabled: bool = False

    def __post_init__(self) -> None:
        require_instance(self.warmup, WarmupConfig, name="warmup")
        for name in ("page_table_layout", "page_table_layout_ceiling"):
            require_instance(getattr(self, name), PageTableLayout, name=name)
        for name in ("eager_plan", "sampled_plan"):
            require_instance(getattr(self, name), WarmupPlan, name=name)
        require_instance(self.limits, ServingLimits, name="limits")
        for name in _FLAGS:
            require_bool(getattr(self, name), name=name)
        if self.model is None:
            raise ValueError("model must not be None")
        check_lengths(self.prefill_sequence_lengths)
        self._checktraced_lengths()
        positive_int(self.lane_batch_size, name="lane_batch_size")
        if self.allow_force_argmax and not self.device_sampling_enabled:
            raise ValueError("allow_force_argmax requires device_sampling_enabled")
        tile_ends = self.device_sampling_enabled and self.lane_batch_size >= _TILE_END_ROWS
        if self.prime_q128_tile_ends != tile_ends:
            raise ValueError(
                f"prime_q128_tile_ends must be {tile_ends} for {self.lane_batch_size} rows with device sampling "
                f"{self.device_sampling_enabled}"
            )
        check_layout(self.page_table_layout, self.page_table_layout_ceiling)
        if self.eager_plan != build_plan(self._plan_inputs(), device_sampling=False):
            raise ValueError("eager_plan must match the plan of this configuration")
        if self.sampled_plan != build_plan(self._plan_inputs(), device_sampling=self.device_sampling_enabled):
            raise ValueError("sampled_plan must match the plan of this configuration")

    def _checktraced_lengths(self) -> None:
        traced = self.prefill_trace_sequence_lengths
        if not isinstance(traced, tuple):
            raise TypeError(f"prefill_trace_sequence_lengths must be a tuple, got {type(traced).__name__}")
        if traced and not self.prefill_trace_enabled:
            raise ValueError("prefill_trace_sequence_lengths must be empty while prefill is not traced")
        foreign = [length for length in traced if length not in self.prefill_sequence_lengths]
        if foreign:
            raise ValueError(f"traced prefill lengths {foreign} are not among the warmed lengths")

    def _plan_inputs(self) -> PlanInputs:
        return PlanInputs(
            warmup=self.warmup,
            layout=self.page_table_layout,
            lengths=self.prefill_sequence_lengths,
            lane_batch_size=self.lane_batch_size,
            allow_force_argmax=self.allow_force_argmax,
            limits=self.limits,
            penalties=self.decode_sampling_state_enabled,
            log_probs=self.sampling_logprobs_enabled,
        )

    def plan(self, *, device_sampling: bool) -> WarmupPlan:
        """The plan of one sampling decision."""
        return self.sampled_plan if device_sampling else self.eager_plan

    def traces_prefill_case(self, case: WarmupCase) -> bool:
        """Whether the case's length can be traced."""
        return case.sequence_length in self.prefill_trace_sequence_lengths

    def traces_case(self, case: WarmupCase) -> bool:
        """Whether the case can be traced: every decode case, prefill by its length."""
        return case.operation == "decode" or self.traces_prefill_case(case)

    @property
    def coverage_gaps(self) -> tuple[WarmupCase, ...]:
        """Prefill cases that serving can ask for but that the configured batch sizes leave out."""
        return wave_gaps(self._plan_inputs(), device_sampling=self.device_sampling_enabled)

    @classmethod
    def resolve(
        cls,
        *,
        warmup: WarmupConfig,
        trace: TraceConfig,
        prefill: PrefillRuntimeConfig,
        decode: DecodeRuntimeConfig,
        prefill_sequence_lengths: tuple[int, ...],
    ) -> WarmupCoordinatorConfig:
        """Check that prefill and decode describe one lane and build the plans.

        ``warmup.prefill_seq_lens`` overrides ``prefill_sequence_lengths``. With any tracing every bucket up to
        the chunk cap must be among the lengths (ValueError listing the missing ones), and chunk sizes that no
        length brings are added.
        """
        require_instance(warmup, WarmupConfig, name="warmup")
        require_instance(trace, TraceConfig, name="trace")
        require_instance(prefill, PrefillRuntimeConfig, name="prefill")
        require_instance(decode, DecodeRuntimeConfig, name="decode")
        check_shared(prefill, decode)
        lengths = warmup.prefill_seq_lens or prefill_sequence_lengths
        check_lengths(lengths)
        limits = ServingLimits.of(prefill)
        if trace.mode != "none":
            lengths = complete_lengths(lengths, limits, capacity_tokens(prefill.page_table_layout_ceiling))
        log_probs = decode.device_sampling_enabled and serves_log_probs(decode.model, num_devices=decode.num_devices)
        inputs = PlanInputs(
            warmup=warmup,
            layout=prefill.page_table_layout,
            lengths=lengths,
            lane_batch_size=decode.lane_capacity,
            allow_force_argmax=decode.allow_force_argmax,
            limits=limits,
            penalties=decode.sampling_state_controller is not None,
            log_probs=log_probs,
        )
        return cls(
            warmup=warmup,
            model=prefill.model,
            page_table_layout=prefill.page_table_layout,
            page_table_layout_ceiling=prefill.page_table_layout_ceiling,
            prefill_sequence_lengths=lengths,
            lane_batch_size=decode.lane_capacity,
            device_sampling_enabled=decode.device_sampling_enabled,
            allow_force_argmax=decode.allow_force_argmax,
            prime_q128_tile_ends=decode.device_sampling_enabled and decode.lane_capacity >= _TILE_END_ROWS,
            prefill_trace_enabled=trace.prefill_enabled,
            decode_trace_enabled=trace.decode_enabled,
            eager_plan=build_plan(inputs, device_sampling=False),
            sampled_plan=build_plan(inputs, device_sampling=decode.device_sampling_enabled),
            prefill_trace_sequence_lengths=traced_lengths(trace, prefill, lengths),
            limits=limits,
            decode_sampling_state_enabled=inputs.penalties,
            sampling_logprobs_enabled=log_probs,
        )

    def with_page_table_layout(self, layout: PageTableLayout) -> WarmupCoordinatorConfig:
        """Return a copy with ``layout`` inside the ceiling and both plans built anew.

        TypeError for another type; ValueError for another block size or a width above the ceiling.
        """
        require_instance(layout, PageTableLayout, name="page_table_layout")
        check_layout(layout, self.page_table_layout_ceiling)
        inputs = replace(self._plan_inputs(), layout=layout)
        return replace(
            self,
            page_table_layout=layout,
            eager_plan=build_plan(inputs, device_sampling=False),
            sampled_plan=build_plan(inputs, device_sampling=self.device_sampling_enabled),
        )
