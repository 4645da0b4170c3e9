# SPDX-License-Identifier: Apache-2.0
"""Every call that both libraries are asked to make."""

from __future__ import annotations

from collections.abc import Iterator

from support.conformance.calls import Call
from support.conformance.cases_attention import attention_calls
from support.conformance.cases_rows import row_calls
from support.conformance.cases_sampling import sampling_calls
from support.conformance.cases_tensors import tensor_calls

TRACE_CALLS = ("begin_trace_capture", "end_trace_capture", "execute_trace", "release_trace")
"""Functions that the packages use and the mock cannot serve: it holds no kernel binaries."""


def calls() -> Iterator[Call]:
    """All of them, in the order of the table."""
    yield from tensor_calls()
    yield from row_calls()
    yield from attention_calls()
    yield from sampling_calls()
