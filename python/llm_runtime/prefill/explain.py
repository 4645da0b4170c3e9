# SPDX-License-Identifier: Apache-2.0
"""A prefill plan with its reasons, before any device exists: requests, identities, and why buckets are no waves.

Follows chapter 10, sections 5.4 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_runtime import _core
from llm_runtime._core import PageTableLayout, PrefillFallback, PrefillRequest
from llm_runtime.digest import ProgramKey, TraceKey
from llm_runtime.prefill.config import DEFAULT_MAX_PREFILL_BATCH_SIZE
from llm_runtime.prefill.config_checks import check_alignment, check_batching, check_sizes
from llm_runtime.prefill.plan import integer_array

__all__ = ["ExplainedPlan", "ExplainedRequest", "PrefillFallback", "explain_prefill"]


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedRequest:
    """A planned request and the identities that it has when it returns logits and may be traced."""

    request: PrefillRequest
    program_digest: str
    trace_digest: str


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedPlan:
    """What one call becomes; ``fallbacks`` has one entry for each padded length whose rows are no wave."""

    requests: tuple[ExplainedRequest, ...]
    fallbacks: tuple[PrefillFallback, ...]


def explain_prefill(
    *,
    tokens: Any,
    page_table: Any,
    prompt_lens: Any = None,
    start_pos: Any = None,
    empty_slots: Sequence[int] | None = None,
    page_table_layout: PageTableLayout,
    max_batch_size: int,
    max_prefill_chunk_size: int,
    supports_batched_prefill: bool = False,
    disable_batched_prefill: bool = False,
    max_prefill_batch_size: int = DEFAULT_MAX_PREFILL_BATCH_SIZE,
    prefill_start_alignment: int | None = None,
) -> ExplainedPlan:
    """Plan a call as a lane of this policy would, with the rules of the planner itself.

    Host arrays as in :meth:`~llm_runtime.prefill.runtime.PrefillRuntime.prepare`, policy as in
    :meth:`~llm_runtime.prefill.config.PrefillRuntimeConfig.resolve`, and refused like there: ``ValueError`` or
    ``TypeError`` naming what, where, the value and the limit.
    """
    block_size = page_table_layout.block_size
    alignment = block_size if prefill_start_alignment is None else prefill_start_alignment
    check_sizes(max_batch_size, max_prefill_chunk_size)
    check_batching(supports_batched_prefill, disable_batched_prefill, max_prefill_batch_size, True)
    check_alignment(alignment, max_prefill_chunk_size, block_size)
    planner = _core.PrefillPlanner(
        block_size=block_size,
        max_batch_size=max_batch_size,
        max_prefill_chunk_size=max_prefill_chunk_size,
        supports_batched_prefill=supports_batched_prefill,
        disable_batched_prefill=disable_batched_prefill,
        max_prefill_batch_size=max_prefill_batch_size,
        max_actual_page_table_width=page_table_layout.raw_capacity_width,
        canonical_page_table_width=page_table_layout.prefill_width,
        start_alignment=alignment,
    )
    requests, fallbacks = planner.explain(
        integer_array(tokens, "tokens"),
        integer_array(page_table, "page_table"),
        None if prompt_lens is None else integer_array(prompt_lens, "prompt_lens"),
        None if start_pos is None else integer_array(start_pos, "start_pos"),
        None if empty_slots is None else list(empty_slots),
    )
    return ExplainedPlan(tuple(_with_identities(request) for request in requests), fallbacks)


def _with_identities(request: PrefillRequest) -> ExplainedRequest:
    # Chunks of one request have equal shapes, so it runs one program.
    (program,) = _core.build_program_signatures(request, "logits", static_q128_topk_supported=False)
    trace = _core.build_trace_signature(request, trace_enabled=True)
    return ExplainedRequest(request, ProgramKey.from_signature(program).digest, TraceKey.from_signature(trace).digest)
