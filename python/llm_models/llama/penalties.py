# SPDX-License-Identifier: Apache-2.0
"""Presence, frequency and repetition penalties on the device: what every sampler row has seen, and its logits after it.

Follows chapter 40, section B.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.llama.weights import convert, upload
from llm_runtime.device import namespace_of
from llm_runtime.tensor_resources import best_effort_deallocate_owned_tensors, raise_cleanup_failures

Array = npt.NDArray[np.float32]

_WEIGHTS = ("repetition", "inverse_repetition", "frequency", "presence", "counted")


class PenaltyTensors:
    """Token state and weights of `rows` sampler rows over `vocab_size` tokens, float32 in tiles; owns its tensors.

    `prompt` marks tokens of the prompt, `counts` counts tokens of the output, both [1, 1, rows, vocabulary]. Counts
    grow on the device with every counted step, so that a trace needs no host value.
    """

    def __init__(self, mesh_device: Any, *, rows: int, vocab_size: int) -> None:
        self._ns, self._mesh = namespace_of(mesh_device), mesh_device
        self._rows, self._vocab_size = rows, vocab_size
        self._tensors: dict[str, Any] = {}
        self._deallocated: set[int] = set()

    def load(self) -> None:
        """Allocate everything at rest; does nothing when it is there. Repeatable after a failure."""
        shapes = dict.fromkeys(("prompt", "counts"), (1, 1, self._rows, self._vocab_size))
        shapes |= dict.fromkeys(_WEIGHTS, (1, 1, self._rows, 1))
        for name, shape in shapes.items():
            if name not in self._tensors:
                self._tensors[name] = self._upload(np.zeros(shape, np.float32))
        if "ids" not in self._tensors:
            ids = np.arange(self._vocab_size, dtype=np.float32).reshape(1, 1, 1, -1)
            self._tensors["ids"] = self._upload(ids)

    def release(self) -> None:
        """Free everything; idempotent, and retryable after a failure."""
        failures = best_effort_deallocate_owned_tensors(self._tensors, self._deallocated)
        if failures:
            raise_cleanup_failures(failures)
        self._tensors.clear()
        self._deallocated.clear()

    def write_history(self, prompts: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Replace the token state: one sequence of prompt ids and one of output ids for each row."""
        prompt = np.zeros((1, 1, self._rows, self._vocab_size), np.float32)
        counts = np.zeros_like(prompt)
        for row, (before, after) in enumerate(zip(prompts, outputs, strict=True)):
            prompt[0, 0, row, before] = 1.0
            np.add.at(counts[0, 0, row], after, 1.0)
        self._copy("prompt", prompt)
        self._copy("counts", counts)

    def write_weights(
        self, *, presence: Sequence[float], frequency: Sequence[float], repetition: Sequence[float], counted: Any
    ) -> None:
        """Replace the penalties of all rows; `counted` says whose tokens are counted from now on."""
        repetitions = np.array(repetition, np.float64)
        columns = {
            "repetition": repetitions - 1.0,
            "inverse_repetition": 1.0 / repetitions - 1.0,
            "frequency": np.negative(frequency),
            "presence": np.negative(presence),
            "counted": counted,
        }
        for name, column in columns.items():
            self._copy(name, np.array(column, np.float32).reshape(1, 1, self._rows, 1))

    def apply(self, logits: Any) -> Any:
        """Penalised logits [1, 1, rows, vocabulary] in bfloat16 tiles, for `logits` of at most as many rows (borrowed).

        Positive logits of tokens that were seen are divided by the repetition penalty, others multiplied with it; then
        frequency times count and presence are subtracted for tokens of the output.
        """
        ns, held, made = self._ns, self._tensors, []

        def keep(tensor: Any) -> Any:
            made.append(tensor)
            return tensor

        missing = self._rows - logits.shape[2]
        if missing:
            logits = keep(ns.pad(logits, [(0, 0), (0, 0), (0, missing), (0, 0)], value=0.0))
        exact = keep(ns.typecast(logits, ns.float32))
        appeared = keep(ns.minimum(held["counts"], 1.0))
        seen = keep(ns.maximum(held["prompt"], appeared))
        lift = keep(ns.add(keep(ns.multiply(seen, held["inverse_repetition"])), 1.0))
        sink = keep(ns.add(keep(ns.multiply(seen, held["repetition"])), 1.0))
        positive = keep(ns.multiply(keep(ns.maximum(exact, 0.0)), lift))
        negative = keep(ns.multiply(keep(ns.minimum(exact, 0.0)), sink))
        result = keep(ns.add(positive, negative))
        for amount, weight in ((held["counts"], "frequency"), (appeared, "presence")):
            result = keep(ns.add(result, keep(ns.multiply(amount, held[weight]))))
        penalised = ns.typecast(result, ns.bfloat16)
        for tensor in made:
            ns.deallocate(tensor)
        return penalised

    def count(self, tokens: Any) -> None:
        """Add the sampled `tokens` [1, 1, 1, rows] (borrowed) to the counts of the rows that are counted."""
        ns, held = self._ns, self._tensors
        column = ns.reshape(tokens, (1, 1, self._rows, 1))
        tiles = ns.to_layout(column, ns.TILE_LAYOUT)
        sampled = ns.typecast(tiles, ns.float32)
        # Ids are whole numbers below 2**24, which float32 holds exactly.
        hits = ns.eq(held["ids"], sampled)
        counted = ns.multiply(hits, held["counted"])
        ns.add(held["counts"], counted, output_tensor=held["counts"])
        for tensor in (tiles, sampled, hits, counted):
            ns.deallocate(tensor)
        if self._rows > 1:  # a reshape to the same shape shares the memory of the tokens
            ns.deallocate(column)

    def _upload(self, array: Array) -> Any:
        ns = self._ns
        return upload(ns, self._mesh, array, layout=ns.TILE_LAYOUT, dtype=ns.float32)

    def _copy(self, name: str, array: Array) -> None:
        ns = self._ns
        host = convert(ns, array, layout=ns.TILE_LAYOUT, dtype=ns.float32)
        ns.copy_host_to_device_tensor(host, self._tensors[name])
