# SPDX-License-Identifier: Apache-2.0
"""Capture plan of one decode step and the in-place refresh of its persistent inputs before a replay.

Follows chapter 20, sections 5.6 and 5.7.
"""

from __future__ import annotations

from typing import Any

from llm_runtime.decode.body import DecodeBody
from llm_runtime.decode.inputs import DecodeInputStager, Release
from llm_runtime.decode.leases import LeaseBook
from llm_runtime.decode.reload import ResidentDecode
from llm_runtime.decode.staging_turns import StagingTurns
from llm_runtime.decode.state import DecodeSamplingState
from llm_runtime.decode.values import (
    DecodeCapturePlan,
    DecodeDeviceInputs,
    DecodePersistentInputs,
    PreparedDecode,
)

__all__ = ["DecodeTraceLifecycle", "persistent_inputs_of"]


class DecodeTraceLifecycle:
    """Builds capture plans and refreshes captured steps; owns nothing itself."""

    def __init__(
        self,
        *,
        stager: DecodeInputStager,
        body: DecodeBody,
        state: DecodeSamplingState,
        resident: ResidentDecode,
        leases: LeaseBook,
        turns: StagingTurns,
        release: Release,
    ) -> None:
        self._stager = stager
        self._body = body
        self._state = state
        self._resident = resident
        self._leases = leases
        self._turns = turns
        self._release = release

    def capture_plan(self, prepared: PreparedDecode) -> DecodeCapturePlan:
        """How to allocate, prime and capture this step; what the callbacks return is the caller's."""

        def run(persistent: Any) -> Any:
            values = persistent_inputs_of(persistent)
            return self._body.run(
                prepared,
                values.device_inputs,
                values.kpt,
                device_feedback=prepared.device_feedback,
                count_tokens=True,
            )

        return DecodeCapturePlan(
            prepare_inputs=lambda: self._prepare_inputs(prepared),
            capture=run,
            prepare_capture=lambda _persistent: self._state.prepare_capture(prepared),
            prime=run,
            release_prime_output=self._release,
        )

    def _prepare_inputs(self, prepared: PreparedDecode) -> DecodePersistentInputs:
        self._state.prepare_inputs(prepared)
        device_inputs, kpt = self._stager.stage(self._stager.host_values(prepared))
        return DecodePersistentInputs(
            device_inputs=device_inputs,
            kpt=kpt,
            kpt_signature=None if kpt is None else [_kpt_signature(prepared)],
            seed_buffer=self._state.seed_buffer,
        )

    def refresh(self, artifact: Any, prepared: PreparedDecode, decision: Any) -> None:
        """Copy into the trace's inputs what ``decision`` asks for; seeds always, K/P/T when they changed.

        RuntimeError when the seed buffer was replaced after the capture or the sampling path does not fit.
        """
        values = persistent_inputs_of(artifact)
        state, stager, resident = self._state, self._stager, self._resident
        if state.seed_buffer is not values.seed_buffer:
            raise RuntimeError("the device seed buffer is not the one that the trace captured")
        samples_top_k = prepared.sampling_path == "topk"
        if samples_top_k != (values.kpt is not None):
            raise RuntimeError(
                f"the compiled sampling path changed: the trace {'has no' if samples_top_k else 'owns'} K/P/T "
                f"buffers, but the step takes the {prepared.sampling_path} path"
            )
        staging_set, full = self._turns.take(), decision.full
        state.refresh(prepared, staging_set=staging_set)
        if resident.host_takes_over(prepared) or (full and not self._leases.unprocessed):
            stager.refresh_all(prepared, values.device_inputs, staging_set)
        elif full or resident.lost_rows(prepared):
            # Positions are known to the host although tokens are not: another trace ran in between, or rows ended.
            stager.copy(stager.host_positions(prepared), values.device_inputs.values()[1:])
        elif decision.page_table:
            stager.refresh_page_table(prepared, values.device_inputs, staging_set)
        if samples_top_k:
            self._refresh_kpt(values, prepared)

    def _refresh_kpt(self, values: DecodePersistentInputs, prepared: PreparedDecode) -> None:
        sampling, stored = prepared.prepared_sampling, values.kpt_signature
        if sampling is None or values.kpt is None or stored is None:
            raise RuntimeError("a top-k replay needs prepared sampling parameters and the trace's K/P/T record")
        signature = (sampling.top_k, sampling.top_p, sampling.temperature)
        if prepared.reload_sampling_params or not stored or stored[0] != signature:
            self._stager.copy(self._stager.host_kpt_rows(sampling), values.kpt)
            stored[:] = [signature]


def _kpt_signature(prepared: PreparedDecode) -> Any:
    sampling = prepared.prepared_sampling
    return None if sampling is None else (sampling.top_k, sampling.top_p, sampling.temperature)


def persistent_inputs_of(artifact: Any) -> DecodePersistentInputs:
    """Find decode's persistent inputs in a trace artifact, a wrapper with ``values``, or the value itself.

    A wrapper may hold a dict with the four field names instead. TypeError for anything else.
    """
    try:
        values = artifact.persistent_inputs.values
    except AttributeError:
        pass
    else:
        if type(values) is DecodePersistentInputs:  # what a trace compiler hands over
            return values
    if isinstance(artifact, DecodePersistentInputs):
        return artifact
    holder = getattr(artifact, "persistent_inputs", artifact)
    if isinstance(holder, DecodePersistentInputs):
        return holder
    values = getattr(holder, "values", None)
    if isinstance(values, DecodePersistentInputs):
        return values
    if isinstance(values, dict):
        return _from_mapping(values)
    raise TypeError(f"no decode persistent inputs in {type(artifact).__name__}")


def _from_mapping(values: dict[str, Any]) -> DecodePersistentInputs:
    missing = [name for name in ("device_inputs", "kpt", "kpt_signature", "seed_buffer") if name not in values]
    if missing:
        raise TypeError(f"decode persistent inputs lack {', '.join(missing)}")
    inputs = values["device_inputs"]
    if not isinstance(inputs, DecodeDeviceInputs):
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 4:
            raise TypeError("device_inputs must be DecodeDeviceInputs or a sequence of four tensors")
        inputs = DecodeDeviceInputs(*inputs)
    return DecodePersistentInputs(inputs, values["kpt"], values["kpt_signature"], values["seed_buffer"])
