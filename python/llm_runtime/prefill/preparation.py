# SPDX-License-Identifier: Apache-2.0
"""Turns a call's host arrays into prepared requests: plan, sampling rows, identities.

Follows chapter 20, section 9.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_runtime._core import PrefillPlanner, PrefillRequest, environment_variable
from llm_runtime.host_arrays import result_like
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.plain_sampling import prepare_plain
from llm_runtime.prefill.plan import integer_array, plan_call
from llm_runtime.prefill.postprocess import PrefillPostprocessor
from llm_runtime.prefill.sampling_plan import SamplingPlanner
from llm_runtime.prefill.signatures import (
    PreparedPrefill,
    build_program_signatures,
    build_trace_signature,
    prepared_prefill,
)

_DISABLE_VARIABLE = "DISABLE_BATCHED_PREFILL"
_SWITCH_VALUES = {
    "": False,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
}


class PrefillPreparer:
    """Host side of one lane's prefill calls; borrows the postprocessor and does no device work."""

    def __init__(self, config: PrefillRuntimeConfig, *, postprocessor: PrefillPostprocessor) -> None:
        self._postprocessor = postprocessor
        self.configure(config)

    def configure(self, config: PrefillRuntimeConfig) -> None:
        """Use another config of the same model and mesh."""
        self._config = config
        self._static_q128 = config.static_q128_topk_supported
        layout = config.page_table_layout
        self._planner = PrefillPlanner(
            block_size=layout.block_size,
            max_batch_size=config.max_batch_size,
            max_prefill_chunk_size=config.max_prefill_chunk_size,
            supports_batched_prefill=config.supports_batched_prefill,
            disable_batched_prefill=config.disable_batched_prefill,
            max_prefill_batch_size=config.max_prefill_batch_size,
            max_actual_page_table_width=layout.raw_capacity_width,
            canonical_page_table_width=layout.prefill_width,
            start_alignment=config.prefill_start_alignment,
        )

    def prepare(
        self,
        tokens: Any,
        page_table: Any,
        prompt_lens: Any,
        start_pos: Any,
        empty_slots: Sequence[int] | None,
        sampling_params: Any,
        prompt_tokens: Any,
        output_tokens: Any,
        slot_remap: Any,
    ) -> tuple[PreparedPrefill, ...]:
        """See :meth:`~llm_runtime.prefill.runtime.PrefillRuntime.prepare`."""
        config = self._config
        sampled = sampling_params is not None
        if sampled:
            self._postprocessor.validate_sampling_request(sampling_params)
        token_array = tokens if type(tokens) is np.ndarray else integer_array(tokens, "tokens")
        lengths = prompt_lens
        if prompt_lens is not None and type(prompt_lens) is not np.ndarray:
            lengths = integer_array(prompt_lens, "prompt_lens")
        requests = plan_call(
            self._planner,
            token_array,
            page_table,
            lengths,
            start_pos,
            empty_slots,
            batching_disabled_by_environment() or (sampled and not config.batched_prefill_batched_extract),
        )
        convert = result_like(tokens)
        if not sampled:
            return tuple([self._prepare_logits(request, convert) for request in requests])
        if prompt_tokens is None and output_tokens is None:
            prepared = prepare_plain(
                config,
                self._postprocessor.sampling_inputs,
                requests,
                sampling_params,
                token_array,
                lengths,
                slot_remap,
                convert,
            )
            if prepared is not None:
                return prepared
        planner = SamplingPlanner(
            config,
            self._postprocessor.sampling_inputs,
            params=sampling_params,
            tokens=token_array,
            prompt_lens=lengths,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            slot_remap=slot_remap,
        )
        return tuple([self._prepare_sampled(request, planner, convert) for request in requests])

    def _prepare_logits(self, request: PrefillRequest, convert: Any) -> PreparedPrefill:
        return prepared_prefill(
            request,
            None,
            "logits",
            build_program_signatures(request, "logits", static_q128_topk_supported=self._static_q128),
            build_trace_signature(request, trace_enabled=self._trace_enabled(request)),
            None,
            convert,
        )

    def _prepare_sampled(self, request: PrefillRequest, planner: SamplingPlanner, convert: Any) -> PreparedPrefill:
        sliced, sampling = planner.prepare(request)
        path = self._postprocessor.classify_sampling_path(request, sampling)
        flags = {
            "penalties_enabled": sampling.penalties_enabled,
            "logprobs_enabled": sampling.log_probs_enabled,
        }
        return prepared_prefill(
            request,
            sliced,
            path,
            build_program_signatures(request, path, static_q128_topk_supported=self._static_q128, **flags),
            build_trace_signature(request, trace_enabled=self._trace_enabled(request), sampling_path=path, **flags),
            sampling,
            convert,
        )

    def _trace_enabled(self, request: PrefillRequest) -> bool:
        # Reading `chunks` builds Python values, so only chunked requests pay for it.
        chunked = request.uses_chunked_prefill
        length = request.chunks[0].chunk_size if chunked else request.padded_sequence_length
        return bool(self._config.can_enable_trace(length, 0))


def batching_disabled_by_environment() -> bool:
    """Read the diagnostic off switch: ``1 true yes on`` disable, ``0 false no off`` and empty do not.

    Read at every prepare. Any other value is a ``ValueError`` naming the variable.
    """
    text = environment_variable(_DISABLE_VARIABLE)
    if text is None:
        return False
    try:
        return _SWITCH_VALUES[text.strip().lower()]
    except KeyError:
        raise ValueError(
            f"{_DISABLE_VARIABLE}={text!r} is not a switch; use 1, true, yes, on, 0, false, no or off"
        ) from None
