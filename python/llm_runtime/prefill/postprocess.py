# SPDX-License-Identifier: Apache-2.0
"""From hidden states to logits or sampled tokens: sampling classification, extraction, device sampling.

Follows chapter 20, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_runtime._core import PrefillRequest
from llm_runtime.device import namespace_of
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.device_copies import namespace_of_tensor
from llm_runtime.prefill.input_values import PrefillPositionInputs
from llm_runtime.prefill.last_tokens import LastTokens, PositionInputs, last_tokens
from llm_runtime.prefill.ownership import new_logprob_output, retain_owned, without_borrowed
from llm_runtime.prefill.plan import _TILE_SIZE, last_token_offset, last_token_offsets
from llm_runtime.prefill.result_rows import uses_static_q128_topk
from llm_runtime.prefill.sampling_inputs import DeviceSamplingValues, PrefillSamplingInputs
from llm_runtime.prefill.sampling_params import PreparedSamplingParams, SamplingPath
from llm_runtime.prefill.signatures import PreparedPrefill

__all__ = [
    "PrefillPostprocessor",
    "fit_prefill_sampling_logits",
    "new_logprob_output",
    "retain_owned",
    "without_borrowed",
]


def fit_prefill_sampling_logits(logits: Any, target: int) -> Any:
    """Bring ``logits [d0, d1, rows, V]`` to ``target`` rows: the same object, its first rows, or padded
    with 0.0."""
    if target <= 0:
        raise ValueError(f"sampler rows must be positive, got {target}")
    d0, d1, rows, width = logits.shape
    if rows == target:
        return logits
    ns = namespace_of_tensor(logits)
    if rows > target:
        return ns.slice(logits, (0, 0, 0, 0), (d0, d1, target, width))
    return ns.pad(logits, [(0, 0), (0, 0), (0, target - rows), (0, 0)], value=0.0)


class PrefillPostprocessor:
    """Postprocessing of one model's prefill outputs; every tensor it makes goes to the caller's owned
    list."""

    def __init__(self, config: PrefillRuntimeConfig, *, sampling_inputs: PrefillSamplingInputs) -> None:
        self._config = config
        self._ns = namespace_of(config.mesh_device)
        self.sampling_inputs = sampling_inputs

    def configure(self, config: PrefillRuntimeConfig) -> None:
        """Use another config of the same model and mesh."""
        self._config = config

    def validate_sampling_request(self, params: Any) -> None:
        """Refuse sampling parameters while device sampling is disabled (``ValueError``)."""
        if params is not None and not self._config.device_sampling_enabled:
            raise ValueError("sampling parameters were given but device sampling is disabled")

    def classify_sampling_path(self, request: PrefillRequest, sampling: PreparedSamplingParams | None) -> SamplingPath:
        """``logits`` without sampling; a wave always takes ``topk``; otherwise what the parameters allow."""
        if sampling is None:
            return "logits"
        return sampling.sampling_path if request.kind == "single" else "topk"

    def uses_static_q128_topk(self, request: PrefillRequest, path: SamplingPath) -> bool:
        """Whether the sampler runs over the whole tile of a prompt in the 128 bucket."""
        return uses_static_q128_topk(request, path, supported=self._config.static_q128_topk_supported)

    def extracts_rows(self, request: PrefillRequest) -> bool:
        """Whether each row of a wave is extracted for itself, because the model cannot take them all at once."""
        return request.kind == "batched" and not self._config.batched_prefill_batched_extract

    def last_tokens(self, request: PrefillRequest) -> LastTokens:
        """Which positions the position tensors of ``request`` hold."""
        return last_tokens(request, by_row=self.extracts_rows(request))

    def sampling_batch_size(self, request: PrefillRequest) -> int:
        """Rows of the sampler, or of the padded wave when device sampling is off."""
        if self._config.device_sampling_enabled:
            return self._config.sampling_batch_size
        return request.padded_batch_size

    def sampling_output_rows(self, prepared: PreparedPrefill) -> int:
        """Rows that the sampler reads and writes for ``prepared``."""
        if self.uses_static_q128_topk(prepared.request, prepared.sampling_path):
            return _TILE_SIZE
        return self.sampling_batch_size(prepared.request)

    def make_sampling_output(self, rows: int) -> Any:
        """Allocate the sampler's output buffer: zeros, uint32 ``[1, 1, 1, rows]``, row-major, DRAM."""
        ns = self._ns
        return ns.zeros(
            (1, 1, 1, rows),
            dtype=ns.uint32,
            layout=ns.ROW_MAJOR_LAYOUT,
            device=self._config.mesh_device,
            memory_config=ns.DRAM_MEMORY_CONFIG,
        )

    def sample_device(
        self,
        logits: Any,
        kpt: DeviceSamplingValues | None,
        sampling: PreparedSamplingParams,
        sampled_output: Any = None,
        *,
        count_tokens: bool = True,
    ) -> Any:
        """Sample one token per row; returns ``(tokens, log_probs or None)`` on the device."""
        options: dict[str, Any] = {"tt_out_tok": sampled_output}
        if kpt is not None:
            options.update(k=kpt.k, p=kpt.p, temp=kpt.temperature)
            if kpt.seeds is not None:
                options["seeds"] = kpt.seeds
        controller = self._config.sampling_state_controller
        if controller is not None:
            return controller.prefill_forward(
                logits, self._config.sampling_state, sampling, count_tokens=count_tokens, **options
            )
        return self._config.model.sampling.decode_forward(
            logits, enable_log_probs=sampling.log_probs_enabled, **options
        )

    def finish_regular_prefill(
        self,
        prepared: PreparedPrefill,
        hidden: Any,
        kpt: DeviceSamplingValues | None,
        position_inputs: PositionInputs,
        *,
        sampled_output: Any = None,
        owned: list[Any] | None = None,
        count_tokens: bool = True,
    ) -> Any:
        """Extract the last tokens from hidden states and sample them, or make row-major logits for the host.

        Returns ``(tokens, log_probs)``, a logits tensor, or one logits row per active row when the model
        cannot extract a wave at once (per physical row when tokens are not counted: such a run compiles what any
        number of active rows needs). ``hidden`` stays with the caller; everything made here is appended to
        ``owned``.
        """
        owned = [] if owned is None else owned
        request = prepared.request
        if isinstance(position_inputs, tuple):
            rows = len(request.source_rows) if count_tokens else request.padded_batch_size
            return self._row_logits(request, hidden, position_inputs[:rows], owned)
        if request.kind == "batched":
            logits = self._wave_logits(request, hidden)
        else:
            logits = self._last_token_logits(prepared, hidden, position_inputs)
        retain_owned(owned, logits)
        return self._finish_logits(prepared, logits, kpt, sampled_output, owned, count_tokens)

    def finish_prefill_sequence(
        self,
        prepared: PreparedPrefill,
        final_step_output: Any,
        kpt: DeviceSamplingValues | None,
        position_inputs: PositionInputs,
        *,
        sampled_output: Any = None,
        owned: list[Any],
        count_tokens: bool = True,
    ) -> Any:
        """Finish an eager sequence: the last chunk of a chunked one is logits already."""
        if not prepared.request.uses_chunked_prefill:
            return self.finish_regular_prefill(
                prepared,
                final_step_output,
                kpt,
                position_inputs,
                sampled_output=sampled_output,
                owned=owned,
                count_tokens=count_tokens,
            )
        return self._finish_logits(prepared, final_step_output, kpt, sampled_output, owned, count_tokens)

    def _finish_logits(
        self,
        prepared: PreparedPrefill,
        logits: Any,
        kpt: DeviceSamplingValues | None,
        sampled_output: Any,
        owned: list[Any],
        count_tokens: bool,
    ) -> Any:
        sampling = prepared.prepared_sampling
        if sampling is None:
            rows = self._ns.untilize(logits, use_multicore=True)
            retain_owned(owned, rows)
            return rows
        fitted = fit_prefill_sampling_logits(logits, self.sampling_output_rows(prepared))
        retain_owned(owned, fitted)
        output = self.sample_device(fitted, kpt, sampling, sampled_output, count_tokens=count_tokens)
        for at, value in enumerate(output if isinstance(output, tuple) else (output,)):
            # Tokens written into the offered buffer may come back as a view of it, which must not be freed twice.
            if at or sampled_output is None or value is sampled_output:
                retain_owned(owned, value)
        return output

    def _last_token_logits(self, prepared: PreparedPrefill, hidden: Any, position_inputs: PrefillPositionInputs) -> Any:
        request = prepared.request
        offset = last_token_offset(request)
        if self.uses_static_q128_topk(request, prepared.sampling_path):
            return self._config.model.post_process_prefill_output(hidden, offset)
        return self._extract(hidden, offset, position_inputs)

    def _wave_logits(self, request: PrefillRequest, hidden: Any) -> Any:
        offsets = list(last_token_offsets(request))
        offsets += [0] * (request.padded_batch_size - len(offsets))
        return self._config.model.post_process_batched_prefill_output(
            hidden, offsets, request.padded_batch_size, request.padded_sequence_length
        )

    def _row_logits(
        self, request: PrefillRequest, hidden: Any, position_inputs: Sequence[PrefillPositionInputs], owned: list[Any]
    ) -> tuple[Any, ...]:
        ns, width, length = self._ns, hidden.shape[-1], request.padded_sequence_length
        offsets = (*last_token_offsets(request), *[0] * request.padded_batch_size)
        results = []
        for row, positions in enumerate(position_inputs):
            # Rows lie behind each other; cutting one out of the folded wave needs no reshaped view of its memory.
            part = ns.slice(hidden, (0, 0, row * length, 0), (1, 1, (row + 1) * length, width))
            retain_owned(owned, part)
            logits = self._extract(part, offsets[row], positions)
            retain_owned(owned, logits)
            untilized = ns.untilize(logits, use_multicore=True)
            retain_owned(owned, untilized)
            results.append(untilized)
        return tuple(results)

    def _extract(self, hidden: Any, offset: int, position_inputs: PrefillPositionInputs) -> Any:
        # By runtime tensors: another position must not make another device program.
        return self._config.model.post_process_prefill_output(
            hidden,
            offset,
            last_token_slice=(position_inputs.slice_start, position_inputs.slice_end),
            last_token_index=position_inputs.row_index,
        )
