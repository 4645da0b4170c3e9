# SPDX-License-Identifier: Apache-2.0
"""A sampling-state controller that writes down what decode asks of it and samples with the model's sampler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from llm_runtime.seed_manager import SeedManager


class RecordingController:
    """Holds seeds like the native manager; ``log`` lists the calls, ``idle`` and ``history_error`` make checks fail."""

    def __init__(self, sampling: Any) -> None:
        self.sampling = sampling
        self.seed_manager = SeedManager(sampling.config.seeds)
        self.log: list[tuple[Any, ...]] = []
        self.idle = True
        self.history_error: Exception | None = None

    def create_state(self) -> Any:
        return SimpleNamespace(
            seed_state=self.seed_manager.create_state(),
            static_identity=None,
            active_mask=None,
            penalty_history_valid=False,
        )

    def admit(self, *args: Any, **kwargs: Any) -> None:
        self.log.append(("admit",))

    admit_prefill = prefill_forward = admit

    def reset(self, state: Any, sampling: Any = None) -> None:
        self.log.append(("reset", sampling is not None))
        state.static_identity = None if sampling is None else self.static_identity(sampling)

    def static_identity(self, sampling: Any) -> Any:
        return (sampling.penalties_enabled, sampling.sampling_path)

    def require_idle(self, state: Any) -> None:
        if not self.idle:
            raise RuntimeError("the controller is busy")

    def validate_prepared(self, state: Any, sampling: Any) -> None:
        self.log.append(("validate_prepared", sampling.slot_remap))

    def validate_prepared_history(self, state: Any, sampling: Any) -> None:
        if self.history_error is not None:
            raise self.history_error
        self.log.append(("validate_prepared_history",))

    def validate_decode_history(self, state: Any, sampling: Any, *, slot_remap: Any) -> None:
        self.log.append(("validate_decode_history", slot_remap))

    def synchronize_decode(self, state: Any, sampling: Any, *, reset_batch: bool) -> Any:
        self.log.append(("synchronize_decode", reset_batch))
        return sampling

    def refresh_dynamic_inputs(self, state: Any, sampling: Any, *, positions: Any) -> None:
        self.log.append(("refresh_dynamic_inputs", [int(position) for position in positions]))

    def remap_slots(self, state: Any, slot_remap: Any) -> None:
        self.log.append(("remap_slots", list(slot_remap)[:2]))

    def reset_decode_state(self, state: Any, sampling: Any, *, reload_params: bool) -> None:
        self.log.append(("reset_decode_state", reload_params))
        state.static_identity, state.penalty_history_valid = self.static_identity(sampling), True
        active = [slot for slot, used in enumerate(sampling.active_mask) if used]
        self.seed_manager.reset_decode(state.seed_state, sampling.seeds, active)

    def configure_decode(self, state: Any, sampling: Any, *, reload_params: bool) -> None:
        self.log.append(("configure_decode", reload_params))
        state.static_identity = self.static_identity(sampling)

    def decode_forward(
        self,
        logits: Any,
        state: Any,
        sampling: Any,
        *,
        k: Any,
        p: Any,
        temp: Any,
        positions: Any,
        tt_out_tok: Any,
        count_tokens: bool,
        advance_seeds: bool,
    ) -> Any:
        self.log.append(("decode_forward", count_tokens, advance_seeds, positions is None, sampling.slot_remap))
        return self.sampling.decode_forward(logits, k=k, p=p, temp=temp)
