# SPDX-License-Identifier: Apache-2.0
"""What a sampled step has to agree with before device work: supported parameters, known streams, legal commands.

Follows chapter 20, sections 4.6 and 5.5.
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

__all__ = ["SamplingStateChecks", "marked_slots"]


class SamplingStateChecks:
    """The state that sampled steps are checked against, and the checks, which change nothing.

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
        rows = self._active_rows(sampling)
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
            self._counted, self._counted_rows = sampling, marked_slots(sampling.active_mask)
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


def _is_mutable_buffer(seeds: Any) -> bool:
    return (
        callable(getattr(seeds, "update", None))
        and callable(getattr(seeds, "get_device_buffer", None))
        and getattr(seeds, "source", None) is not None
    )


def marked_slots(mask: Sequence[bool]) -> tuple[int, ...]:
    """The slots that a mask marks."""
    return tuple(slot for slot, marked in enumerate(mask) if marked)
