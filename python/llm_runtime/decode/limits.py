# SPDX-License-Identifier: Apache-2.0
"""What a device sampler cannot do for a step, refused before device work instead of dropped (decision D17)."""

from __future__ import annotations

from llm_runtime.decode.values import PreparedDecode

__all__ = ["LOG_PROB_DEVICES", "require_supported_sampling"]

#: Device counts whose samplers compute log-probabilities (chapter 40, section B.7).
LOG_PROB_DEVICES = (8, 32)


def require_supported_sampling(
    prepared: PreparedDecode, *, has_seed_buffer: bool, has_controller: bool, num_devices: int
) -> None:
    """Refuse a step whose wishes the sampler would ignore or refuse halfway; each error names the slot.

    TypeError for an explicit seed without a mutable seed buffer; ValueError for penalties without a controller, for
    log-probabilities on a mesh that has none, and for more of them than the sampled token's.
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
    if sampling.log_probs_enabled and num_devices not in LOG_PROB_DEVICES:
        raise ValueError(
            f"slot {sampling.enable_log_probs.index(True)} asks for log-probabilities, which a mesh of {num_devices} "
            f"device(s) does not compute (only {LOG_PROB_DEVICES}); sample this request on the host"
        )
    if "top_n" in sampling.logprob_modes:
        slot = sampling.logprob_modes.index("top_n")
        raise ValueError(
            f"slot {slot} asks for num_logprobs {sampling.num_logprobs[slot]}, but the device returns the "
            "sampled token's log-probability only (0); sample this request on the host"
        )
