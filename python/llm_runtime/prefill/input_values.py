# SPDX-License-Identifier: Apache-2.0
"""Values that hold prefill inputs on host and device. Follows chapter 10, section 8.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_runtime._core import PrefillChunk, PrefillRequest
from llm_runtime.prefill.plan import HostArray, last_token_offset


@dataclass(frozen=True, slots=True, eq=False)
class PrefillHostInputs:
    """Host tensors of one step: tokens uint32 ``[1,1,1,rows*seq]``, positions uint32 ``[1,seq]``, tables
    int32."""

    tokens: Any
    position_indices: Any
    page_table: Any
    chunk_page_table: Any = None
    chunk_start_idx: Any = None

    def values(self) -> tuple[Any, ...]:
        """The five tensors in upload order."""
        return (
            self.tokens,
            self.position_indices,
            self.page_table,
            self.chunk_page_table,
            self.chunk_start_idx,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PrefillDeviceInputs:
    """Device tensors of one step, owned by whoever staged them."""

    tokens: Any
    rotary_cos: Any
    rotary_sin: Any
    page_table: Any
    chunk_page_table: Any
    position_indices: Any
    chunk_start_idx: Any

    def model_values(self) -> tuple[Any, ...]:
        """Everything the model body reads."""
        return (
            self.tokens,
            self.rotary_cos,
            self.rotary_sin,
            self.page_table,
            self.chunk_page_table,
            self.position_indices,
            self.chunk_start_idx,
        )

    def owned_tensor_values(self) -> tuple[Any, ...]:
        """What a release of this value releases."""
        return self.model_values()

    def uploaded_values(self) -> tuple[Any, ...]:
        """The tensors that mirror :meth:`PrefillHostInputs.values`, in the same order."""
        return (
            self.tokens,
            self.position_indices,
            self.page_table,
            self.chunk_page_table,
            self.chunk_start_idx,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PrefillPositionInputs:
    """Where the last token is: bounds of its tile, uint32 ``[4]`` each, and its row in it, uint32
    ``[1,1]``."""

    slice_start: Any
    slice_end: Any
    row_index: Any

    def values(self) -> tuple[Any, ...]:
        """The three tensors in upload order."""
        return (self.slice_start, self.slice_end, self.row_index)

    def owned_tensor_values(self) -> tuple[Any, ...]:
        """What a release of this value releases."""
        return self.values()


@dataclass(frozen=True, slots=True, eq=False)
class PrefillTraceInputs:
    """Host side of a request's first step, from which a trace's persistent inputs are made."""

    chunk: PrefillChunk
    relative_last: int
    tokens: HostArray
    start_pos: int
    chunk_page_table: HostArray | None
    chunk_start_idx: int | None
    sequence_length: int


def trace_inputs(request: PrefillRequest) -> PrefillTraceInputs:
    """Describe the first step of ``request``; ``relative_last`` already belongs to the final chunk."""
    chunk = request.chunks[0]
    chunked = request.uses_chunked_prefill
    return PrefillTraceInputs(
        chunk=chunk,
        relative_last=last_token_offset(request),
        tokens=request.tokens[:, chunk.token_slice] if chunked else request.tokens,
        start_pos=chunk.chunk_start_idx if chunked else 0,
        chunk_page_table=chunk.chunk_page_table if chunked else None,
        chunk_start_idx=chunk.chunk_start_idx if chunked else None,
        sequence_length=chunk.chunk_size if chunked else request.padded_sequence_length,
    )
