# SPDX-License-Identifier: Apache-2.0
"""Values of a prefill trace: persistent inputs, one program's workspace, the capture plan.

Follows chapter 10, section 9.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_runtime._core import PrefillTraceSignature
from llm_runtime.prefill.device_copies import ReleaseTransient
from llm_runtime.prefill.input_values import PrefillDeviceInputs
from llm_runtime.prefill.last_tokens import LastTokens, PositionInputs
from llm_runtime.prefill.sampling_inputs import DeviceSamplingValues, SamplingSignature

_REFRESH_FIELDS = ("tokens", "page_table", "last_token", "sampling")


@dataclass(frozen=True, slots=True, eq=False)
class PrefillHiddenPersistentInputs:
    """Model inputs that a trace owns and reads at fixed addresses; they know nothing of sampling."""

    device_inputs: PrefillDeviceInputs

    def owned_tensor_values(self) -> tuple[Any, ...]:
        """What a release of this value releases."""
        return (self.device_inputs,)


@dataclass(slots=True, eq=False)
class PrefillReplayState:
    """Workspace of one program: tensors that its postprocessing reads or writes, and the values they hold
    now."""

    position_inputs: PositionInputs
    kpt: DeviceSamplingValues | None
    sampled_output: Any = None
    position_signature: LastTokens | None = None
    kpt_signature: SamplingSignature | None = None

    def owned_tensor_values(self) -> tuple[Any, ...]:
        """What a release of this value releases."""
        return (self.position_inputs, self.kpt, self.sampled_output)


@dataclass(frozen=True, slots=True, eq=False)
class PrefillCapturePlan:
    """How to allocate, run and capture one request's trace. Holds closures; nothing is allocated yet."""

    signature: PrefillTraceSignature
    prepare_inputs: Callable[[], PrefillHiddenPersistentInputs]
    capture: Callable[[PrefillHiddenPersistentInputs], Any]
    prepare_workspace: Callable[[], PrefillReplayState]
    schema_fingerprint: tuple[Any, ...]
    workspace_fingerprint: tuple[Any, ...]
    refresh_fields: tuple[str, ...] = _REFRESH_FIELDS
    prime: Callable[[PrefillHiddenPersistentInputs], Any] | None = None
    release_prime_output: ReleaseTransient | None = None
    prime_workspace: Callable[[PrefillHiddenPersistentInputs, PrefillReplayState], None] | None = None
