# SPDX-License-Identifier: Apache-2.0
"""Sampling state of a planned call: each request's own rows of parameters and token history.

Follows chapter 20, section 9.2.
"""

from __future__ import annotations

from typing import Any

from llm_runtime._core import PrefillRequest
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.plain_sampling import refuse_penalties
from llm_runtime.prefill.plan import HostArray
from llm_runtime.prefill.sampling_helpers import (
    _slice_sampling_params,
    default_prompt_history,
    select_request_history,
)
from llm_runtime.prefill.sampling_inputs import PrefillSamplingInputs
from llm_runtime.prefill.sampling_limits import refuse_unsupported_log_probs, serves_log_probs
from llm_runtime.prefill.sampling_normalization import prepare_sampling_params
from llm_runtime.prefill.sampling_params import PreparedSamplingParams


class SamplingPlanner:
    """Normalises one call's sampling parameters request by request and field by field, in plan order."""

    def __init__(
        self,
        config: PrefillRuntimeConfig,
        sampling_inputs: PrefillSamplingInputs,
        *,
        params: Any,
        tokens: HostArray,
        prompt_lens: HostArray | None,
        prompt_tokens: Any,
        output_tokens: Any,
        slot_remap: Any,
    ) -> None:
        self._config = config
        self._inputs = sampling_inputs
        self._params = params
        self._batch_size = tokens.shape[0]
        self._history = {
            "prompt_tokens": (default_prompt_history(tokens, prompt_lens) if prompt_tokens is None else prompt_tokens),
            "output_tokens": output_tokens,
        }
        self._slot_remap = slot_remap

    def prepare(self, request: PrefillRequest) -> tuple[Any, PreparedSamplingParams]:
        """The request's slice of the caller's parameters, and its normalised rows.

        The remap goes with the first request only. ``ValueError`` or ``TypeError`` names the source row of
        anything that the device sampler cannot serve; such a request belongs on the host sampler.
        """
        config, rows = self._config, request.source_rows
        sliced = _slice_sampling_params(self._params, rows)
        history = {
            name: select_request_history(
                value,
                source_rows=rows,
                slots=request.slots,
                batch_size=self._batch_size,
                max_batch_size=config.max_batch_size,
                name=name,
            )
            for name, value in self._history.items()
        }
        remap, self._slot_remap = self._slot_remap, None
        prepared = prepare_sampling_params(
            sliced,
            config.sampling_batch_size,
            max_device_top_k=config.max_device_top_k,
            allow_force_argmax=config.allow_force_argmax,
            slot_remap=remap,
            active_rows=len(rows),
            row_labels=rows,
            **history,
        )
        devices = config.cluster_shape[0] * config.cluster_shape[1]
        served = serves_log_probs(config.model, num_devices=devices)
        refuse_unsupported_log_probs(prepared, served=served, row_labels=rows)
        self._inputs.require_seeds_supported(prepared, rows)
        if prepared.penalties_enabled and config.sampling_state_controller is None:
            refuse_penalties(request)
        return sliced, prepared
