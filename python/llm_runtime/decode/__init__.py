# SPDX-License-Identifier: Apache-2.0
"""Decode: preparation, signatures, eager invocation, trace refresh, output leases and cleanup.

Follows chapter 20.
"""

from __future__ import annotations

from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.decode.leases import DecodeOutputLease
from llm_runtime.decode.runtime import DecodeRuntime
from llm_runtime.decode.values import (
    DecodeCapturePlan,
    DecodeDeviceInputs,
    DecodeHostInputs,
    DecodePersistentInputs,
    DecodeProgramSignature,
    DecodeRefreshPolicy,
    DecodeTraceSignature,
    InvocationResult,
    PreparedDecode,
)

__all__ = [
    "DecodeCapturePlan",
    "DecodeDeviceInputs",
    "DecodeHostInputs",
    "DecodeOutputLease",
    "DecodePersistentInputs",
    "DecodeProgramSignature",
    "DecodeRefreshPolicy",
    "DecodeRuntime",
    "DecodeRuntimeConfig",
    "DecodeTraceSignature",
    "InvocationResult",
    "PreparedDecode",
]
