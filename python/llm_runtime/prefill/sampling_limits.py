# SPDX-License-Identifier: Apache-2.0
"""Which sampled-token log-probabilities a device sampler returns; what it does not is refused before device work.

Follows chapter 40, section B.7, and decision D17.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_runtime.prefill.sampling_params import PreparedSamplingParams

__all__ = ["LOG_PROB_DEVICES", "refuse_unsupported_log_probs", "serves_log_probs"]

#: Device counts whose samplers compute log-probabilities unless they say otherwise.
LOG_PROB_DEVICES = (8, 32)


def serves_log_probs(model: Any, *, num_devices: int) -> bool:
    """Whether ``model.sampling`` returns log-probabilities of sampled tokens.

    Its config may say so with a bool ``supports_log_probs``; without one the device count decides.
    """
    config = getattr(getattr(model, "sampling", None), "config", None)
    declared = getattr(config, "supports_log_probs", None)
    return num_devices in LOG_PROB_DEVICES if declared is None else bool(declared)


def refuse_unsupported_log_probs(
    prepared: PreparedSamplingParams, *, served: bool, row_labels: Sequence[int], what: str = "sampling row"
) -> None:
    """``ValueError`` naming the row of a wish for log-probabilities that nothing on the device serves.

    ``served`` says whether the sampler returns those of sampled tokens; more than that no sampler does.
    """
    if not prepared.log_probs_enabled:
        return
    if not served:
        row = prepared.enable_log_probs.index(True)
        raise ValueError(
            f"{what} {row_labels[row]} asks for log-probabilities, which the device sampler of this model does not "
            "compute; sample this request on the host"
        )
    if "top_n" in prepared.logprob_modes:
        row = prepared.logprob_modes.index("top_n")
        raise ValueError(
            f"{what} {row_labels[row]} asks for num_logprobs {prepared.num_logprobs[row]}, but the device returns the "
            "sampled token's log-probability only (0); sample this request on the host"
        )
