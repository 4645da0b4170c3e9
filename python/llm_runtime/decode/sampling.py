# SPDX-License-Identifier: Apache-2.0
"""Classification of a decode step: slot-ordered sampling rows, sampling path and program signature.

Follows chapter 20, sections 4.2 and 4.5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from llm_runtime._core import DecodeProgramSignature, normalise_sampling
from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.prefill.sampling_helpers import (
    PreparedSamplingParams,
    _slice_sampling_params,
    history_row_count,
    place_sampling_in_slots,
    prepare_sampling_params,
    take_history_rows,
)
from llm_runtime.prefill.sampling_params import SamplingParams, plain_fields, prepared_sampling, sampling_field_names

__all__ = ["DecodeSamplingPreparer", "SamplingChoice"]


#: Reads what :func:`plain_fields` reads, without copies.
_FIELD_READER = attrgetter(*sampling_field_names(SamplingParams))


class SamplingChoice(NamedTuple):
    """Sampling rows of a step with everything that was derived from them."""

    prepared: PreparedSamplingParams
    active_slots: tuple[int, ...]
    path: str
    signature: DecodeProgramSignature


class _Snapshot(NamedTuple):
    """The last parameters and their rows; lists are copied, so that an edit in place shows."""

    kind: type
    read_fields: attrgetter[Any]
    values: Any
    choice: SamplingChoice


class DecodeSamplingPreparer:
    """Turns caller parameters into sampling rows and remembers the last result.

    A server sends the same parameters with every step of a batch; recognising them costs a comparison
    instead of a normalisation. Parameters that carry history or a remap are never remembered.
    """

    def __init__(self, config: DecodeRuntimeConfig) -> None:
        self._snapshot: _Snapshot | None = None
        self.configure(config)

    def configure(self, config: DecodeRuntimeConfig) -> None:
        """Use ``config`` (another page-table width) from now on."""
        self._config = config
        self._rows, self._max_top_k = config.sampling_batch_size, config.max_device_top_k
        self._allow_argmax = config.allow_force_argmax and not config.force_greedy_top_k
        self._signatures: dict[tuple[str, bool, bool], DecodeProgramSignature] = {}
        self._snapshot = None
        self.logits_signature = self._build_signature("logits", penalties=False, log_probs=False)

    def prepare(
        self,
        params: Any,
        active_slots: tuple[int, ...],
        prompt_tokens: Any = None,
        output_tokens: Any = None,
        slot_remap: Any = None,
    ) -> SamplingChoice:
        """Normalise ``params`` for ``active_slots``; the other slots are neutral and never validated.

        ValueError without an active slot, TypeError or ValueError naming slot, value and limit for
        parameters that the device sampler cannot serve. The remap must be normalised.
        """
        plain = prompt_tokens is None and output_tokens is None and slot_remap is None
        snapshot = self._snapshot
        if (
            plain
            and snapshot is not None
            and type(params) is snapshot.kind
            and (active_slots is snapshot.choice.active_slots or active_slots == snapshot.choice.active_slots)
            and snapshot.read_fields(params) == snapshot.values
        ):
            return snapshot.choice
        if not active_slots:
            raise ValueError("device sampling needs at least one active slot, every start_pos is negative")
        fields = plain_fields(params) if plain else None
        rows = None
        if fields is not None:
            rows = normalise_sampling(
                fields,
                active_slots,
                batch_size=self._rows,
                max_device_top_k=self._max_top_k,
                allow_force_argmax=self._allow_argmax,
                in_slots=True,
            )
        if rows is not None:
            prepared = prepared_sampling(rows, self._rows, self._max_top_k, None, None)
            choice = self.choice(prepared, active_slots)
            self._snapshot = _Snapshot(type(params), _FIELD_READER, fields, choice)
            return choice
        prepared = self._normalise(params, active_slots, prompt_tokens, output_tokens, slot_remap)
        choice = self.choice(prepared, active_slots)
        if plain:
            self._snapshot = _take_snapshot(params, choice)
        return choice

    def choice(self, prepared: PreparedSamplingParams, active_slots: tuple[int, ...]) -> SamplingChoice:
        """Attach the program signature to sampling rows that are in slot order."""
        signature = self.signature(
            prepared.sampling_path,
            penalties=prepared.penalties_enabled,
            log_probs=prepared.log_probs_enabled,
        )
        return SamplingChoice(prepared, active_slots, prepared.sampling_path, signature)

    def signature(self, path: str, *, penalties: bool, log_probs: bool) -> DecodeProgramSignature:
        """The one signature object of a sampling path with these two bits."""
        key = (path, penalties, log_probs)
        found = self._signatures.get(key)
        if found is None:
            found = self._build_signature(path, penalties=penalties, log_probs=log_probs)
            self._signatures[key] = found
        return found

    def _build_signature(self, path: str, *, penalties: bool, log_probs: bool) -> DecodeProgramSignature:
        config = self._config
        return DecodeProgramSignature(
            batch_size=config.lane_capacity,
            page_table_width=config.page_table_layout.decode_width,
            sampling_path=path,
            device_feedback=path != "logits" and config.position_feedback_capable,
            penalties_enabled=penalties,
            logprobs_enabled=log_probs,
        )

    def _normalise(
        self,
        params: Any,
        active_slots: tuple[int, ...],
        prompt_tokens: Any,
        output_tokens: Any,
        slot_remap: Any,
    ) -> PreparedSamplingParams:
        config = self._config
        prepared = prepare_sampling_params(
            _slice_sampling_params(params, active_slots),
            config.sampling_batch_size,
            max_device_top_k=config.max_device_top_k,
            allow_force_argmax=self._allow_argmax,
            prompt_tokens=self._select_history(prompt_tokens, active_slots, name="prompt_tokens"),
            output_tokens=self._select_history(output_tokens, active_slots, name="output_tokens"),
            slot_remap=slot_remap,
            active_rows=len(active_slots),
            row_labels=active_slots,
        )
        return place_sampling_in_slots(prepared, active_slots)

    def _select_history(self, history: Any, active_slots: Sequence[int], *, name: str) -> Any:
        """Rows of the active slots: one row or one per active slot passes, a whole lane is picked by slot."""
        if history is None:
            return None
        count = history_row_count(history, name=name)
        if count in (1, len(active_slots)):
            return history
        if count < self._config.lane_capacity:
            raise ValueError(
                f"{name} has {count} rows; expected 1, the {len(active_slots)} active slots, "
                f"or the {self._config.lane_capacity} slots of the lane"
            )
        return take_history_rows(history, active_slots)


def _take_snapshot(params: Any, choice: SamplingChoice) -> _Snapshot | None:
    """Copy the fields for a later comparison, or None when a field (an array) cannot be compared as a whole."""
    names = [item.name for item in dataclasses.fields(params)]
    read_fields = attrgetter(*names)
    copies: list[Any] = []
    for value in read_fields(params):
        if isinstance(value, list):
            copies.append(list(value))
        elif value is None or isinstance(value, (bool, int, float, str, tuple)):
            copies.append(value)
        else:
            return None
    return _Snapshot(type(params), read_fields, tuple(copies), choice)
