# SPDX-License-Identifier: Apache-2.0
"""The lanes of a group: taking them over, what they have in common, KV cache fanout, and cleanup.

Follows chapter 30, sections 7.1, 7.7 and 7.8.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

from llm_runtime.errors import TraceCoverageError
from llm_runtime.lane_group.lifecycle import LaneLifecycle
from llm_runtime.lane_group.naming import naming_lane
from llm_runtime.lane_group.reads import LaneReads
from llm_runtime.lane_group.routing import per_lane
from llm_runtime.tensor_resources import attach_cleanup_failures

_BAD_INPUT = (TraceCoverageError, TypeError, ValueError)


class LaneGroupMembers:
    """Lanes of one capacity. Owns them from the moment they are given; the meshes and models stay borrowed."""

    def __init__(self, lanes: Sequence[Any], *, mesh_device: Any = None) -> None:
        """Take over `lanes` (executors of one lane each); `mesh_device` is the parent mesh, if there is one.

        `ValueError` without lanes, for a lane given twice, and for capacities that are not positive or not equal.
        Except for an empty group, a failure cleans every lane; what fails there is attached.
        """
        if not lanes:
            raise ValueError("a lane group needs at least one lane")
        members = list(lanes)
        try:
            capacity = _common_capacity(members)
            self._take_over(members, capacity, mesh_device)
        except BaseException as error:
            attach_cleanup_failures(error, _clean(members))
            raise

    def _take_over(self, lanes: list[Any], capacity: int, mesh_device: Any) -> None:
        self.lanes = self.executors = lanes
        self.tt_data_parallel = len(lanes)
        self.per_lane_max_batch_size = capacity
        self.max_batch_size = capacity * len(lanes)
        self.model = [lane.model for lane in lanes]
        self.model_args = [lane.model_args for lane in lanes]
        self.mesh_devices = [lane.mesh_device for lane in lanes]
        self.mesh_device = tuple(self.mesh_devices) if mesh_device is None else mesh_device
        self.eager_execution = tuple(lane.eager_execution for lane in lanes)
        self.traced_prefill_execution = _all_or_none([lane.traced_prefill_execution for lane in lanes])
        self.traced_decode_execution = _all_or_none([lane.traced_decode_execution for lane in lanes])
        self._reads = LaneReads(len(lanes))
        self._lifecycle = LaneLifecycle(lanes, self._reads)

    @property
    def terminal(self) -> bool:
        """True after `cleanup()`, and after a failure of device work."""
        return self._lifecycle.terminal

    @property
    def cache_path(self) -> Any:
        """The first lane's cache path."""
        return self.lanes[0].cache_path

    @property
    def paged_kv_cache_config(self) -> tuple[Any, ...]:
        """The KV cache config of every lane."""
        return tuple(lane.paged_kv_cache_config for lane in self.lanes)

    @property
    def already_warmed_up_prefill(self) -> bool:
        """Whether every lane has warmed its prefill; an assignment reaches every lane."""
        return all(lane.already_warmed_up_prefill for lane in self.lanes)

    @already_warmed_up_prefill.setter
    def already_warmed_up_prefill(self, value: bool) -> None:
        for lane in self.lanes:
            lane.already_warmed_up_prefill = value

    def configure_paged_kv_cache(self, config: Any) -> None:
        """Install the physical KV capacity: one config, copied for each lane, or a list with one per lane.

        A refusal by the first lane leaves the group usable; a later one ends it, because lanes would differ.
        """
        self._lifecycle.require_usable()
        if isinstance(config, (list, tuple)):
            configs = list(per_lane(config, self.tt_data_parallel, name="config"))
        else:
            configs = [copy.copy(config) for _ in self.lanes]
        with self._lifecycle.device_work(refusals=(*_BAD_INPUT, RuntimeError)) as work:
            for index, lane in enumerate(self.lanes):
                work.call(index, partial(lane.configure_paged_kv_cache, configs[index]))

    def allocate_kv_cache(
        self, kv_cache_shape: Any = None, dtype: Any = None, num_layers: int | None = None
    ) -> list[Any]:
        """Allocate and bind every lane's KV cache; returns the borrowed handles in lane order.

        The arguments describe one lane: `(num_blocks, kv_heads, block_size, head_dim)`, dtype, layers; none or all.
        `RuntimeError` while a lane does not know its number of blocks; that, and a refusal by the first lane, leave
        the group usable.
        """
        self._lifecycle.require_usable()
        if kv_cache_shape is None:
            _require_resolved(self.paged_kv_cache_config)
        with self._lifecycle.device_work(refusals=_BAD_INPUT) as work:
            return [
                work.call(index, partial(lane.allocate_kv_cache, kv_cache_shape, dtype, num_layers))
                for index, lane in enumerate(self.lanes)
            ]

    def cleanup(self) -> None:
        """Wait for running reads, then release every lane and the workers; the group is terminal.

        Idempotent. Every lane is tried; the first failure is raised with the others in its `cleanup_failures`, and a
        later call retries only what failed.
        """
        self._lifecycle.cleanup()


def _common_capacity(lanes: Sequence[Any]) -> int:
    if len({id(lane) for lane in lanes}) != len(lanes):
        raise ValueError("a lane was given twice")
    capacities = [int(lane.model.config.max_batch_size) for lane in lanes]
    for lane, capacity in enumerate(capacities):
        if capacity < 1:
            raise ValueError(f"lane {lane}: capacity must be positive, got {capacity}")
        if capacity != capacities[0]:
            raise ValueError(
                f"lanes must have the same fixed capacity: lane 0 has {capacities[0]} rows, lane {lane} has {capacity}"
            )
    return capacities[0]


def _require_resolved(configs: Sequence[Any]) -> None:
    for lane, config in enumerate(configs):
        is_resolved = getattr(config, "is_resolved", None)
        if callable(is_resolved) and not is_resolved():
            raise RuntimeError(f"lane {lane} does not know its number of KV blocks: configure the cache first")


def _clean(lanes: Sequence[Any]) -> list[BaseException]:
    failures: list[BaseException] = []
    for index, lane in enumerate(lanes):
        if any(lane is earlier for earlier in lanes[:index]):
            continue
        try:
            with naming_lane(index):
                lane.cleanup()
        except BaseException as failure:  # the caller raises its own error with these attached
            failures.append(failure)
    return failures


def _all_or_none(targets: Sequence[Any]) -> tuple[Any, ...] | None:
    return None if any(target is None for target in targets) else tuple(targets)
