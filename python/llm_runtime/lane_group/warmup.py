# SPDX-License-Identifier: Apache-2.0
"""Warmup of every lane behind one capture barrier. Follows chapter 30, section 7.7, with hazard E closed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from llm_runtime._validation import positive_int, require_bool
from llm_runtime.lane_group.barrier import activate_together, defer_captures, needs_barrier
from llm_runtime.lane_group.members import LaneGroupMembers
from llm_runtime.lane_group.naming import naming_lane
from llm_runtime.lane_group.routing import per_lane


class LaneGroupWarmup(LaneGroupMembers):
    """The warmup part of `LaneGroupExecutor`."""

    def warmup_model_prefill(self, *, kv_cache: Any, can_sample_on_device: bool, enable_trace: bool) -> None:
        """Warm every lane's prefill in lane order; `kv_cache` is one handle per lane, or `None`.

        Captures are held back until every lane has everything compiled, and then made lane by lane. `ValueError` for
        hints beyond a lane's policy and `RuntimeError` for a traced call over lanes without a barrier leave the group
        usable; a failure in a lane, or lanes that differ in readiness afterwards (`RuntimeError`), end it.
        """
        self._warm(
            "prefill",
            kv_cache,
            can_sample_on_device=can_sample_on_device,
            enable_trace=enable_trace,
            warm=lambda executor: executor.warmup_model_prefill,
        )

    def warmup_model_decode(
        self,
        *,
        kv_cache: Any,
        max_batch_size: int,
        num_blocks: int,
        can_sample_on_device: bool,
        enable_trace: bool,
    ) -> None:
        """Warm every lane's decode; `num_blocks` is the width of the page tables. As `warmup_model_prefill`.

        `max_batch_size` is the group's rows (or already a lane's, else `ValueError`); lanes get their own capacity.
        """
        if max_batch_size not in (self.max_batch_size, self.per_lane_max_batch_size):
            raise ValueError(
                f"max_batch_size {max_batch_size!r} must be the group's {self.max_batch_size} rows "
                f"or a lane's {self.per_lane_max_batch_size}"
            )
        positive_int(num_blocks, name="num_blocks")
        self._warm(
            "decode",
            kv_cache,
            can_sample_on_device=can_sample_on_device,
            enable_trace=enable_trace,
            warm=lambda executor: partial(
                executor.warmup_model_decode, max_batch_size=self.per_lane_max_batch_size, num_blocks=num_blocks
            ),
        )

    def _warm(
        self,
        operation: str,
        kv_cache: Any,
        *,
        can_sample_on_device: bool,
        enable_trace: bool,
        warm: Callable[[Any], Callable[..., Any]],
    ) -> None:
        self._lifecycle.require_usable()
        require_bool(can_sample_on_device, name="can_sample_on_device")
        require_bool(enable_trace, name="enable_trace")
        caches = per_lane(kv_cache, self.tt_data_parallel, name="kv_cache")
        barrier = needs_barrier(self.lanes, enable_trace=enable_trace)
        for lane, executor in enumerate(self.lanes):
            with naming_lane(lane):
                _check_hints(executor, operation, caches[lane], sampled=can_sample_on_device, traced=enable_trace)
        deferrals = defer_captures(self.lanes) if barrier else nullcontext()
        with self._lifecycle.device_work() as work, deferrals:
            for lane, executor in enumerate(self.lanes):
                call = partial(
                    warm(executor),
                    kv_cache=caches[lane],
                    can_sample_on_device=can_sample_on_device,
                    enable_trace=enable_trace,
                )
                work.call(lane, call)
            if barrier:
                activate_together(self.lanes, work)


def _check_hints(executor: Any, operation: str, kv_cache: Any, *, sampled: bool, traced: bool) -> None:
    """Refuse before any lane compiles what the lane's warmup would refuse, where the lane tells its policy."""
    policy = getattr(getattr(executor, "warmup", None), "config", None)
    if traced and getattr(policy, f"{operation}_trace_enabled", True) is False:
        raise ValueError(f"{operation} trace warmup exceeds the lane's trace policy")
    if sampled and getattr(policy, "device_sampling_enabled", True) is False:
        raise ValueError("device sampling was requested for warmup, but the lane was built without it")
    validate = getattr(executor, "_validate_bound_cache", None)
    if callable(validate):
        validate(kv_cache)
