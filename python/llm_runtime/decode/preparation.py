# SPDX-License-Identifier: Apache-2.0
"""Validation and normalisation of one decode step on the host, and what the last accepted step left behind.

Follows chapter 20, section 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_runtime._core import DecodeBatch, DecodeProgramSignature, DecodeTables
from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.decode.inputs import device_index_array
from llm_runtime.decode.reload import (
    ReloadCommands,
    ResidentDecode,
    active_slots_of,
    check_commands,
    explicit_sampling,
)
from llm_runtime.decode.remap import normalise_slot_remap, remap_prepared_sampling, without_remap
from llm_runtime.decode.sampling import DecodeSamplingPreparer, SamplingChoice
from llm_runtime.decode.values import PreparedDecode, prepared_decode
from llm_runtime.host_arrays import host_array

__all__ = ["DecodePreparer"]


class DecodePreparer:
    """Prepares steps and remembers the submitted page table and the resident sampling rows.

    Preparing changes nothing but caches, so a prepared step may be dropped; only :meth:`note_submitted`
    moves the state that later steps are compared with.
    """

    def __init__(self, config: DecodeRuntimeConfig) -> None:
        layout = config.page_table_layout
        self._tables = DecodeTables(
            lane_capacity=config.lane_capacity,
            block_size=layout.block_size,
            raw_capacity_width=layout.raw_capacity_width,
            decode_width=layout.decode_width,
        )
        self._sampling = DecodeSamplingPreparer(config)
        self._config = config
        self._lane_shape = (config.lane_capacity,)
        self._feedback_capable = config.position_feedback_capable
        self.resident = ResidentDecode()

    def configure(self, config: DecodeRuntimeConfig) -> None:
        """Use another page-table layout; cached tables and signatures are dropped."""
        layout = config.page_table_layout
        self._tables.configure(
            block_size=layout.block_size,
            raw_capacity_width=layout.raw_capacity_width,
            decode_width=layout.decode_width,
        )
        self._sampling.configure(config)
        self._config = config

    def prepare(
        self,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        sampling_params: Any,
        prompt_tokens: Any,
        output_tokens: Any,
        slot_remap: Any,
        commands: tuple[Any, Any, Any, Any, Any],
    ) -> PreparedDecode:
        """Prepare one step; ``commands`` is the tuple of :func:`~llm_runtime.decode.values.prepared_decode`."""
        if getattr(tokens, "shape", None) != self._lane_shape:
            check_shapes(tokens, start_pos, page_table, lane_capacity=self._config.lane_capacity)
        sampled = sampling_params is not None
        if sampled and not self._config.device_sampling_enabled:
            check_shapes(tokens, start_pos, page_table, lane_capacity=self._config.lane_capacity)
            raise ValueError("sampling_params were given, but device sampling is disabled for this runtime")
        reset_batch, reload_inputs, reload_page_table, reload_params, reset_state = commands
        explicit = None
        if reload_inputs is not None or reload_page_table or reload_params or reset_state:
            explicit = check_commands(
                commands,
                has_sampling=sampled,
                has_slot_remap=slot_remap is not None,
                resident_feedback=self.resident.feedback,
            )
        else:
            commands = (bool(reset_batch), None, False, False, False)
        if slot_remap is not None:
            slot_remap = normalise_slot_remap(
                slot_remap,
                lane_capacity=self._config.lane_capacity,
                sampling_batch_size=self._config.sampling_batch_size,
            )
        feedback = sampled and self._feedback_capable
        batch = self._batch(start_pos, page_table, feedback, explicit)
        if not sampled:
            return prepared_decode(
                tokens,
                start_pos,
                None,
                None,
                "logits",
                False,
                commands,
                slot_remap,
                self._sampling.logits_signature,
                batch,
            )
        choice = self._choose(explicit, batch, sampling_params, prompt_tokens, output_tokens, slot_remap)
        prepared = choice.prepared
        return prepared_decode(
            tokens,
            start_pos,
            sampling_params,
            prepared,
            prepared.sampling_path,
            feedback,
            commands,
            slot_remap,
            choice.signature,
            batch,
        )

    def signature_of(self, prepared: PreparedDecode) -> DecodeProgramSignature:
        """The program signature of a step that was put together by hand."""
        rows = prepared.prepared_sampling
        if rows is None:
            return self._sampling.logits_signature
        return self._sampling.choice(rows, active_slots_of(rows)).signature

    def note_submitted(self, prepared: PreparedDecode, *, device_feedback: bool) -> None:
        """Remember an accepted step: its page table, its sampling rows without the remap, and its feedback.

        A host-sampled step keeps the dormant rows; under the reload contract its remap moves them.
        """
        if prepared.batch is None:
            self._tables.reset()
        else:
            self._tables.note_submitted(prepared.batch)
        resident = self.resident
        resident.feedback = device_feedback
        rows, held = prepared.prepared_sampling, resident.sampling
        if rows is not None:
            if held is None or held.prepared is not rows:
                rows = without_remap(rows)
                resident.sampling = self._sampling.choice(rows, active_slots_of(rows))
        elif held is not None and prepared.slot_remap is not None and prepared.reload_inputs is not None:
            moved = remap_prepared_sampling(held.prepared, prepared.slot_remap)
            resident.sampling = None if moved is None else self._sampling.choice(moved, active_slots_of(moved))

    def _choose(
        self,
        explicit: ReloadCommands | None,
        batch: DecodeBatch,
        params: Any,
        prompt_tokens: Any,
        output_tokens: Any,
        slot_remap: Any,
    ) -> SamplingChoice:
        if explicit is None:
            return self._sampling.prepare(
                params,
                batch.active_slots,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                slot_remap=slot_remap,
            )
        return explicit_sampling(
            self._sampling,
            self.resident.sampling,
            explicit,
            batch,
            params=params,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            slot_remap=slot_remap,
        )

    def _batch(self, start_pos: Any, page_table: Any, feedback: bool, explicit: ReloadCommands | None) -> DecodeBatch:
        reload_inputs, reload_table = (None, False) if explicit is None else explicit[:2]
        if type(start_pos) is np.ndarray and type(page_table) is np.ndarray:
            try:
                return self._tables.prepare(
                    start_pos=start_pos,
                    page_table=page_table,
                    device_feedback=feedback,
                    reload_inputs=reload_inputs,
                    reload_page_table=reload_table,
                )
            except (TypeError, ValueError):
                # Perhaps another dtype or memory order than the core takes: convert below, or hear the same error.
                pass
        return self._tables.prepare(
            start_pos=_index_array(start_pos, name="start_pos", rank=1),
            page_table=_index_array(page_table, name="page_table", rank=2),
            device_feedback=feedback,
            reload_inputs=reload_inputs,
            reload_page_table=reload_table,
        )


def check_shapes(tokens: Any, start_pos: Any, page_table: Any, *, lane_capacity: int) -> None:
    """Check ranks, the lane's row count and that all three agree: ValueError with both numbers."""
    rows = len(_ranked(tokens, name="tokens", rank=1))
    positions = len(_ranked(start_pos, name="start_pos", rank=1))
    table_rows = len(_ranked(page_table, name="page_table", rank=2))
    if not rows == positions == table_rows:
        raise ValueError(
            f"decode batches must match: tokens has {rows} rows, start_pos {positions}, page_table {table_rows}"
        )
    if rows != lane_capacity:
        raise ValueError(f"tokens has {rows} rows and must equal lane capacity {lane_capacity}")


def _ranked(value: Any, *, name: str, rank: int) -> np.ndarray[Any, Any]:
    array = host_array(value, name=name)
    if array.ndim != rank:
        raise ValueError(f"{name} must have rank {rank}, got shape {list(array.shape)}")
    return array


def _index_array(value: Any, *, name: str, rank: int) -> np.ndarray[Any, Any]:
    return device_index_array(_ranked(value, name=name, rank=rank), name=name)
