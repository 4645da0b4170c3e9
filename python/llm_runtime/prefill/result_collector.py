# SPDX-License-Identifier: Apache-2.0
"""Reads results one by one, restores source-row order, and releases each result before the next one is made.

Follows chapter 20, section 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.device_copies import ReleaseTransient
from llm_runtime.prefill.host_results import log_prob_values, logits_array, merge_log_probs, token_rows
from llm_runtime.prefill.ownership import InvocationResult
from llm_runtime.prefill.plan import HostArray
from llm_runtime.prefill.postprocess import PrefillPostprocessor
from llm_runtime.prefill.result_rows import logits_row, sampled_row
from llm_runtime.prefill.signatures import PreparedPrefill
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_cleanup_failures

__all__ = ["InvocationResult", "PrefillResultAssembler"]


class PrefillResultAssembler:
    """Collects the outputs of one call. Owns each result from the moment it is pulled until it is
    released."""

    def __init__(
        self,
        config: PrefillRuntimeConfig,
        *,
        postprocessor: PrefillPostprocessor,
        release_transient: ReleaseTransient,
    ) -> None:
        self._config = config
        self._postprocessor = postprocessor
        self._release = release_transient

    def configure(self, config: PrefillRuntimeConfig) -> None:
        """Use another config of the same model and mesh."""
        self._config = config

    def assemble(
        self,
        prepared_results: Iterable[tuple[PreparedPrefill, InvocationResult]],
        *,
        batch_size: int,
        sampling_params: Any = None,
    ) -> Any:
        """Return float32 logits ``[batch_size, 1, V]``, or ``(int64 tokens [batch_size], log-probs or
        None)``.

        ``prepared_results`` is pulled lazily: with traces each item replays into a buffer that the next
        replay overwrites, so an item is read, copied out and released before the next one is asked for.
        Rows that no request covers stay zero. Log-probabilities are float32 ``[batch_size]`` with 1.0 in
        rows without one. Results come back in the kind of array that the call's tokens were.
        """
        sampled = sampling_params is not None
        config = self._config
        tokens = np.zeros(batch_size, np.int64) if sampled else None
        logits = None if sampled else np.zeros((batch_size, 1, config.model.vocab_size), np.float32)
        payloads: list[tuple[tuple[int, ...], HostArray]] = []
        convert: Any = None
        for prepared, result in prepared_results:
            convert = prepared.result_like
            try:
                if sampled != (prepared.sampling_path != "logits"):
                    raise ValueError(
                        "assemble and the prepared request disagree on whether the call samples on the device"
                    )
                host = config.output_reader.read_synchronized(result.value)
                if tokens is not None:
                    self._collect_sampled(prepared, host, tokens, payloads)
                elif logits is not None:
                    self._collect_logits(prepared, result, host, logits)
            except BaseException as error:
                attach_cleanup_failures(error, self._release(result.owned))
                raise
            failures = self._release(result.owned)
            if failures:
                raise_cleanup_failures(failures)
        if convert is None:
            convert = _unchanged
        if logits is not None:
            return convert(logits)
        merged = merge_log_probs(payloads, batch_size)
        return convert(tokens), None if merged is None else convert(merged)

    def _collect_sampled(
        self,
        prepared: PreparedPrefill,
        host: Any,
        tokens: HostArray,
        payloads: list[tuple[tuple[int, ...], HostArray]],
    ) -> None:
        value, log_probs = _sampled_pair(host)
        request = prepared.request
        rows = self._postprocessor.sampling_output_rows(prepared)
        whole_tile = self._postprocessor.uses_static_q128_topk(request, prepared.sampling_path)
        picked = [sampled_row(request, row, whole_tile=whole_tile) for row in range(len(request.source_rows))]
        sources = list(request.source_rows)
        tokens[sources] = token_rows(value, rows)[picked]
        if log_probs is not None and prepared.prepared_sampling is not None:
            values = log_prob_values(log_probs, max(picked) + 1)[picked]
            # A row that did not ask keeps the filler, whatever its neighbours in the wave asked for.
            wants = [at for at in range(len(sources)) if prepared.prepared_sampling.enable_log_probs[at]]
            payloads.append((tuple(sources[at] for at in wants), values[wants]))

    def _collect_logits(
        self, prepared: PreparedPrefill, result: InvocationResult, host: Any, logits: HostArray
    ) -> None:
        request = prepared.request
        per_row = isinstance(host, (list, tuple))
        traced = result.replay_ownership is not None
        parts = [logits_array(part, self._config.cluster_shape) for part in (host if per_row else (host,))]
        width = logits.shape[2]
        for row, source in enumerate(request.source_rows):
            part = parts[row if per_row else 0]
            logits[source, 0] = part[0, 0, logits_row(request, row, traced=traced, per_row=per_row), :width]


def _sampled_pair(host: Any) -> tuple[Any, Any]:
    if not isinstance(host, tuple):
        return host, None
    if len(host) != 2:
        raise TypeError(f"a sampled output must be (tokens, log_probs), got {len(host)} values")
    return host[0], host[1]


def _unchanged(array: Any) -> Any:
    return array
