# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of sampled tokens on the device."""

from __future__ import annotations

from typing import Any

#: Fills rows that have no value; real log-probabilities are never positive (decision D23).
NO_LOG_PROB = 1.0


def sampled_log_probs(ns: Any, logits: Any, tokens: Any) -> Any:
    """Log-softmax of `logits` [1, 1, n, vocabulary] at `tokens` [1, 1, 1, rows], both borrowed.

    Returns float32 [1, 1, rows, 1], filled from row n on. It is the model's own distribution, before temperature,
    top-k, top-p and penalties.
    """
    count, rows = logits.shape[2], tokens.shape[3]
    exact = ns.typecast(logits, ns.float32)
    probabilities = ns.softmax(exact, dim=-1)
    ns.deallocate(exact)
    column = ns.reshape(tokens, (1, 1, rows, 1))
    places = ns.to_layout(column, ns.TILE_LAYOUT)
    if rows > 1:  # a reshape to the same shape shares the memory of the tokens
        ns.deallocate(column)
    if count < rows:
        used = ns.slice(places, (0, 0, 0, 0), (1, 1, count, 1))
        ns.deallocate(places)
        places = used
    chosen = ns.gather(probabilities, 3, places)
    ns.deallocate(probabilities)
    ns.deallocate(places)
    values = ns.log(chosen)
    ns.deallocate(chosen)
    if count < rows:
        filled = ns.pad(values, [(0, 0), (0, 0), (0, rows - count), (0, 0)], value=NO_LOG_PROB)
        ns.deallocate(values)
        values = filled
    return values
