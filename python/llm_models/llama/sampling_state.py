# SPDX-License-Identifier: Apache-2.0
"""Sampling state of a lane's requests on the device: random streams and, for penalties, token histories.

Follows chapter 20, sections 4.6, 5.5 and 11, and chapter 40, section B.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llm_models.llama.penalised_sampling import PenalisedSampling, SamplingState1D
from llm_models.llama.penalties import PenaltyTensors
from llm_models.llama.penalty_history import Histories, histories_of, marked
from llm_models.llama.sampling import Sampling1D
from llm_runtime.decode.reload import project_active
from llm_runtime.decode.remap import moves_rows
from llm_runtime.prefill.sampling_params import PreparedSamplingParams
from llm_runtime.seed_manager import SeedManager


class SamplingStateController1D(PenalisedSampling):
    """Moves a lane's sampling state to where the next device step expects it. Borrows the sampler.

    Token counts live in sampler rows and grow on the device. They are written from the host's histories when a batch
    is reset; a sampled prefill with penalties borrows them, and a remap does not move them, so the step after either
    must be a reset with complete histories (`RuntimeError` otherwise).
    """

    def __init__(self, sampling: Sampling1D) -> None:
        super().__init__(sampling)
        self.seed_manager = SeedManager(sampling.config.seeds)

    def create_state(self) -> SamplingState1D:
        """A state without requests; its tensors are made when penalties are first asked for."""
        config = self.sampling.config
        penalties = PenaltyTensors(config.mesh_device, rows=config.max_batch_size, vocab_size=config.vocab_size)
        return SamplingState1D(self.seed_manager.create_state(), penalties)

    def release(self, state: SamplingState1D) -> None:
        """Free the state's tensors; idempotent, and retryable after a failure."""
        state.static_identity, state.penalty_history_valid, state.tracked = None, False, False
        state.penalties.release()

    def static_identity(self, sampling: PreparedSamplingParams) -> Any:
        """What a change of needs another configuration of the device."""
        if not sampling.penalties_enabled:
            return (False,)
        weights = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
        return (True, sampling.active_mask, *weights)

    # Checks, which change nothing.

    def require_idle(self, state: SamplingState1D) -> None:
        """Nothing of this controller outlives a call."""

    def validate_prepared(self, state: SamplingState1D, sampling: PreparedSamplingParams) -> None:
        """`ValueError` for rows that are not the sampler's."""
        rows = self.sampling.config.max_batch_size
        if sampling.batch_size != rows:
            raise ValueError(f"{sampling.batch_size} sampling rows for a sampler of {rows}")

    def validate_prepared_history(self, state: SamplingState1D, sampling: PreparedSamplingParams) -> None:
        """`ValueError` naming the slot when a reset with penalties brings no usable history."""
        if sampling.penalties_enabled:
            histories_of(sampling, vocab_size=self.sampling.config.vocab_size)

    def validate_decode_history(
        self, state: SamplingState1D, sampling: PreparedSamplingParams, *, slot_remap: Any = None
    ) -> None:
        """`RuntimeError` when penalties need token counts that the device does not have."""
        if not sampling.penalties_enabled:
            return
        moved = slot_remap is not None and moves_rows(slot_remap)
        if moved or not (state.tracked and state.penalty_history_valid):
            raise RuntimeError(
                "penalties need complete token counts: reset the sampling state with prompt_tokens and output_tokens"
            )

    def validate_decode(self, state: SamplingState1D, sampling: PreparedSamplingParams, *, reset_batch: bool) -> None:
        """The checks of an inferred step, before device work; `RuntimeError` for slots without a random stream."""
        self.validate_prepared(state, sampling)
        if reset_batch:
            self.validate_prepared_history(state, sampling)
            return
        self.validate_decode_history(state, sampling, slot_remap=sampling.slot_remap)
        held = project_active(state.seed_state.active, sampling.slot_remap)
        missing = [slot for slot in marked(sampling.active_mask) if not held[slot]]
        if missing:
            raise RuntimeError(
                f"slots {missing} have no sampling state yet; prepare the first step of a batch with reset_batch=True"
            )

    # Changes.

    def reset(self, state: SamplingState1D, sampling: PreparedSamplingParams | None = None) -> None:
        """Forget every request; with `sampling`, be ready to compile or capture a step for it."""
        self.seed_manager.reset(state.seed_state)
        state.static_identity, state.active_mask = None, ()
        state.penalty_history_valid = state.tracked = False
        if sampling is None:
            return
        if sampling.penalties_enabled:
            state.penalties.load()
        active = marked(sampling.active_mask)
        self.seed_manager.reset_decode(state.seed_state, sampling.seeds, active)
        if sampling.sampling_path == "topk":
            self.seed_manager.refresh(state.seed_state, active)
        state.static_identity, state.active_mask = self.static_identity(sampling), sampling.active_mask

    def admit(self, state: SamplingState1D, sampling: Any, *, slots: Sequence[int], positions: Sequence[int]) -> None:
        """As `admit_prefill`."""
        self.admit_prefill(state, sampling, slots=slots, positions=positions)

    def admit_prefill(
        self,
        state: SamplingState1D,
        sampling: PreparedSamplingParams,
        *,
        slots: Sequence[int],
        positions: Sequence[int],
    ) -> None:
        """Start the streams of the requests of a prefill; with penalties, lend it the token state.

        Rows are in request order; those of a single request fill all sampler rows, since its token may sit in any row
        of a tile.
        """
        histories = (
            histories_of(sampling, vocab_size=self.sampling.config.vocab_size) if sampling.penalties_enabled else None
        )
        self.seed_manager.admit(state.seed_state, sampling.seeds, slots, positions=positions)
        if histories is None:
            return
        state.penalty_history_valid, state.static_identity = False, None
        rows = [0] * sampling.batch_size if len(slots) == 1 else range(sampling.batch_size)
        self._write(state, sampling, histories, rows=rows, counted=[0.0] * sampling.batch_size)

    def remap_slots(self, state: SamplingState1D, slot_remap: Sequence[int]) -> None:
        """Move the random streams; slot i then has what slot `slot_remap[i]` had. Token counts do not move."""
        gone = {source for slot, source in enumerate(slot_remap) if source != slot}
        gone -= {slot for slot, source in enumerate(slot_remap) if source != slot}
        self.seed_manager.apply_slot_remap(state.seed_state, slot_remap)
        kept = [slot for slot, active in enumerate(state.seed_state.active) if active and slot not in gone]
        self.seed_manager.cleanup(state.seed_state, kept)
        if moves_rows(slot_remap) and state.tracked:
            state.penalty_history_valid = False

    def synchronize_decode(
        self, state: SamplingState1D, sampling: PreparedSamplingParams, *, reset_batch: bool
    ) -> PreparedSamplingParams:
        """Bring streams and penalties to an inferred step; returns the rows without their remap."""
        if sampling.slot_remap is not None:
            self.remap_slots(state, sampling.slot_remap)
            sampling = replace(sampling, slot_remap=None)
        active = marked(sampling.active_mask)
        self.seed_manager.synchronize(state.seed_state, sampling.seeds, active, reset_batch=reset_batch)
        if reset_batch:
            self._rebuild(state, sampling)
        else:
            self._configure(state, sampling)
        return sampling

    def refresh_dynamic_inputs(
        self, state: SamplingState1D, sampling: PreparedSamplingParams, *, positions: Any
    ) -> None:
        """Draw the seeds of an inferred step, or leave the defaults where the path takes none."""
        if sampling.sampling_path == "topk":
            self.seed_manager.refresh(state.seed_state, marked(sampling.active_mask), positions=positions)
        else:
            self.seed_manager.restore_defaults(state.seed_state)

    def note_host_sampled(self, state: SamplingState1D) -> None:
        """Remember that a step sampled on the host, whose token is in no count."""
        if state.tracked:
            state.penalty_history_valid = False

    def reset_decode_state(
        self, state: SamplingState1D, sampling: PreparedSamplingParams, *, reload_params: bool
    ) -> None:
        """Build the state of a reset under the reload contract."""
        self.seed_manager.reset_decode(state.seed_state, sampling.seeds, marked(sampling.active_mask))
        self._rebuild(state, sampling)

    def configure_decode(
        self, state: SamplingState1D, sampling: PreparedSamplingParams, *, reload_params: bool
    ) -> None:
        """Take over changed parameters of the same requests."""
        if reload_params:
            active = marked(sampling.active_mask)
            self.seed_manager.reload_request_seeds(state.seed_state, sampling.seeds, active)
        self._configure(state, sampling)

    def _rebuild(self, state: SamplingState1D, sampling: PreparedSamplingParams) -> None:
        state.static_identity, state.penalty_history_valid, state.tracked = None, False, False
        if sampling.penalties_enabled:
            self._write(
                state,
                sampling,
                histories_of(sampling, vocab_size=self.sampling.config.vocab_size),
                rows=range(sampling.batch_size),
                counted=sampling.active_mask,
            )
            state.tracked = True
        state.static_identity, state.active_mask = self.static_identity(sampling), sampling.active_mask
        state.penalty_history_valid = True

    def _configure(self, state: SamplingState1D, sampling: PreparedSamplingParams) -> None:
        identity = self.static_identity(sampling)
        if identity == state.static_identity:
            return
        self.validate_decode_history(state, sampling)
        state.static_identity = None
        if sampling.penalties_enabled:
            state.penalties.write_weights(
                presence=sampling.presence_penalty,
                frequency=sampling.frequency_penalty,
                repetition=sampling.repetition_penalty,
                counted=sampling.active_mask,
            )
        # Steps of a program without penalties count nothing.
        state.tracked = sampling.penalties_enabled
        state.static_identity, state.active_mask = identity, sampling.active_mask

    def _write(
        self,
        state: SamplingState1D,
        sampling: PreparedSamplingParams,
        histories: Histories,
        *,
        rows: Sequence[int],
        counted: Sequence[float],
    ) -> None:
        prompts, outputs = histories
        state.penalties.load()
        state.penalties.write_history([prompts[row] for row in rows], [outputs[row] for row in rows])
        state.penalties.write_weights(
            presence=[sampling.presence_penalty[row] for row in rows],
            frequency=[sampling.frequency_penalty[row] for row in rows],
            repetition=[sampling.repetition_penalty[row] for row in rows],
            counted=counted,
        )
