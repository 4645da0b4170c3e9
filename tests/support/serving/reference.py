# SPDX-License-Identifier: Apache-2.0
"""What a request generates when it runs alone: a NumPy Llama over its own tokens, without cache, batch or runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oracle.numpy_llama import NumpyLlama
from support.serving.sampling import acceptable
from support.serving.traffic import Request

#: Logits of the twin and of NumPy, both float32, differ by less than 1e-5; everything wrong differs by far more.
TOLERANCE = 5e-5


@dataclass
class Reference:
    """Checks finished requests. `ties` counts tokens that only differ by rounding of nearly equal choices."""

    llama: NumpyLlama
    tokens: int = 0
    ties: int = 0

    @classmethod
    def of(cls, checkpoint: Any) -> Reference:
        """A reference over the checkpoint's weights."""
        return cls(NumpyLlama(checkpoint.config, checkpoint.tensor))

    def check(self, request: Request) -> None:
        """Every token of the request is the one that its own history gives.

        Each token is checked behind the tokens before it, so that all of them together are the straight generation.
        """
        if not request.generated:
            return
        logits = self.llama.logits(request.tokens[:-1])
        for index, token in enumerate(request.generated):
            position = len(request.prompt) + index - 1
            expected, nearby = acceptable(
                logits[position], request.sampling, position, request.sides[index], tolerance=TOLERANCE
            )
            self.tokens += 1
            if token == expected:
                continue
            found, wanted = logits[position][token], logits[position][expected]
            assert token in nearby, (
                f"request {request.number} ({request.sampling}): token {index} behind position {position} is {token} "
                f"(logit {found}) from the {request.sides[index]}, alone it is {expected} (logit {wanted}); "
                f"{request.preemptions} preemptions"
            )
            self.ties += expected != -1
