# SPDX-License-Identifier: Apache-2.0
"""Who owns what after a prefill invocation, and identity-based bookkeeping of owned values.

Follows chapter 20, section 7.5, and chapter 10, section 9.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class PrefillReplayOwnership:
    """Split of a replay's values: what the trace keeps, what the workspace keeps, what the caller must
    release."""

    trace_owned_hidden_output: Any
    nested_persistent_output: Any
    new_logprob_output: Any
    replay_local_intermediates: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class InvocationResult:
    """Output of one request and the device values that the result collector releases after reading it.

    ``value`` is logits, a tuple of logit tiles, or ``(tokens, log_probs)``. ``replay_ownership`` is present
    exactly when the hidden states came from a trace.
    """

    value: Any
    owned: tuple[Any, ...]
    replay_ownership: PrefillReplayOwnership | None = None


def retain_owned(owned: list[Any] | None, value: Any) -> None:
    """Append ``value`` in creation order unless it is ``None`` or already listed (by identity)."""
    if owned is None or value is None or any(item is value for item in owned):
        return
    owned.append(value)


def without_borrowed(values: Iterable[Any], borrowed: Iterable[Any]) -> tuple[Any, ...]:
    """Drop ``borrowed`` by identity, also inside tuples and lists; containers that become empty vanish."""
    kept = []
    hidden = {id(item) for item in borrowed if item is not None}
    for value in values:
        remaining = _prune(value, hidden)
        if remaining is not None:
            kept.append(remaining)
    return tuple(kept)


def _prune(value: Any, hidden: set[int]) -> Any:
    if value is None or id(value) in hidden:
        return None
    if not isinstance(value, (tuple, list)):
        return value
    kept = [item for item in (_prune(member, hidden) for member in value) if item is not None]
    if len(kept) == len(value):
        return value
    return type(value)(kept) if kept else None


def new_logprob_output(output: Any, persistent: Any) -> Any:
    """Log-probabilities that a replay made beside the persistent token buffer, or ``None``.

    Without a persistent buffer there is nothing to tell apart. Otherwise the sampler must have returned a
    pair (``TypeError``).
    """
    if persistent is None:
        return None
    if not isinstance(output, tuple) or len(output) != 2:
        raise TypeError(f"a sampled replay must return (tokens, log_probs), got {type(output).__name__}")
    return output[1]
