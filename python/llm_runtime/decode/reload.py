# SPDX-License-Identifier: Apache-2.0
"""The explicit reload contract, version 1: which inputs a caller orders to be copied, and what stays resident.

Follows chapter 20, section 4.6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llm_runtime._core import DecodeBatch, DecodeProgramSignature, validate_decode_commands
from llm_runtime._validation import require_bool
from llm_runtime.decode.remap import moves_rows, remap_prepared_sampling, remap_rows, remap_sources
from llm_runtime.decode.sampling import DecodeSamplingPreparer, SamplingChoice
from llm_runtime.decode.values import PreparedDecode
from llm_runtime.prefill.sampling_helpers import PreparedSamplingParams

__all__ = [
    "ResidentDecode",
    "active_slots_of",
    "active_slots_of_step",
    "check_commands",
    "explicit_sampling",
    "project_active",
    "require_known_membership",
]


@dataclass
class ResidentDecode:
    """What the last accepted step left on the device.

    Its sampling rows (kept over host-sampled steps), whether it fed tokens and positions back, its program and the
    slots that it advanced.
    """

    sampling: SamplingChoice | None = None
    feedback: bool = False
    signature: DecodeProgramSignature | None = None
    active_slots: tuple[int, ...] = ()

    def host_takes_over(self, prepared: PreparedDecode) -> bool:
        """Whether a step has to take all its inputs from the host instead of going on with what is on the device.

        Under the reload contract that is a command. Otherwise it follows from the step: a reset, no feedback from the
        step before (or not to the same program), rows that moved between slots, rows that the device has not advanced.
        """
        if prepared.reload_inputs is not None:
            return prepared.reload_inputs
        if prepared.reset_batch or not (prepared.device_feedback and self.feedback):
            return True
        signature, slots = prepared.program_signature, active_slots_of_step(prepared)
        # Steady steps carry the very objects of the step before.
        if signature is not self.signature and signature is not None and signature != self.signature:
            return True
        if slots is not self.active_slots and not set(slots) <= set(self.active_slots):
            return True
        return prepared.slot_remap is not None and moves_rows(prepared.slot_remap)

    def lost_rows(self, prepared: PreparedDecode) -> bool:
        """Whether rows that the device would go on advancing are idle in an inferred step."""
        if prepared.reload_inputs is not None:
            return False
        slots = active_slots_of_step(prepared)
        return slots is not self.active_slots and slots != self.active_slots


def check_commands(
    commands: tuple[Any, Any, Any, Any, Any],
    *,
    has_sampling: bool,
    has_slot_remap: bool,
    resident_feedback: bool,
) -> None:
    """Refuse non-bool commands (TypeError) and every illegal combination (ValueError).

    ``commands`` is ``(reset_batch, reload_inputs, reload_page_table, reload_sampling_params,
    reset_sampling_state)``.
    """
    reset_batch, reload_inputs, reload_page_table, reload_sampling_params, reset_sampling_state = commands
    if not (
        type(reset_batch)
        is type(reload_inputs)
        is type(reload_page_table)
        is type(reload_sampling_params)
        is type(reset_sampling_state)
        is bool
    ):
        _require_bools(commands)
    validate_decode_commands(
        reset_batch=reset_batch,
        reload_inputs=reload_inputs,
        reload_page_table=reload_page_table,
        reload_sampling_params=reload_sampling_params,
        reset_sampling_state=reset_sampling_state,
        has_sampling=has_sampling,
        has_slot_remap=has_slot_remap,
        resident_feedback=resident_feedback,
    )


def _require_bools(commands: tuple[Any, Any, Any, Any, Any]) -> None:
    names = (
        "reset_batch",
        "reload_inputs",
        "reload_page_table",
        "reload_sampling_params",
        "reset_sampling_state",
    )
    for name, value in zip(names, commands, strict=True):
        if name != "reload_inputs" or value is not None:
            require_bool(value, name=name)


def explicit_sampling(
    preparer: DecodeSamplingPreparer,
    resident: SamplingChoice | None,
    batch: DecodeBatch,
    *,
    reload_inputs: bool,
    reload_sampling_params: bool,
    reset_sampling_state: bool,
    params: Any,
    prompt_tokens: Any,
    output_tokens: Any,
    slot_remap: Any,
) -> SamplingChoice:
    """Sampling rows of a sampled step: the caller's when commanded or nothing is resident, else the resident ones.

    Host positions are one step stale while inputs stay resident, so the active slots then come from the
    resident rows (RuntimeError when there are none).
    """
    if reload_sampling_params or resident is None:
        if reload_inputs:
            active_slots = batch.active_slots
        elif resident is not None:
            active_slots = resident.active_slots
        else:
            raise RuntimeError(
                "sampling parameters cannot be reloaded without inputs: no earlier step left resident "
                "sampling rows that tell the active slots"
            )
        return preparer.prepare(params, active_slots, prompt_tokens, output_tokens, slot_remap)
    choice = resident if slot_remap is None else _remapped(preparer, resident, slot_remap)
    if reload_inputs and choice.active_slots != batch.active_slots:
        choice = _with_active_slots(preparer, choice, batch.active_slots, reset=reset_sampling_state)
    if reset_sampling_state:
        history = replace(choice.prepared, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        choice = choice._replace(prepared=history)
    return choice


def _remapped(preparer: DecodeSamplingPreparer, resident: SamplingChoice, slot_remap: Any) -> SamplingChoice:
    moved = remap_prepared_sampling(resident.prepared, slot_remap)
    if moved is None:
        raise ValueError("slot_remap leaves no active slot in the resident sampling rows")
    choice = preparer.choice(moved, active_slots_of(moved))
    return choice._replace(prepared=replace(moved, slot_remap=slot_remap))


def _with_active_slots(
    preparer: DecodeSamplingPreparer,
    choice: SamplingChoice,
    active_slots: tuple[int, ...],
    *,
    reset: bool,
) -> SamplingChoice:
    if not active_slots:
        raise ValueError("device sampling needs at least one active slot, every start_pos is negative")
    if not reset:
        raise ValueError(
            f"the active slots changed from {list(choice.active_slots)} to {list(active_slots)}; "
            "reset_sampling_state must be commanded with it"
        )
    mask = [False] * choice.prepared.batch_size
    for slot in active_slots:
        mask[slot] = True
    prepared = replace(choice.prepared, active_mask=tuple(mask), active_rows=len(active_slots))
    return preparer.choice(prepared, active_slots)


def active_slots_of(prepared: PreparedSamplingParams) -> tuple[int, ...]:
    """The slots whose rows are in use."""
    return tuple(slot for slot, active in enumerate(prepared.active_mask) if active)


def active_slots_of_step(prepared: PreparedDecode) -> tuple[int, ...]:
    """The slots with a position of at least 0."""
    if prepared.batch is not None:
        slots: tuple[int, ...] = prepared.batch.active_slots
        return slots
    return tuple(slot for slot, position in enumerate(prepared.start_pos) if int(position) >= 0)


def project_active(active: Any, slot_remap: Any) -> tuple[bool, ...]:
    """The active mask as a remap will leave it."""
    mask = tuple(bool(value) for value in active)
    return mask if slot_remap is None else remap_rows(mask, remap_sources(slot_remap), neutral=False)


def require_known_membership(prepared: PreparedDecode, seed_active: Any) -> None:
    """RuntimeError when the sampled rows differ from the rows that own seed state and no reset is commanded."""
    if prepared.reset_sampling_state or prepared.prepared_sampling is None:
        return
    projected = project_active(seed_active, prepared.slot_remap)
    wanted = prepared.prepared_sampling.active_mask[: len(projected)]
    if projected != wanted:
        have = [slot for slot, value in enumerate(projected) if value]
        want = [slot for slot, value in enumerate(wanted) if value]
        raise RuntimeError(
            f"sampling state is held for slots {have}, but slots {want} are to be sampled; command reset_sampling_state"
        )
