# SPDX-License-Identifier: Apache-2.0
"""Eager execution of one prepared step with failure-safe ownership of everything it stages.

Follows chapter 20, section 5.4.
"""

from __future__ import annotations

from typing import Any

from llm_runtime.decode.body import DecodeBody, checked_module_inputs
from llm_runtime.decode.health import DecodeHealth
from llm_runtime.decode.inputs import DecodeInputStager, HostValues
from llm_runtime.decode.state import DecodeSamplingState
from llm_runtime.decode.values import InvocationResult, PreparedDecode
from llm_runtime.tensor_resources import attach_cleanup_failures

__all__ = ["DecodeInvoker"]


class DecodeInvoker:
    """Stages, runs and hands over one step; every collaborator is borrowed from the runtime."""

    def __init__(
        self,
        model: Any,
        *,
        stager: DecodeInputStager,
        body: DecodeBody,
        state: DecodeSamplingState,
        health: DecodeHealth,
    ) -> None:
        self._model = model
        self._stager = stager
        self._body = body
        self._state = state
        self._health = health

    def invoke(self, prepared: PreparedDecode, *, device_feedback: bool, count_tokens: bool) -> InvocationResult:
        """Run one step; the result owns its inputs and output. A counted failure invalidates the runtime.

        A compile-only step (``count_tokens=False``) admits sampling state for its own duration and leaves
        none behind, whether it succeeds or fails.
        """
        compile_only = not count_tokens and self._state.is_stateful
        host = self._stager.host_values(prepared)
        try:
            result = self._run(
                prepared,
                host,
                device_feedback=device_feedback,
                count_tokens=count_tokens,
                compile_only=compile_only,
            )
        except BaseException as error:
            if count_tokens:
                self._health.invalidate()
            if compile_only:
                attach_cleanup_failures(error, self._reset_failures())
            raise
        if compile_only:
            failures = self._reset_failures()
            if failures:
                attach_cleanup_failures(failures[0], self._health.release(result.owned))
                raise failures[0]
        return result

    def _run(
        self,
        prepared: PreparedDecode,
        host: HostValues,
        *,
        device_feedback: bool,
        count_tokens: bool,
        compile_only: bool,
    ) -> InvocationResult:
        inputs, kpt = self._stager.stage(host)
        try:
            if compile_only:
                self._state.admit_for_compile(prepared)
            else:
                self._state.refresh(prepared)
            with checked_module_inputs(self._model):
                output = self._body.run(
                    prepared,
                    inputs,
                    kpt,
                    device_feedback=device_feedback,
                    count_tokens=count_tokens or self._state.has_controller,
                )
        except BaseException as error:
            attach_cleanup_failures(error, self._health.release((inputs, kpt)))
            raise
        return InvocationResult(
            value=output, owned=(output, (inputs, kpt)), is_tokens=prepared.sampling_params is not None
        )

    def _reset_failures(self) -> list[BaseException]:
        try:
            self._state.reset()
        except BaseException as error:
            return [error]
        return []
