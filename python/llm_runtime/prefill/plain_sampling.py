# SPDX-License-Identifier: Apache-2.0
"""Sampling of a planned call whose parameters are plain numbers: the core normalises all requests in one call.

What few look at (the sliced parameters, the prompt history) is made on demand from copies taken here. Follows chapter
20, section 9.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llm_runtime._core import PrefillRequest, prepare_sampled_requests
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.plan import HostArray
from llm_runtime.prefill.sampling_helpers import (
    _slice_sampling_params,
    default_prompt_history,
    select_request_history,
)
from llm_runtime.prefill.sampling_inputs import PrefillSamplingInputs
from llm_runtime.prefill.sampling_params import plain_fields, prepared_sampling, with_fields
from llm_runtime.prefill.signatures import PreparedPrefill, prepared_prefill


class PlainSampling:
    """Copies of one call's parameters and prompts, from which a request's slice and history are made."""

    __slots__ = ("_fields", "_max_batch_size", "_params", "_prompt_lens", "_tokens")

    def __init__(
        self,
        params: Any,
        fields: tuple[Any, ...],
        tokens: HostArray,
        prompt_lens: HostArray | None,
        max_batch_size: int,
    ) -> None:
        self._params = params
        self._fields = fields
        self._tokens = tokens.copy()
        self._prompt_lens = None if prompt_lens is None else prompt_lens.copy()
        self._max_batch_size = max_batch_size

    def slice(self, request: PrefillRequest) -> Any:
        """The request's rows of the parameters."""
        return _slice_sampling_params(with_fields(self._params, self._fields), request.source_rows)

    def history(self, request: PrefillRequest, name: str) -> Any:
        """The request's prompts with -1 behind each; there are no output tokens."""
        if name != "prompt_tokens":
            return None
        return select_request_history(
            default_prompt_history(self._tokens, self._prompt_lens),
            source_rows=request.source_rows,
            slots=request.slots,
            batch_size=self._tokens.shape[0],
            max_batch_size=self._max_batch_size,
            name=name,
        )


def prepare_plain(
    config: PrefillRuntimeConfig,
    sampling_inputs: PrefillSamplingInputs,
    requests: tuple[PrefillRequest, ...],
    params: Any,
    tokens: HostArray,
    prompt_lens: HostArray | None,
    slot_remap: Any,
    convert: Callable[[Any], Any],
) -> tuple[PreparedPrefill, ...] | None:
    """Every request prepared, or ``None`` when the parameters need a look field by field (or an error).

    The remap goes with the first request only. ``ValueError`` or ``TypeError`` for penalties and seeds that nothing on
    the device serves.
    """
    fields = plain_fields(params)
    if fields is None:
        return None
    batch_size, limit = config.sampling_batch_size, config.max_device_top_k
    decided = prepare_sampled_requests(
        requests,
        fields,
        batch_size=batch_size,
        max_device_top_k=limit,
        allow_force_argmax=config.allow_force_argmax,
        static_q128_topk_supported=config.static_q128_topk_supported,
    )
    if decided is None:
        return None
    source = PlainSampling(params, fields, tokens, prompt_lens, config.max_batch_size)
    stateless = config.sampling_state_controller is None
    seeds_served, can_trace = sampling_inputs.serves_seeds, config.can_enable_trace
    prepared = []
    for request, (rows, path, programs, trace, length) in zip(requests, decided, strict=True):
        sampling = prepared_sampling(rows, batch_size, limit, slot_remap, partial(source.history, request))
        slot_remap = None
        if not seeds_served:
            sampling_inputs.require_seeds_supported(sampling, request.source_rows)
        if stateless and rows.penalties_enabled:
            refuse_penalties(request)
        prepared.append(
            prepared_prefill(
                request,
                partial(source.slice, request),
                path,
                programs,
                trace if can_trace(length, 0) else None,
                sampling,
                convert,
            )
        )
    return tuple(prepared)


def refuse_penalties(request: PrefillRequest) -> None:
    """``ValueError``: no sampling-state controller keeps the token counts that penalties need."""
    raise ValueError(
        f"sampling rows {list(request.source_rows)}: penalties need a sampling-state controller on the device; sample "
        "these requests on the host"
    )
