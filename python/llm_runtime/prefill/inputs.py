# SPDX-License-Identifier: Apache-2.0
"""Building, uploading and refreshing a step's prefill inputs. Follows chapter 10, section 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_runtime._core import PrefillChunk, PrefillRequest
from llm_runtime.device import host_tensor, namespace_of
from llm_runtime.prefill.device_copies import (
    ReleaseTransient,
    allocate_device_tensors,
    copy_into_device_tensors,
)
from llm_runtime.prefill.input_values import (
    PrefillDeviceInputs,
    PrefillHostInputs,
    PrefillPositionInputs,
    PrefillTraceInputs,
    trace_inputs,
)
from llm_runtime.prefill.last_tokens import LastTokens, PositionInputs, stage_last_tokens
from llm_runtime.prefill.plan import _TILE_SIZE, HostArray
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_cleanup_failures

__all__ = [
    "PrefillDeviceInputs",
    "PrefillHostInputs",
    "PrefillInputStager",
    "PrefillPositionInputs",
    "PrefillTraceInputs",
    "allocate_device_tensors",
    "copy_into_device_tensors",
    "trace_inputs",
]


class PrefillInputStager:
    """Builds, uploads and refreshes the inputs of one model on one mesh (both borrowed).

    ``release_transient`` releases a nested value and returns the failures, keeping what could not be
    released. Host arrays are made anew for every upload, because an enqueued copy may read them later.
    """

    def __init__(self, *, model: Any, mesh_device: Any, release_transient: ReleaseTransient) -> None:
        self._model = model
        self._mesh = mesh_device
        self._ns = namespace_of(mesh_device)
        self._release = release_transient

    def trace_inputs(self, request: PrefillRequest) -> PrefillTraceInputs:
        """See :func:`trace_inputs`."""
        return trace_inputs(request)

    def prepare_host_inputs(
        self,
        tokens: HostArray,
        page_table: HostArray,
        *,
        start_pos: int = 0,
        chunk_page_table: HostArray | None = None,
        chunk_start_idx: int | None = None,
        last_token_idx: int | None = None,
    ) -> PrefillHostInputs:
        """Build the host tensors of one step for ``tokens [rows, seq]``.

        Positions past the rotary table repeat its last row, since only padding can lie there; a real last
        token past it (``last_token_idx``, absolute) is a ``ValueError``, as are a negative start and tokens
        of another rank.
        """
        if tokens.ndim != 2:
            raise ValueError(f"prefill tokens must have rank 2, got shape {tokens.shape}")
        if start_pos < 0:
            raise ValueError(f"prefill start position must be nonnegative, got {start_pos}")
        rotary = self._model.rope_setup
        rotary.load_device_weights()
        capacity = int(rotary.cos_matrix.shape[2])
        if capacity <= 0:
            raise ValueError("the rotary table is empty")
        if last_token_idx is not None and last_token_idx >= capacity:
            raise ValueError(
                f"last token {last_token_idx} needs {last_token_idx + 1} rotary rows, rotary capacity {capacity}"
            )
        positions = np.arange(start_pos, start_pos + tokens.shape[1], dtype=np.uint32)
        np.minimum(positions, capacity - 1, out=positions)
        ns = self._ns
        return PrefillHostInputs(
            tokens=self._token_tensor(tokens),
            position_indices=host_tensor(ns, positions.reshape(1, -1), ns.uint32),
            page_table=self._table_tensor(page_table),
            chunk_page_table=None if chunk_page_table is None else self._table_tensor(chunk_page_table),
            chunk_start_idx=None
            if chunk_start_idx is None
            else host_tensor(ns, np.array([chunk_start_idx], np.int32), ns.int32),
        )

    def prepare_position_inputs_host(self, relative_last: int, sequence_length: int) -> PrefillPositionInputs:
        """Host tensors that locate the last token, ``0 <= relative_last < sequence_length``
        (``ValueError``)."""
        if not 0 <= relative_last < sequence_length:
            raise ValueError(f"last-token position {relative_last} is outside the padded sequence of {sequence_length}")
        row = relative_last % _TILE_SIZE
        tile = relative_last - row
        ns = self._ns
        end = (1, 1, tile + _TILE_SIZE, self._model.config.dim)
        return PrefillPositionInputs(
            slice_start=host_tensor(ns, np.array((0, 0, tile, 0), np.uint32), ns.uint32),
            slice_end=host_tensor(ns, np.array(end, np.uint32), ns.uint32),
            row_index=host_tensor(ns, np.array([[row]], np.uint32), ns.uint32),
        )

    def stage_device_inputs(self, host_inputs: PrefillHostInputs) -> PrefillDeviceInputs:
        """Upload host inputs and gather their rotary rows; whatever was made is released on failure."""
        make_rotary = getattr(self._model, "prepare_prefill_rot_mats", None)
        if not callable(make_rotary):
            raise TypeError(f"{type(self._model).__name__} has no callable prepare_prefill_rot_mats")
        uploaded: list[Any] = []
        rotary: Any = None
        try:
            uploaded = self._upload(host_inputs.values())
            tokens, positions, page_table, chunk_page_table, chunk_start_idx = uploaded
            rotary = make_rotary(positions)
            cos, sin = _rotary_pair(rotary)
        except BaseException as error:
            attach_cleanup_failures(error, self._release((rotary, uploaded)))
            raise
        return PrefillDeviceInputs(
            tokens=tokens,
            rotary_cos=cos,
            rotary_sin=sin,
            page_table=page_table,
            chunk_page_table=chunk_page_table,
            position_indices=positions,
            chunk_start_idx=chunk_start_idx,
        )

    def stage_position_inputs(self, relative_last: int, sequence_length: int) -> PrefillPositionInputs:
        """Upload the tensors that locate the last token."""
        host = self.prepare_position_inputs_host(relative_last, sequence_length)
        start, end, row = self._upload(host.values())
        return PrefillPositionInputs(start, end, row)

    def refresh_position_inputs(
        self, position_inputs: PrefillPositionInputs, relative_last: int, sequence_length: int
    ) -> None:
        """Copy another last-token position into existing tensors."""
        host = self.prepare_position_inputs_host(relative_last, sequence_length)
        copy_into_device_tensors(host.values(), position_inputs.values())

    def stage_step(
        self, request: PrefillRequest, chunk: PrefillChunk, final_relative_last: LastTokens
    ) -> tuple[PrefillDeviceInputs, PositionInputs]:
        """Upload one step's inputs and where the request's last tokens are in its final chunk."""
        host = self._step_host_inputs(request, chunk)
        device_inputs = self.stage_device_inputs(host)
        try:
            positions = stage_last_tokens(self, final_relative_last, chunk.chunk_size, release=self._release)
        except BaseException as error:
            attach_cleanup_failures(error, self._release(device_inputs))
            raise
        return device_inputs, positions

    def refresh_regular_device_inputs(self, request: PrefillRequest, device_inputs: PrefillDeviceInputs) -> None:
        """Copy tokens and page table; positions and rotary rows of a regular request never change."""
        copy_into_device_tensors(
            (self._token_tensor(request.tokens), self._table_tensor(request.page_table)),
            (device_inputs.tokens, device_inputs.page_table),
        )

    def refresh_chunk_device_inputs(
        self, request: PrefillRequest, chunk: PrefillChunk, device_inputs: PrefillDeviceInputs
    ) -> None:
        """Copy all five inputs of ``chunk`` and gather its rotary rows into the persistent pair."""
        host = self._step_host_inputs(request, chunk)
        copy_into_device_tensors(host.values(), device_inputs.uploaded_values())
        self.copy_rotary_inputs(device_inputs)

    def copy_rotary_inputs(self, device_inputs: PrefillDeviceInputs) -> None:
        """Recompute the rotary rows for the persistent positions and copy them into the persistent pair."""
        rotary: Any = None
        try:
            rotary = self._model.prepare_prefill_rot_mats(device_inputs.position_indices)
            cos, sin = _rotary_pair(rotary)
            self._ns.copy(input_a=cos, input_b=device_inputs.rotary_cos)
            self._ns.copy(input_a=sin, input_b=device_inputs.rotary_sin)
        except BaseException as error:
            attach_cleanup_failures(error, self._release(rotary))
            raise
        failures = self._release(rotary)
        if failures:
            raise_cleanup_failures(failures)

    def _step_host_inputs(self, request: PrefillRequest, chunk: PrefillChunk) -> PrefillHostInputs:
        last = max(request.last_token_indices)
        if not request.uses_chunked_prefill:
            return self.prepare_host_inputs(request.tokens, request.page_table, last_token_idx=last)
        return self.prepare_host_inputs(
            request.tokens[:, chunk.token_slice],
            request.page_table,
            start_pos=chunk.chunk_start_idx,
            chunk_page_table=chunk.chunk_page_table,
            chunk_start_idx=chunk.chunk_start_idx,
            last_token_idx=last,
        )

    def _upload(self, host_tensors: Sequence[Any]) -> list[Any]:
        return allocate_device_tensors(host_tensors, mesh_device=self._mesh, release=self._release)

    def _token_tensor(self, tokens: HostArray) -> Any:
        # The rows of a wave lie behind each other in one row; one cast is the only copy.
        return host_tensor(self._ns, tokens.astype(np.uint32).reshape(1, 1, 1, -1), self._ns.uint32)

    def _table_tensor(self, table: HostArray) -> Any:
        # Signed, because -1 says "do not write"; copied, because the device library takes no read-only memory.
        return host_tensor(self._ns, np.array(table, np.int32), self._ns.int32)


def _rotary_pair(rotary: Any) -> tuple[Any, Any]:
    values = tuple(rotary)
    if len(values) != 2:
        raise ValueError(f"prepare_prefill_rot_mats must return cosine and sine, got {len(values)} tensors")
    return values[0], values[1]
