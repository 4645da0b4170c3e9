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
    ResidentDecode,
    active_slots_of,
    active_slots_of_step,
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
        # Bound once: this is the one call into the core of every step.
        self._prepare_tables = self._tables.prepare
        self._sampling = DecodeSamplingPreparer(config)
        self._config = config
        self._samples_on_device = config.device_sampling_enabled
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
        reset_batch: Any,
        reload_inputs: Any,
        reload_page_table: Any,
        reload_sampling_params: Any,
        reset_sampling_state: Any,
    ) -> PreparedDecode:
        """Prepare one step; the arguments are those of ``DecodeRuntime.prepare``."""
        sampled = sampling_params is not None
        if getattr(tokens, "shape", None) != self._lane_shape or (sampled and not self._samples_on_device):
            self._refuse(tokens, start_pos, page_table, sampled)
        explicit = reload_inputs is not None or reload_page_table or reload_sampling_params or reset_sampling_state
        # The steady step of the reload contract: nothing is commanded, so nothing can contradict.
        is_steady = (
            reload_inputs is False
            and reset_batch is False
            and reload_page_table is False
            and reload_sampling_params is False
            and reset_sampling_state is False
            and slot_remap is None
            and sampled
            and self.resident.feedback
        )
        if explicit and not is_steady:
            check_commands(
                (reset_batch, reload_inputs, reload_page_table, reload_sampling_params, reset_sampling_state),
                has_sampling=sampled,
                has_slot_remap=slot_remap is not None,
                resident_feedback=self.resident.feedback,
            )
        elif not explicit:
            reset_batch = bool(reset_batch)
            reload_page_table = reload_sampling_params = reset_sampling_state = False
        if slot_remap is not None:
            slot_remap = self._normalise_remap(slot_remap)
        feedback = sampled and self._feedback_capable
        positions = start_pos if type(start_pos) is np.ndarray else host_array(start_pos, name="start_pos")
        table = page_table if type(page_table) is np.ndarray else host_array(page_table, name="page_table")
        try:
            batch = self._prepare_tables(positions, table, feedback, reload_inputs, reload_page_table)
        except (TypeError, ValueError):
            # Perhaps another dtype or memory order than the core takes: convert below, or hear the same error.
            batch = None
        if batch is None:
            batch = self._prepare_tables(
                _index_array(positions, name="start_pos", rank=1),
                _index_array(table, name="page_table", rank=2),
                feedback,
                reload_inputs,
                reload_page_table,
            )
        rows, path, signature = None, "logits", self._sampling.logits_signature
        if sampled:
            choice = self.resident.sampling
            if (
                not explicit
                or reload_sampling_params
                or reset_sampling_state
                or slot_remap is not None
                or choice is None
                or (reload_inputs and choice.active_slots != batch.active_slots)
            ):
                choice = self._choose(
                    (bool(explicit), bool(reload_inputs), reload_sampling_params, reset_sampling_state),
                    batch,
                    sampling_params,
                    prompt_tokens,
                    output_tokens,
                    slot_remap,
                )
            rows, path, signature = choice.prepared, choice.path, choice.signature
        return prepared_decode(
            tokens,
            start_pos,
            sampling_params,
            rows,
            path,
            feedback,
            reset_batch,
            reload_inputs,
            reload_page_table,
            reload_sampling_params,
            reset_sampling_state,
            slot_remap,
            signature,
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
        batch, resident = prepared.batch, self.resident
        if batch is None:
            self._tables.reset()
        elif batch.page_table_changed:
            self._tables.note_submitted(batch)
        resident.feedback = device_feedback
        resident.signature = prepared.program_signature
        resident.active_slots = active_slots_of_step(prepared)
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
        commands: tuple[bool, bool, bool, bool],
        batch: DecodeBatch,
        params: Any,
        prompt_tokens: Any,
        output_tokens: Any,
        slot_remap: Any,
    ) -> SamplingChoice:
        """Sampling rows that are not simply the resident ones; ``commands`` says whether they are explicit."""
        explicit, reload_inputs, reload_params, reset_state = commands
        if not explicit:
            return self._sampling.prepare(params, batch.active_slots, prompt_tokens, output_tokens, slot_remap)
        return explicit_sampling(
            self._sampling,
            self.resident.sampling,
            batch,
            reload_inputs=reload_inputs,
            reload_sampling_params=reload_params,
            reset_sampling_state=reset_state,
            params=params,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            slot_remap=slot_remap,
        )

    def _normalise_remap(self, slot_remap: Any) -> Any:
        config = self._config
        return normalise_slot_remap(
            slot_remap, lane_capacity=config.lane_capacity, sampling_batch_size=config.sampling_batch_size
        )

    def _refuse(self, tokens: Any, start_pos: Any, page_table: Any, sampled: bool) -> None:
        check_shapes(tokens, start_pos, page_table, lane_capacity=self._config.lane_capacity)
        if sampled and not self._samples_on_device:
            raise ValueError("sampling_params were given, but device sampling is disabled for this runtime")


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
