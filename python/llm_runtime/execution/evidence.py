# SPDX-License-Identifier: Apache-2.0
"""Proof that a prefill was replayed, and the log lines by which a run can be audited."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

LOGGER = logging.getLogger("llm_runtime")


@dataclasses.dataclass(frozen=True)
class PrefillReplayEvidence:
    """One prepared prefill request whose trace was replayed and finished.

    Batch sizes are in rows, lengths in tokens, keys are digests (`trace_key` is "unassociated" without a trace key),
    `replay_steps` counts the replays (chunks), `rank` equals `lane`. Follows chapter 30, section 4.2.
    """

    operation: str
    variant: str
    sampling_path: str
    execution: str
    active_batch_size: int
    padded_batch_size: int
    padded_sequence_length: int
    lane: int
    rank: int
    program_key: str
    trace_key: str
    replay_steps: int


def log_evidence(evidence: PrefillReplayEvidence) -> None:
    """Write one INFO line with the evidence as JSON (nothing is formatted while INFO is off)."""
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info("TTTV2_RUNTIME_EVIDENCE %s", json.dumps(dataclasses.asdict(evidence), sort_keys=True))


def log_summary(summary: dict[str, Any]) -> None:
    """Write one INFO line with a runtime summary as JSON."""
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info("TTTV2_RUNTIME_SUMMARY %s", json.dumps(summary, sort_keys=True))
