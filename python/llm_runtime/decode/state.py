# SPDX-License-Identifier: Apache-2.0
"""Request-owned sampling state: seeds through a native manager, or everything through a controller.

Follows chapter 20, sections 4.6, 5.1 and 5.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.decode.limits import require_supported_sampling
from llm_runtime.decode.reload import active_slots_of_step, project_active, require_known_membership
from llm_runtime.decode.remap import without_remap
from llm_runtime.decode.values import PreparedDecode
from llm_runtime.prefill.sampling_helpers import PreparedSamplingParams
from llm_runtime.prefill.sampling_limits import serves_log_probs
from llm_runtime.seed_manager import SeedManager

__all__ = ["DecodeSamplingState"]


class DecodeSamplingState:
    """Moves seeds and request state to where the next device step expects them.

    The controller, its state and the model's seed buffer are borrowed; a native manager and its seed state
    belong to this object. Without either, explicit seeds are refused.
    """

    def __init__(self, config: DecodeRuntimeConfig) -> None:
        self._controller = config.sampling_state_controller
        self._state = config.sampling_state
        self._has_log_probs = serves_log_probs(config.model, num_devices=config.num_devices)
        self.manager: Any = None
        self.seed_state: Any = None
        # Slots with a stream after the last inferred refresh of the native manager, which nobody else moves.
        self._streams: tuple[int, ...] | None = None
        # Whether the native manager left the default seeds in the buffer.
        self._at_defaults = False
        self._supported: PreparedSamplingParams | None = None
        self._counted: PreparedSamplingParams | None = None
        self._counted_rows: tuple[int, ...] = ()
        if self._controller is not None:
            self.manager = self._controller.seed_manager
            self.seed_state = self._state.seed_state
        elif config.device_sampling_enabled:
            seeds: Any = getattr(config.model.sampling.config, "seeds", None)
            if _is_mutable_buffer(seeds):
                self.manager = SeedManager(seeds)
                self.seed_state = self.manager.create_state()
        if self.seed_state is not None and self.seed_state.capacity < config.lane_capacity:
            raise ValueError(
                f"the seed state holds {self.seed_state.capacity} slots, the lane has {config.lane_capacity}"
            )

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

    def require_supported(self, prepared: PreparedDecode) -> None:
        """Refuse what the sampler would silently drop; see :func:`require_supported_sampling`."""
        rows = prepared.prepared_sampling
        if rows is None or rows is self._supported:
            return
        require_supported_sampling(
            prepared,
            has_seed_buffer=self.manager is not None,
            has_controller=self._controller is not None,
            has_log_probs=self._has_log_probs,
        )
        self._supported = rows

    def require_known_streams(self, prepared: PreparedDecode) -> None:
        """RuntimeError when an inferred sampled step without a reset brings slots whose random streams are unknown.

        A controller checks for itself, in a `validate_decode` if it has one: what comes up later ends the runtime.
        """
        sampling = prepared.prepared_sampling
        if sampling is None:
            return
        if self._controller is not None:
            validate = getattr(self._controller, "validate_decode", None)
            if validate is not None:
                validate(self._state, sampling, reset_batch=prepared.reset_batch)
            return
        if prepared.reset_batch or self.manager is None:
            return
        active = active_slots_of_step(prepared)
        if (active is self._streams or active == self._streams) and sampling.slot_remap is None:
            return
        held = project_active(self.seed_state.active, sampling.slot_remap)
        missing = [slot for slot in active if not held[slot]]
        if missing:
            raise RuntimeError(
                f"slots {missing} have no sampling state yet; prepare the first step of a batch with reset_batch=True"
            )

    def validate_commands(self, prepared: PreparedDecode, *, has_resident: bool) -> None:
        """Check a sampled step of the reload contract against the state on the device; changes nothing."""
        sampling = prepared.prepared_sampling
        if sampling is None:
            return
        if not has_resident and not prepared.reload_sampling_params:
            raise RuntimeError("the first device-sampled decode must command reload_sampling_params")
        if self.manager is None or self.seed_state is None:
            raise TypeError("the reload contract needs a mutable seed buffer and its seed state")
        if not self._continues_streams(prepared, sampling):
            require_known_membership(prepared, self.seed_state.active)
        if self._controller is not None:
            self._validate_with_controller(prepared, without_remap(sampling))

    def _continues_streams(self, prepared: PreparedDecode, sampling: PreparedSamplingParams) -> bool:
        """Whether a step samples exactly the slots that have streams: the common case, told without a mask."""
        if prepared.slot_remap is not None:
            return False
        rows = self._counted_rows if sampling is self._counted else self._active_rows(sampling)
        members = getattr(self.seed_state, "members", None)
        if rows is members:
            return True
        if rows != members:
            return False
        self._counted_rows = members  # the next steps find one object in both places
        return True

    def _active_rows(self, sampling: PreparedSamplingParams) -> tuple[int, ...]:
        """The active slots of sampling rows, counted once while the same rows come again."""
        if sampling is not self._counted:
            self._counted, self._counted_rows = sampling, _marked(sampling.active_mask)
        return self._counted_rows

    def _validate_with_controller(self, prepared: PreparedDecode, sampling: PreparedSamplingParams) -> None:
        controller, state = self._controller, self._state
        controller.require_idle(state)
        controller.validate_prepared(state, sampling)
        if prepared.reset_sampling_state:
            controller.validate_prepared_history(state, sampling)
            return
        if state.static_identity is None or not state.penalty_history_valid:
            raise RuntimeError(
                "no sampling identity with valid penalty history is established; command reset_sampling_state"
            )
        if prepared.reload_sampling_params:
            controller.validate_decode_history(state, sampling, slot_remap=prepared.slot_remap)
        elif controller.static_identity(sampling) != state.static_identity:
            raise RuntimeError("the sampling identity differs from the resident one; command reload_sampling_params")

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
                manager.cleanup(seed_state, _marked(remaining))
        if sampling is None or manager is None:
            self._note_host_sampled()
            return
        if sampling.slot_remap is not None:
            sampling = without_remap(sampling)
        active = self._counted_rows if sampling is self._counted else self._active_rows(sampling)
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
            if controller is None:
                manager.refresh(seed_state, active, positions=positions, staging_set=staging_set)
            else:
                manager.refresh(seed_state, active, positions=positions)
        elif reload_params or reset:
            manager.restore_defaults(seed_state)


def _is_mutable_buffer(seeds: Any) -> bool:
    return (
        callable(getattr(seeds, "update", None))
        and callable(getattr(seeds, "get_device_buffer", None))
        and getattr(seeds, "source", None) is not None
    )


def _marked(mask: Sequence[bool]) -> tuple[int, ...]:
    return tuple(slot for slot, marked in enumerate(mask) if marked)
