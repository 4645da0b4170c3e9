# SPDX-License-Identifier: Apache-2.0
"""Runs one request eagerly, chunk by chunk, and hands over what it made only when everything succeeded.

Follows chapter 10, section 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_runtime.prefill.device_copies import ReleaseTransient
from llm_runtime.prefill.inputs import PrefillInputStager
from llm_runtime.prefill.ownership import InvocationResult, retain_owned
from llm_runtime.prefill.postprocess import PrefillPostprocessor
from llm_runtime.prefill.signatures import PreparedPrefill
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_cleanup_failures


class PrefillSequenceRunner:
    """Eager execution of prepared requests; borrows every collaborator, owns nothing between two runs.

    ``run_hidden_body(request, device_inputs, fill_rows=)`` returns hidden states;
    ``run_chunk_body(prepared, chunk, device_inputs, position_inputs)`` returns logits.
    """

    def __init__(
        self,
        *,
        input_stager: PrefillInputStager,
        postprocessor: PrefillPostprocessor,
        run_hidden_body: Callable[..., Any],
        run_chunk_body: Callable[..., Any],
        release_transient: ReleaseTransient,
    ) -> None:
        self._stager = input_stager
        self._postprocessor = postprocessor
        self._run_hidden_body = run_hidden_body
        self._run_chunk_body = run_chunk_body
        self._release = release_transient

    def run(self, prepared: PreparedPrefill, *, count_tokens: bool = True) -> InvocationResult:
        """Run every chunk and finish the last one.

        Only active rows of a wave write KV, unless tokens are not counted: such a run compiles what a
        capture records, and a capture fills every physical row. Outputs of earlier chunks are released at
        once, the inputs of all chunks stay until the end. Any failure releases everything made so far and
        propagates as the same exception object.
        """
        owned: list[Any] = []
        try:
            value = self._run(prepared, owned, count_tokens)
        except BaseException as error:
            attach_cleanup_failures(error, self._release(tuple(owned)))
            raise
        return InvocationResult(value, tuple(owned))

    def _run(self, prepared: PreparedPrefill, owned: list[Any], count_tokens: bool) -> Any:
        request = prepared.request
        chunked = request.uses_chunked_prefill
        final_relative_last = self._postprocessor.last_tokens(request)
        kpt = self._make_kpt(prepared, owned) if chunked else None
        output: Any = None
        positions: Any = None
        for chunk in request.chunks:
            device_inputs, positions = self._stager.stage_step(request, chunk, final_relative_last)
            retain_owned(owned, device_inputs)
            retain_owned(owned, positions)
            if chunked:
                output = self._run_chunk_body(prepared, chunk, device_inputs, positions)
            else:
                kpt = self._make_kpt(prepared, owned)
                fill_rows = None if count_tokens else request.padded_batch_size
                output = self._run_hidden_body(request, device_inputs, fill_rows=fill_rows)
            if chunk.contains_last_token:
                break
            failures = self._release(output)
            output = None
            if failures:
                raise_cleanup_failures(failures)
        if output is None:
            raise RuntimeError("the planned prefill sequence produced no final output")
        retain_owned(owned, output)
        sampled_output = None
        if prepared.sampling_path == "topk" and not chunked:
            rows = self._postprocessor.sampling_output_rows(prepared)
            sampled_output = self._postprocessor.make_sampling_output(rows)
            retain_owned(owned, sampled_output)
        return self._postprocessor.finish_prefill_sequence(
            prepared,
            output,
            kpt,
            positions,
            sampled_output=sampled_output,
            owned=owned,
            count_tokens=count_tokens,
        )

    def _make_kpt(self, prepared: PreparedPrefill, owned: list[Any]) -> Any:
        post = self._postprocessor
        inputs = post.sampling_inputs
        kpt = inputs.make_device_values(inputs.values(prepared, post.sampling_output_rows(prepared)))
        retain_owned(owned, kpt)
        return kpt
