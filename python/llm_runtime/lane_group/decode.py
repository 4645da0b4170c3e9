# SPDX-License-Identifier: Apache-2.0
"""Decode over lanes: cut the fixed batch into lanes, check every lane, step lane after lane, read concurrently.

Follows chapter 30, sections 7.5 and 7.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from llm_runtime.host_arrays import result_like
from llm_runtime.lane_group.aggregate import merge_decode
from llm_runtime.lane_group.members import LaneGroupMembers
from llm_runtime.lane_group.naming import naming_lane
from llm_runtime.lane_group.preflight import Run, preflight_call
from llm_runtime.lane_group.reads import host_values_and_events
from llm_runtime.lane_group.routing import batch_array, per_lane, require_rows
from llm_runtime.lane_group.sampling import RowSampling
from llm_runtime.lane_group.state import slice_history, split_slot_remap

Fields = dict[str, Any]


class LaneGroupDecode(LaneGroupMembers):
    """The decode half of `LaneGroupExecutor`."""

    #: Lanes that the last step left out, by lane; empty before the first step.
    _idle: tuple[bool, ...] = ()

    def compile_decode(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        *,
        kv_cache: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        reset_batch: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
        reset_sampling_state: bool = False,
        execution: Any = None,
    ) -> None:
        """Compile this decode step on every lane. Arguments as `decode_forward`."""
        self._lifecycle.require_usable()
        commands = (reset_batch, reload_inputs, reload_page_table, reload_sampling_params, reset_sampling_state)
        steps = self._split_decode(
            tokens, start_pos, page_table, kv_cache,
            sampling_params, prompt_tokens, output_tokens, slot_remap, commands,
        )  # fmt: skip
        runs = self._preflight_decode("compile_decode", steps, execution)
        with self._lifecycle.device_work() as work:
            for lane, run in runs:
                work.call(lane, run, rows=self._slots(lane))

    def decode_forward(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        *,
        kv_cache: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        reset_batch: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
        reset_sampling_state: bool = False,
        read_from_device: bool = True,
        execution: Any = None,
    ) -> Any:
        """One step of all `B` slots of the group: `tokens` `[B]`, `start_pos` `[B]` (negative = idle), table `[B, W]`.

        Lanes take contiguous slots and get every command unchanged; `slot_remap` cannot move a request to another
        lane. A sampled step leaves out a lane without an active slot, since nothing can be sampled there; its tokens
        are 0 and its raw output is `None`.

        Returns (float32 logits `[B, 1, vocab]` or int64 tokens `[B]`, None), or one raw output per lane with
        `read_from_device=False`. Every lane is checked before the first one steps; refusals and failures are as in
        `prefill_forward`.
        """
        self._lifecycle.require_usable()
        commands = (reset_batch, reload_inputs, reload_page_table, reload_sampling_params, reset_sampling_state)
        steps = self._split_decode(
            tokens, start_pos, page_table, kv_cache,
            sampling_params, prompt_tokens, output_tokens, slot_remap, commands,
        )  # fmt: skip
        for fields in steps:
            fields["read_from_device"] = read_from_device
        idle = self._idle_lanes(steps, sampled=sampling_params is not None, reload_inputs=reload_inputs)
        runs = self._preflight_decode("decode_forward", steps, execution, idle)
        with self._lifecycle.device_work() as work:
            outputs: list[Any] = [None] * len(steps)
            for lane, run in runs:
                outputs[lane] = work.call(lane, run, rows=self._slots(lane))
            self._idle = idle
            if not read_from_device:
                return outputs
            return merge_decode(
                outputs, lane_capacity=self.per_lane_max_batch_size, is_tokens=sampling_params is not None
            )

    def read_decode_output(self, tt_out: Any, *, async_read: bool = False) -> Any:
        """Copy a raw step (one entry per lane) to the host, all lanes at once.

        Returns the host value of every lane, or with `async_read` the pair (host values, events of all lanes in one
        flat list). A failure ends the group, after every lane has been read; those of other lanes are the
        `lane_failures` of the first.
        """
        self._lifecycle.require_usable()
        raw = self._lane_outputs(tt_out)
        with self._lifecycle.device_work(refusals=()):
            values = self._reads.run(
                [
                    None if value is None else partial(executor.read_decode_output, tt_out=value, async_read=async_read)
                    for executor, value in zip(self.lanes, raw, strict=True)
                ]
            )
            return host_values_and_events(values, raw) if async_read else values

    def process_decode_output_host(self, tt_out: Any, *, is_tokens: bool = False) -> tuple[Any, Any]:
        """Complete the reads of all lanes at once and return their rows as `decode_forward` does.

        Takes the host values of `read_decode_output`, or raw outputs that were never read; may run on another thread
        than the next step. Failures are as in `read_decode_output`.
        """
        self._lifecycle.require_usable()
        values = self._lane_outputs(tt_out)
        with self._lifecycle.device_work(refusals=()):
            results = self._reads.run(
                [
                    None
                    if value is None
                    else partial(executor.process_decode_output_host, tt_out=value, is_tokens=is_tokens)
                    for executor, value in zip(self.lanes, values, strict=True)
                ]
            )
            return merge_decode(results, lane_capacity=self.per_lane_max_batch_size, is_tokens=is_tokens)

    def _preflight_decode(
        self, operation: str, steps: Sequence[Fields], execution: Any, idle: Sequence[bool] = ()
    ) -> list[tuple[int, Run]]:
        targets = per_lane(execution, self.tt_data_parallel, name="execution")
        runs = []
        for lane, fields in enumerate(steps):
            if idle and idle[lane]:
                continue
            with naming_lane(lane, self._slots(lane)):
                run = preflight_call(self.lanes[lane], operation, fields, lane=lane, execution=targets[lane])
            runs.append((lane, run))
        return runs

    def _split_decode(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        kv_cache: Any,
        sampling_params: Any,
        prompt_tokens: Any,
        output_tokens: Any,
        slot_remap: Any,
        commands: tuple[Any, Any, Any, Any, Any],
    ) -> list[Fields]:
        """Check the step as a whole and cut it by lane; no lane is touched."""
        total = self.max_batch_size
        arrays = {"tokens": tokens, "start_pos": start_pos, "page_table": page_table}
        views = {name: batch_array(value, name=name) for name, value in arrays.items()}
        for name, view in views.items():
            require_rows(view, total, name=name, of=f"the group of {self.tt_data_parallel} lanes")
        sampling = None if sampling_params is None else RowSampling(sampling_params, row_count=total)
        if sampling is not None:
            sampling.refuse_log_probs(lambda: np.flatnonzero(views["start_pos"] >= 0).tolist(), label="slot")
        remaps = split_slot_remap(
            slot_remap, lane_count=self.tt_data_parallel, lane_capacity=self.per_lane_max_batch_size
        )
        caches = per_lane(kv_cache, self.tt_data_parallel, name="kv_cache")
        histories = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        common = _commands(commands)
        like = result_like(tokens)
        steps = []
        for lane in range(self.tt_data_parallel):
            rows = slice(lane * self.per_lane_max_batch_size, (lane + 1) * self.per_lane_max_batch_size)
            fields: Fields = {
                "tokens": like(views["tokens"][rows]),
                "start_pos": views["start_pos"][rows],
                "page_table": views["page_table"][rows],
                "sampling_params": None if sampling is None else sampling.select(rows),
                "kv_cache": caches[lane],
                **common,
            }
            for name, history in histories.items():
                if history is not None:
                    fields[name] = slice_history(history, rows, row_count=total, name=name)
            if slot_remap is not None:
                fields["slot_remap"] = remaps[lane]
            steps.append(fields)
        return steps

    def _idle_lanes(self, steps: Sequence[Fields], *, sampled: bool, reload_inputs: bool | None) -> tuple[bool, ...]:
        """Which lanes a step leaves out. Positions are a step old while inputs stay on the device: a lane that ran
        then runs on. When no lane has an active slot all are called, and refuse what they cannot sample."""
        if not sampled:
            return (False,) * len(steps)
        idle = tuple(not (fields["start_pos"] >= 0).any() for fields in steps)
        if reload_inputs is False:
            earlier = self._idle or (False,) * len(steps)
            idle = tuple(now and before for now, before in zip(idle, earlier, strict=True))
        return (False,) * len(steps) if all(idle) else idle

    def _slots(self, lane: int) -> range:
        return range(lane * self.per_lane_max_batch_size, (lane + 1) * self.per_lane_max_batch_size)

    def _lane_outputs(self, tt_out: Any) -> Sequence[Any]:
        if tt_out is None:
            raise TypeError("tt_out must be a list or tuple with one output per lane, got None")
        return per_lane(tt_out, self.tt_data_parallel, name="tt_out")


def _commands(commands: tuple[Any, Any, Any, Any, Any]) -> Fields:
    """`reset_batch` always, the reload commands as a group when one of them is used."""
    reset_batch, reload_inputs, *others = commands
    fields: Fields = {"reset_batch": reset_batch}
    if reload_inputs is not None or any(others):
        names = ("reload_page_table", "reload_sampling_params", "reset_sampling_state")
        fields |= {"reload_inputs": reload_inputs, **dict(zip(names, others, strict=True))}
    return fields
