# SPDX-License-Identifier: Apache-2.0
"""Token histories that callers give with penalties, as ids per sampler row."""

from __future__ import annotations

from collections.abc import Sequence

from llm_runtime.prefill.sampling_params import PreparedSamplingParams

#: Prompt ids and output ids, one list a row each.
Histories = tuple[list[list[int]], list[list[int]]]


def histories_of(sampling: PreparedSamplingParams, *, vocab_size: int) -> Histories:
    """Prompt and output ids of every sampler row; rows that nobody uses are empty, negative ids are padding.

    `ValueError` without prompts, for an active row that a history does not have, and for an id outside the vocabulary.
    """
    if sampling.prompt_tokens is None:
        raise ValueError("penalties need prompt_tokens: one row of ids a request, -1 behind the last one")
    found: list[list[list[int]]] = []
    for name, history in (("prompt_tokens", sampling.prompt_tokens), ("output_tokens", sampling.output_tokens)):
        rows: list[list[int]] = [[] for _ in range(sampling.batch_size)]
        for row in marked(sampling.active_mask) if history is not None else ():
            if row >= len(history):
                raise ValueError(f"{name} has {len(history)} rows, none for row {row}")
            rows[row] = [token for token in map(int, history[row]) if token >= 0]
            beyond = next((token for token in rows[row] if token >= vocab_size), None)
            if beyond is not None:
                raise ValueError(f"{name}[{row}] holds {beyond}, the vocabulary has {vocab_size} tokens")
        found.append(rows)
    return found[0], found[1]


def marked(mask: Sequence[bool]) -> tuple[int, ...]:
    """The rows whose entry is true."""
    return tuple(row for row, value in enumerate(mask) if value)
