# SPDX-License-Identifier: Apache-2.0
"""Prepared prefill requests, their program and trace identities, and the fingerprints that guard aliases.

Follows chapter 10, sections 6 and 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

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
    "prepared_prefill",
    "workspace_fingerprint",
]

PrefillVariant = Literal["regular-single", "regular-batched", "chunked"]

_CAPTURE_SCHEMA = "prefill-hidden-v2"
_WORKSPACE = "prefill-postprocess-v1"


def _unchanged(array: Any) -> Any:
    return array


class _SlicedWhenAsked:
    """A slot for what makes ``sampling_params`` of a request the first time somebody asks for them."""

    __slots__ = ("_slice",)

    _slice: Callable[[], Any] | None

    def __getattr__(self, name: str) -> Any:
        # Reached only for a slot that nobody has filled.
        if name == "_slice":
            return None
        if name != "sampling_params" or self._slice is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        value = self._slice()
        object.__setattr__(self, name, value)
        return value


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPrefill(_SlicedWhenAsked):
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


class _PreparedPrefillDraft(_SlicedWhenAsked):
    """Mutable layout twin of :class:`PreparedPrefill`, which each instance becomes.

    A frozen dataclass assigns each field through ``object.__setattr__``, which costs more than planning a request.
    """

    __slots__ = PreparedPrefill.__slots__

    def __init__(
        self,
        request: PrefillRequest,
        sampling_params: Any,
        sampling_path: SamplingPath,
        program_signatures: tuple[PrefillProgramSignature, ...],
        trace_signature: PrefillTraceSignature | None,
        prepared_sampling: PreparedSamplingParams | None,
        result_like: Callable[[Any], Any],
    ) -> None:
        self.request = request
        if type(sampling_params) is partial:
            self._slice = sampling_params
        else:
            self.sampling_params = sampling_params
        self.sampling_path = sampling_path
        self.program_signatures = program_signatures
        self.trace_signature = trace_signature
        self.prepared_sampling = prepared_sampling
        self.result_like = result_like
        self.__class__ = PreparedPrefill  # type: ignore[assignment]


#: Makes a :class:`PreparedPrefill`; a ``partial`` in place of the parameters makes them when they are asked for.
prepared_prefill: Callable[..., PreparedPrefill] = cast("Callable[..., PreparedPrefill]", _PreparedPrefillDraft)


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
