# SPDX-License-Identifier: Apache-2.0
"""Values of warmup coverage: cases, plans, and the manifest of what was compiled and captured.

Follows chapter 30, section 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CoverageAlias", "CoverageManifest", "WarmupCase", "WarmupPlan"]


@dataclass(frozen=True)
class WarmupCase:
    """One representative request. ``sequence_length`` is in uncached tokens, None for decode.

    A case says what was warmed already; the identity of programs and traces is the registries' alone.
    """

    operation: str
    batch_size: int
    sequence_length: int | None
    sampling_path: str
    cached_tokens: int = 0
    penalties_enabled: bool = False
    logprobs_enabled: bool = False


@dataclass(frozen=True)
class WarmupPlan:
    """The cases of both operations, in the order in which they compile."""

    prefill: tuple[WarmupCase, ...]
    decode: tuple[WarmupCase, ...]


@dataclass(frozen=True)
class CoverageAlias:
    """A compiled program and the trace that replays its body."""

    program_signature: Any
    trace_signature: Any


@dataclass(frozen=True)
class CoverageManifest:
    """What serving may ask for after activation, in registration order; holds signatures only."""

    eager_program_signatures: tuple[Any, ...]
    traced_source_program_signatures: tuple[Any, ...]
    trace_signatures: tuple[Any, ...]
    aliases: tuple[CoverageAlias, ...]
