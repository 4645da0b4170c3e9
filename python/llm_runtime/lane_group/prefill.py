# SPDX-License-Identifier: Apache-2.0
"""Prefill over lanes: route rows by slot, check every lane, run lane after lane, restore the order of the rows.

Follows chapter 30, sections 7.3 and 7.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_runtime.host_arrays import result_like
from llm_runtime.lane_group.aggregate import merge_prefill
from llm_runtime.lane_group.members import LaneGroupMembers
from llm_runtime.lane_group.naming import naming_lane
from llm_runtime.lane_group.preflight import Run, preflight_call
from llm_runtime.lane_group.routing import (
    HostArray,
    LaneRows,
    batch_array,
    per_lane,
    require_rows,
    route_rows,
    row_values,
)
from llm_runtime.lane_group.sampling import RowSampling
from llm_runtime.lane_group.state import place_history, split_slot_remap


@dataclass(frozen=True, kw_only=True, eq=False)
class _LaneCall:
    """One lane's part of a prefill call: what its executor gets."""

    routed: LaneRows
    fields: dict[str, Any]
    execution: Any


class LaneGroupPrefill(LaneGroupMembers):
    """The prefill half of `LaneGroupExecutor`."""

    def compile_prefill(
        self,
        tokens: Any,
        page_table: Any,
        *,
        kv_cache: Any = None,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        execution: Any = None,
    ) -> None:
        """Compile this prefill call on the lanes that serve its rows. Arguments as `prefill_forward`."""
        self._lifecycle.require_usable()
        calls = self._split_prefill(
            tokens, page_table, kv_cache, execution, prompt_lens, start_pos, empty_slots,
            sampling_params, prompt_tokens, output_tokens, slot_remap,
        )  # fmt: skip
        runs = self._preflight_prefill("compile_prefill", calls)
        with self._lifecycle.device_work() as work:
            for routed, run in runs:
                work.call(routed.lane, run, rows=routed.rows)

    def prefill_forward(
        self,
        tokens: Any,
        page_table: Any,
        *,
        kv_cache: Any = None,
        prompt_lens: Any = None,
        start_pos: Any = None,
        empty_slots: Any = None,
        sampling_params: Any = None,
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
        execution: Any = None,
    ) -> Any:
        """Prefill `tokens` `[N, T]` over `page_table` `[N, W]` (block ids of the row's lane) at `empty_slots` `[N]`.

        A slot is `lane * capacity + slot in the lane` (0, 1, … when not given). `kv_cache` and `execution` are
        sequences with one entry per lane. `sampling_params` is a dataclass or a dict whose fields are single values,
        sequences of one, or one entry per row.

        Every participating lane is checked before the first one runs; rows come back in the order of the call:
        float32 logits `[N, 1, vocab]`, or with sampling the pair (int64 tokens `[N]`, None). `TraceCoverageError`
        (with its `lane`) when a traced lane misses a trace, `ValueError` or `TypeError` for arguments: nothing has
        executed and the group stays usable. Log-probabilities are a `ValueError`. Any other failure ends the group.
        """
        self._lifecycle.require_usable()
        calls = self._split_prefill(
            tokens, page_table, kv_cache, execution, prompt_lens, start_pos, empty_slots,
            sampling_params, prompt_tokens, output_tokens, slot_remap,
        )  # fmt: skip
        runs = self._preflight_prefill("prefill_forward", calls)
        with self._lifecycle.device_work() as work:
            parts = [(routed, work.call(routed.lane, run, rows=routed.rows)) for routed, run in runs]
            return merge_prefill(parts, row_count=len(tokens), tokens=tokens)

    def can_trace_prefill(
        self, *, tokens: Any, prompt_lens: Any = None, start_pos: Any = None, empty_slots: Any = None
    ) -> bool:
        """Whether every lane that would serve these rows can trace their geometry; only a query. No rows: True."""
        self._lifecycle.require_usable()
        rows, routed = self._route(tokens, empty_slots)
        prompt_lens = row_values(prompt_lens, len(rows), name="prompt_lens")
        start_pos = row_values(start_pos, len(rows), name="start_pos")
        return all(
            self.lanes[part.lane].can_trace_prefill(
                tokens=part.take(rows), prompt_lens=_taken(part, prompt_lens), start_pos=_taken(part, start_pos)
            )
            for part in routed
        )

    def _preflight_prefill(self, operation: str, calls: list[_LaneCall]) -> list[tuple[LaneRows, Run]]:
        runs = []
        for call in calls:
            routed = call.routed
            with naming_lane(routed.lane, routed.rows):
                executor = self.lanes[routed.lane]
                run = preflight_call(executor, operation, call.fields, lane=routed.lane, execution=call.execution)
            runs.append((routed, run))
        return runs

    def _route(self, tokens: Any, empty_slots: Any) -> tuple[HostArray, tuple[LaneRows, ...]]:
        rows = batch_array(tokens, name="tokens")
        return rows, route_rows(
            empty_slots,
            row_count=len(rows),
            lane_count=self.tt_data_parallel,
            lane_capacity=self.per_lane_max_batch_size,
        )

    def _split_prefill(
        self,
        tokens: Any,
        page_table: Any,
        kv_cache: Any,
        execution: Any,
        prompt_lens: Any,
        start_pos: Any,
        empty_slots: Any,
        sampling_params: Any,
        prompt_tokens: Any,
        output_tokens: Any,
        slot_remap: Any,
    ) -> list[_LaneCall]:
        """Check the call as a whole and cut it by lane; no lane is touched."""
        rows, routed = self._route(tokens, empty_slots)
        count, lanes, capacity = len(rows), self.tt_data_parallel, self.per_lane_max_batch_size
        table = batch_array(page_table, name="page_table")
        require_rows(table, count, name="page_table", of="tokens")
        prompt_lens = row_values(prompt_lens, count, name="prompt_lens")
        start_pos = row_values(start_pos, count, name="start_pos")
        sampling = None if sampling_params is None else RowSampling(sampling_params, row_count=count)
        if sampling is not None:
            sampling.refuse_log_probs(lambda: range(count), label="row")
        caches = per_lane(kv_cache, lanes, name="kv_cache")
        targets = per_lane(execution, lanes, name="execution")
        remaps = split_slot_remap(slot_remap, lane_count=lanes, lane_capacity=capacity)
        histories = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        like = result_like(tokens)
        calls = []
        for part in routed:
            fields: dict[str, Any] = {
                "tokens": like(part.take(rows)),
                "page_table": part.take(table),
                "prompt_lens": _taken(part, prompt_lens),
                "start_pos": _taken(part, start_pos),
                "empty_slots": part.slots,
                "sampling_params": None if sampling is None else sampling.select(part.rows),
                "kv_cache": caches[part.lane],
            }
            for name, history in histories.items():
                if history is not None:
                    fields[name] = place_history(history, part, lane_count=lanes, lane_capacity=capacity, name=name)
            if slot_remap is not None:
                fields["slot_remap"] = remaps[part.lane]
            calls.append(_LaneCall(routed=part, fields=fields, execution=targets[part.lane]))
        return calls


def _taken(part: LaneRows, value: Any) -> Any:
    return None if value is None else part.take(value)
