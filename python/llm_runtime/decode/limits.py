# SPDX-License-Identifier: Apache-2.0
"""What a device sampler cannot do for a step, refused before device work instead of dropped (decision D17)."""

from __future__ import annotations

from llm_runtime.decode.values import PreparedDecode
from llm_runtime.prefill.sampling_limits import refuse_unsupported_log_probs

__all__ = ["require_supported_sampling"]


def require_supported_sampling(
    prepared: PreparedDecode, *, has_seed_buffer: bool, has_controller: bool, has_log_probs: bool
) -> None:
    """Refuse a step whose wishes the sampler would ignore or refuse halfway; each error names the slot.

    TypeError for an explicit seed without a mutable seed buffer; ValueError for penalties without a controller, for
    log-probabilities that the sampler does not compute, and for more of them than the sampled token's.
    """
    sampling = prepared.prepared_sampling
    if sampling is None:
        return
    if not has_seed_buffer:
        for slot, seed in enumerate(sampling.seeds):
            if seed is not None and sampling.active_mask[slot]:
                raise TypeError(f"slot {slot} asks for seed {seed}, but the sampler has no mutable seed buffer")
    signature = prepared.program_signature
    if signature is not None and not (signature.penalties_enabled or signature.logprobs_enabled):
        return
    if sampling.penalties_enabled and not has_controller:
        raise ValueError("penalties need a sampling-state controller, which this model has not; sample on the host")
    slots = range(sampling.batch_size)
    refuse_unsupported_log_probs(sampling, served=has_log_probs, row_labels=slots, what="slot")
