# SPDX-License-Identifier: Apache-2.0
"""Warmup: coverage plans, compilation of everything that serving can ask for, and the capture barrier.

Follows chapter 30, section 5.
"""

from __future__ import annotations

from llm_runtime.warmup.cases import CoverageAlias, CoverageManifest, WarmupCase, WarmupPlan
from llm_runtime.warmup.config import WarmupCoordinatorConfig
from llm_runtime.warmup.coordinator import WarmupCoordinator, WarmupProgress
from llm_runtime.warmup.geometry import ServingLimits, resolve_prefill_warmup_seq_lens

__all__ = [
    "CoverageAlias",
    "CoverageManifest",
    "ServingLimits",
    "WarmupCase",
    "WarmupCoordinator",
    "WarmupCoordinatorConfig",
    "WarmupPlan",
    "WarmupProgress",
    "resolve_prefill_warmup_seq_lens",
]
