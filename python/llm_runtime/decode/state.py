# SPDX-License-Identifier: Apache-2.0
"""Request-owned sampling state: seeds through a native manager, or everything through a controller.

Follows chapter 20, sections 4.6, 5.1 and 5.5.
"""

from __future__ import annotations

from typing import Any

from llm_runtime.decode.reload import active_slots_of_step, project_active
from llm_runtime.decode.remap import without_remap
from llm_runtime.decode.state_checks import SamplingStateChecks, marked_slots
from llm_runtime.decode.values import PreparedDecode
from llm_runtime.prefill.sampling_helpers import PreparedSamplingParams

__all__ = ["DecodeSamplingState"]


class DecodeSamplingState(SamplingStateChecks):
    """Moves seeds and request state to where the next device step expects them."""

    @property
    def is_stateful(self) -> bool:
        """Whether a compile-only step has to admit and reset request state."""
        return self.manager is not None or self._controller is not None

    @property
    def has_controller(self) -> bool:
        """Whether a controller owns the sampling state."""
        return self._controller is not None

    @property
    def seed_buffer(self) -> Any:
        """The device buffer that a captured step reads its seeds from (borrowed), or None."""
        return None if self.manager is None else self.manager.get_seed_device_buffer()

    def refresh(self, prepared: PreparedDecode, *, staging_set: int = -1) -> None:
        """Bring the state up to this step, exactly once per eager call or replay, before its inputs are copied.

        The host tensors of `staging_set` are free to be written again; -1 stands for none.
        """
        if prepared.reload_inputs is None:
            self._refresh_inferred(prepared, reset_batch=prepared.reset_batch, staging_set=staging_set)
        else:
            self._refresh_commanded(prepared, staging_set=staging_set)

    def admit_for_compile(self, prepared: PreparedDecode) -> None:
        """Give a compile-only step the state of a fresh batch; :meth:`reset` has to follow."""
        if self._controller is None:
            self._refresh_inferred(prepared, reset_batch=True)
        elif prepared.prepared_sampling is None:
            self._controller.reset(self._state)
        else:
            self._controller.reset(self._state, without_remap(prepared.prepared_sampling))

    def reset(self) -> None:
        """Forget every request: no slot active, the seed buffer at its defaults."""
        if self._controller is not None:
            self._controller.reset(self._state)
        elif self.manager is not None:
            self._streams, self._at_defaults = None, False
            self.manager.reset(self.seed_state)

    def prepare_inputs(self, prepared: PreparedDecode) -> None:
        """Reset a controller to this request before the persistent inputs of a trace are staged."""
        if self._controller is not None and prepared.prepared_sampling is not None:
            self._controller.reset(self._state, without_remap(prepared.prepared_sampling))

    def prepare_capture(self, prepared: PreparedDecode) -> None:
        """Point a controller's host state at this request without any device write.

        Several sampled variants can then be primed and captured in turn.
        """
        sampling = prepared.prepared_sampling
        if self._controller is not None and sampling is not None:
            self._state.static_identity = self._controller.static_identity(without_remap(sampling))
            self._state.active_mask = sampling.active_mask

    def _refresh_inferred(self, prepared: PreparedDecode, *, reset_batch: bool, staging_set: int = -1) -> None:
        sampling = prepared.prepared_sampling
        manager, seed_state = self.manager, self.seed_state
        if sampling is None:
            if self._controller is not None:
                if prepared.slot_remap is not None:
                    self._controller.remap_slots(self._state, prepared.slot_remap)
                self._note_host_sampled()
                manager.restore_defaults(seed_state)
            elif manager is not None:
                self._streams = None
                if prepared.slot_remap is not None:
                    manager.apply_slot_remap(seed_state, prepared.slot_remap)
                manager.cleanup(seed_state, active_slots_of_step(prepared))
                if not self._at_defaults:
                    manager.restore_defaults(seed_state)
                    self._at_defaults = True
        elif self._controller is not None:
            synchronised = self._controller.synchronize_decode(self._state, sampling, reset_batch=reset_batch)
            self._controller.refresh_dynamic_inputs(self._state, synchronised, positions=prepared.start_pos)
        elif manager is not None:
            self._refresh_streams(prepared, sampling, reset_batch=reset_batch, staging_set=staging_set)

    def _note_host_sampled(self) -> None:
        """Tell a controller that wants to know of a token that the device does not sample, and so cannot count."""
        note = getattr(self._controller, "note_host_sampled", None)
        if note is not None:
            note(self._state)

    def _refresh_streams(
        self, prepared: PreparedDecode, sampling: PreparedSamplingParams, *, reset_batch: bool, staging_set: int
    ) -> None:
        manager, seed_state, active = self.manager, self.seed_state, active_slots_of_step(prepared)
        same = active is self._streams or active == self._streams
        if reset_batch or sampling.slot_remap is not None or not same:
            self._streams = None
            if sampling.slot_remap is not None:
                manager.apply_slot_remap(seed_state, sampling.slot_remap)
            manager.synchronize(seed_state, sampling.seeds, active, reset_batch=reset_batch)
            self._streams = active
        if prepared.sampling_path == "topk":
            self._at_defaults = False
            manager.refresh(seed_state, active, positions=prepared.start_pos, staging_set=staging_set)
        elif not self._at_defaults:
            manager.restore_defaults(seed_state)
            self._at_defaults = True

    def _refresh_commanded(self, prepared: PreparedDecode, *, staging_set: int) -> None:
        controller, manager, seed_state = self._controller, self.manager, self.seed_state
        self._streams, self._at_defaults = None, False
        remap, sampling = prepared.slot_remap, prepared.prepared_sampling
        if remap is not None:
            if controller is not None:
                controller.remap_slots(self._state, remap)
            elif manager is not None:
                remaining = project_active(seed_state.active, remap)
                manager.apply_slot_remap(seed_state, remap)
                # A stream that moved away leaves a copy behind in its old slot.
                manager.cleanup(seed_state, marked_slots(remaining))
        if sampling is None or manager is None:
            self._note_host_sampled()
            return
        if sampling.slot_remap is not None:
            sampling = without_remap(sampling)
        active = self._active_rows(sampling)
        reload_params, reset = prepared.reload_sampling_params, prepared.reset_sampling_state
        if controller is not None:
            if reset:
                controller.reset_decode_state(self._state, sampling, reload_params=reload_params)
            else:
                controller.configure_decode(self._state, sampling, reload_params=reload_params)
        elif reset:
            manager.reset_decode(seed_state, sampling.seeds, active)
        elif reload_params:
            manager.reload_request_seeds(seed_state, sampling.seeds, active)
        if prepared.sampling_path == "topk":
            positions = prepared.start_pos if prepared.reload_inputs else None
            if controller is None:  # a controller brings a manager of its own kind
                manager.refresh(seed_state, active, positions=positions, staging_set=staging_set)
            else:
                manager.refresh(seed_state, active, positions=positions)
        elif reload_params or reset:
            manager.restore_defaults(seed_state)
