# SPDX-License-Identifier: Apache-2.0
"""Prepared prefill requests, their program and trace identities, and the fingerprints that guard aliases.

Follows chapter 10, sections 6 and 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from llm_runtime._core import (
    PrefillProgramSignature,
    PrefillRequest,
    PrefillTraceSignature,
    build_program_signatures,
    build_trace_signature,
)
from llm_runtime.prefill.sampling_params import PreparedSamplingParams, SamplingPath

__all__ = [
    "PrefillProgramSignature",
    "PrefillTraceSignature",
    "PrefillVariant",
    "PreparedPrefill",
    "build_program_signatures",
    "build_trace_signature",
    "capture_schema_fingerprint",
    "prefill_variant",
    "workspace_fingerprint",
]

PrefillVariant = Literal["regular-single", "regular-batched", "chunked"]

_CAPTURE_SCHEMA = "prefill-hidden-v2"
_WORKSPACE = "prefill-postprocess-v1"


def _unchanged(array: Any) -> Any:
    return array


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPrefill:
    """One planned request with everything that invoking or replaying it needs.

    ``sampling_params`` holds this request's rows only. ``result_like`` hands a host result back in the
    caller's kind of array. Holds views of host memory and no device tensor.
    """

    request: PrefillRequest
    sampling_params: Any
    sampling_path: SamplingPath
    program_signatures: tuple[PrefillProgramSignature, ...]
    trace_signature: PrefillTraceSignature | None
    prepared_sampling: PreparedSamplingParams | None = None
    result_like: Callable[[Any], Any] = _unchanged


def prefill_variant(request: PrefillRequest) -> PrefillVariant:
    """Chunked when any chunk has a table, else batched or single by the request's kind."""
    if request.uses_chunked_prefill:
        return "chunked"
    return "regular-batched" if request.kind == "batched" else "regular-single"


def capture_schema_fingerprint(
    prepared: PreparedPrefill,
) -> tuple[str, PrefillTraceSignature, tuple[str, ...]]:
    """Identity of the persistent inputs and the captured body, which know nothing of sampling.

    Compared by equality between all programs that share one trace. ``ValueError`` without a trace signature.
    """
    if prepared.trace_signature is None:
        raise ValueError("a request without a trace signature has no capture schema")
    hidden = prepared.trace_signature.__replace__(
        sampling_path="logits", penalties_enabled=False, logprobs_enabled=False
    )
    names = tuple(name for name, value in hidden.key_material() if value is not None)
    return (_CAPTURE_SCHEMA, hidden, names)


def workspace_fingerprint(prepared: PreparedPrefill, *, sampling_output_rows: int) -> tuple[str, str, int, bool]:
    """Identity of one program's postprocessing workspace, compared by equality when it registers again."""
    return (_WORKSPACE, prepared.sampling_path, sampling_output_rows, prepared.sampling_params is not None)
