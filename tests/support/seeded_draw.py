# SPDX-License-Identifier: Apache-2.0
"""What a device sampler may draw for one row, written down a second time from its description.

The `top_k` largest logits, softmax of logit over temperature, the smallest prefix that reaches `top_p`, and one number
from the row's generator: SplitMix64 twice over the device seed. Follows chapter 40, section F.2, step 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime.seed_manager import device_seed

_MASK = (1 << 64) - 1
_TOLERANCE = 1e-5


def may_draw(
    token: int,
    logits: npt.NDArray[Any],
    *,
    top_k: int,
    top_p: float,
    temperature: float,
    seed: int | None,
    position: int,
) -> bool:
    """Whether `token` is the draw behind `position`; without a seed, whether it is among the candidates."""
    order = np.argsort(-logits, kind="stable")[:top_k]
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    weights /= weights.sum()
    before = np.cumsum(weights) - weights
    kept = before < top_p + _TOLERANCE
    if seed is None:
        return token in order[kept].tolist()
    number = (_split_mix(_split_mix(device_seed(seed, position))) >> 11) * 2.0**-53
    # A limit or a number at the edge of a candidate may fall to either side of it.
    for limit in (top_p - _TOLERANCE, top_p + _TOLERANCE):
        kept = before < limit
        kept[0] = True
        mass = np.cumsum(weights[kept]) / weights[kept].sum()
        for near in (number - _TOLERANCE, number + _TOLERANCE):
            rank = min(int((mass <= near).sum()), len(mass) - 1)
            if token == order[rank]:
                return True
    return False


def _split_mix(state: int) -> int:
    value = (state + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
