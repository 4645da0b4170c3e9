# SPDX-License-Identifier: Apache-2.0
"""The three calls of a model's prefill body. Follows chapter 10, section 12.2."""

from __future__ import annotations

from typing import Any

from llm_runtime._core import PrefillChunk, PrefillRequest
from llm_runtime.prefill.input_values import PrefillDeviceInputs, PrefillPositionInputs
from llm_runtime.prefill.signatures import PreparedPrefill


class PrefillModelBody:
    """Calls a borrowed model. The model consumes the embedded input and frees nothing else that it is
    given."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def hidden(
        self, request: PrefillRequest, device_inputs: PrefillDeviceInputs, *, fill_rows: int | None = None
    ) -> Any:
        """Hidden states of a regular request; KV is written for ``fill_rows`` rows (the active ones by
        default).

        ``fill_rows`` must lie between the active and the padded row count (``ValueError``). User ids are
        page-table rows, never slots.
        """
        active, padded = len(request.source_rows), request.padded_batch_size
        rows = active if fill_rows is None else fill_rows
        if not active <= rows <= padded:
            raise ValueError(f"fill_rows must be between {active} active and {padded} padded rows, got {rows}")
        model = self._model
        return model.prefill_forward(
            model.embed_prefill(device_inputs.tokens),
            [device_inputs.rotary_cos, device_inputs.rotary_sin],
            user_id=list(range(rows)) if request.kind == "batched" else 0,
            page_table=device_inputs.page_table,
            chunk_page_table=None,
            chunk_start_idx_tensor=None,
            get_last_token=-1,
            batch_size=padded,
        )

    def chunk_logits(
        self,
        prepared: PreparedPrefill,
        chunk: PrefillChunk,
        device_inputs: PrefillDeviceInputs,
        position_inputs: PrefillPositionInputs,
    ) -> Any:
        """Logits of one eager chunk: the tile of the last token, or its row alone when the request is
        sampled."""
        return self._chunk(
            device_inputs,
            chunk_start_idx=chunk.chunk_start_idx,
            last_token_slice=(position_inputs.slice_start, position_inputs.slice_end),
            last_token_index=None if prepared.prepared_sampling is None else position_inputs.row_index,
        )

    def chunk_hidden(self, prepared: PreparedPrefill, chunk: PrefillChunk, device_inputs: PrefillDeviceInputs) -> Any:
        """Hidden states of one chunk with nothing of it baked in, for capture: the start is a tensor."""
        return self._chunk(device_inputs, chunk_start_idx=None, last_token_slice=None, last_token_index=None)

    def _chunk(self, device_inputs: PrefillDeviceInputs, **step: Any) -> Any:
        model = self._model
        return model.prefill_forward(
            model.embed_prefill(device_inputs.tokens),
            [device_inputs.rotary_cos, device_inputs.rotary_sin],
            user_id=0,
            page_table=device_inputs.page_table,
            chunk_page_table=device_inputs.chunk_page_table,
            chunk_start_idx_tensor=device_inputs.chunk_start_idx,
            get_last_token=-1,
            **step,
        )
