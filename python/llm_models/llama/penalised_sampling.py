# SPDX-License-Identifier: Apache-2.0
"""Device work of sampling with penalties: penalised logits in, tokens out, and their counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_models.llama.log_probs import sampled_log_probs
from llm_models.llama.penalties import PenaltyTensors
from llm_models.llama.sampling import Sampling1D
from llm_runtime.device import namespace_of
from llm_runtime.prefill.sampling_params import PreparedSamplingParams
from llm_runtime.seed_manager import SeedState


@dataclass(eq=False)
class SamplingState1D:
    """One lane's state; made by the controller's `create_state`, released by its `release`.

    `static_identity` is what the device was last configured for (None: nothing), `penalty_history_valid` whether its
    token counts are complete, `tracked` whether steps count tokens.
    """

    seed_state: SeedState
    penalties: PenaltyTensors
    static_identity: Any = None
    active_mask: tuple[bool, ...] = ()
    penalty_history_valid: bool = False
    tracked: bool = False


class PenalisedSampling:
    """The sampler (borrowed) behind the penalties of a state; without penalties it is the sampler alone."""

    def __init__(self, sampling: Sampling1D) -> None:
        self.sampling = sampling
        self._ns = namespace_of(sampling.config.mesh_device)

    def prefill_forward(
        self, logits: Any, state: SamplingState1D, sampling: PreparedSamplingParams, **options: Any
    ) -> tuple[Any, Any]:
        """Sample a prefill's rows; `options` are the sampler's, and `count_tokens`, which has no effect.

        The token is counted by the reset that the next decode must be.
        """
        options.pop("count_tokens", None)
        return self._sample(logits, state, sampling, options)

    def decode_forward(
        self, logits: Any, state: SamplingState1D, sampling: PreparedSamplingParams, **options: Any
    ) -> tuple[Any, Any]:
        """Sample a decode step and, with `count_tokens`, count its tokens where penalties are on.

        `options` are the sampler's, `positions` and `advance_seeds` beside; seeds advance before the step.
        """
        counts = options.pop("count_tokens") and sampling.penalties_enabled
        for name in ("positions", "advance_seeds"):
            options.pop(name, None)
        output = self._sample(logits, state, sampling, options)
        if counts:
            state.penalties.count(output[0])
        return output

    def _sample(
        self, logits: Any, state: SamplingState1D, sampling: PreparedSamplingParams, options: dict[str, Any]
    ) -> tuple[Any, Any]:
        wanted = sampling.log_probs_enabled
        if options.get("k") is None:
            options = {name: value for name, value in options.items() if name not in ("k", "p", "temp")}
        if not sampling.penalties_enabled:
            return self.sampling.decode_forward(logits, enable_log_probs=wanted, **options)
        penalised = state.penalties.apply(logits)
        tokens, _ = self.sampling.decode_forward(penalised, **options)
        self._ns.deallocate(penalised)
        return tokens, sampled_log_probs(self._ns, logits, tokens) if wanted else None
