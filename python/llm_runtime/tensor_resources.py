# SPDX-License-Identifier: Apache-2.0
"""Best-effort, retryable release of device tensors, and how cleanup failures travel with a primary error.

Follows chapter 20, section 1. A leaf is a `Tensor` of whichever device namespace its class belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from llm_runtime.device import tensor_namespace
from llm_runtime.errors import add_error_note


@dataclass(eq=False)
class TensorResourceOrphan:
    """An owned tree at least one of whose tensors could not be released.

    `values` (owned) keeps the tensors alive, so that the ids in `deallocated_tensor_ids` stay meaningful
    and a retry skips what is gone already.
    """

    values: Any
    deallocated_tensor_ids: set[int] = field(default_factory=set)


def best_effort_deallocate_owned_tensors(value: Any, completed: set[int] | None = None) -> list[BaseException]:
    """Deallocate every device tensor in the tree `value` once and return the failures in visit order.

    Walks `None`, tensors, dict values, lists, tuples, sets and objects with a callable
    `owned_tensor_values`; other objects own nothing. `completed` holds the `id()` of tensors released
    before and is extended in place, so that progress survives a retry. An `owned_tensor_values` that raises
    propagates.
    """
    failures: list[BaseException] = []
    _release(value, set() if completed is None else completed, set(), failures)
    return failures


def release_or_retain(values: Any, orphans: list[TensorResourceOrphan]) -> list[BaseException]:
    """Release the tree `values`; when a tensor stays, append the tree to `orphans`. Returns the failures."""
    orphan = TensorResourceOrphan(values)
    failures = best_effort_deallocate_owned_tensors(values, orphan.deallocated_tensor_ids)
    if failures:
        orphans.append(orphan)
    return failures


def release_orphans(orphans: list[TensorResourceOrphan]) -> list[BaseException]:
    """Retry every orphan; the list is edited in place and keeps, in order, those that still fail."""
    failures: list[BaseException] = []
    kept: list[TensorResourceOrphan] = []
    for orphan in orphans:
        failed = best_effort_deallocate_owned_tensors(orphan.values, orphan.deallocated_tensor_ids)
        if failed:
            kept.append(orphan)
            failures.extend(failed)
    orphans[:] = kept
    return failures


def attach_cleanup_failures(
    primary: BaseException,
    failures: Iterable[BaseException],
    *,
    note: str = "{count} cleanup failure(s) also occurred",
) -> None:
    """Append `failures` to `primary.cleanup_failures` and note their count; nothing happens when there are
    none.
    """
    added = tuple(failures)
    if not added:
        return
    earlier: tuple[BaseException, ...] = getattr(primary, "cleanup_failures", ())
    primary.cleanup_failures = (*earlier, *added)  # type: ignore[attr-defined]
    add_error_note(primary, note.format(count=len(added)))


def raise_cleanup_failures(failures: Iterable[BaseException]) -> NoReturn:
    """Raise the first failure itself with the others attached; `ValueError` when there are none."""
    pending = tuple(failures)
    if not pending:
        raise ValueError("raise_cleanup_failures needs at least one failure")
    attach_cleanup_failures(pending[0], pending[1:], note="{count} additional cleanup failure(s) occurred")
    raise pending[0]


def raise_counted_failures(what: str, failures: Iterable[BaseException]) -> NoReturn:
    """Raise a `RuntimeError` that says `what` and how many, chained from the first failure, all attached."""
    pending = tuple(failures)
    if not pending:
        raise ValueError("raise_counted_failures needs at least one failure")
    error = RuntimeError(f"{what}: {len(pending)} failure(s), first {pending[0]!r}")
    attach_cleanup_failures(error, pending)
    raise error from pending[0]


def _release(value: Any, completed: set[int], visiting: set[int], failures: list[BaseException]) -> None:
    if value is None:
        return
    namespace = tensor_namespace(value)
    if namespace is not None:
        _release_tensor(namespace, value, completed, failures)
        return
    members = _members_of(value, visiting)
    if members is None:
        return
    # The mark lies on the current path only: it breaks cycles, while a shared container is walked again.
    visiting.add(id(value))
    try:
        for member in members:
            _release(member, completed, visiting, failures)
    finally:
        visiting.discard(id(value))


def _release_tensor(namespace: Any, tensor: Any, completed: set[int], failures: list[BaseException]) -> None:
    if id(tensor) in completed:
        return
    try:
        namespace.deallocate(tensor)
    except BaseException as error:
        failures.append(error)
    else:
        completed.add(id(tensor))


def _members_of(value: Any, visiting: set[int]) -> Iterable[Any] | None:
    if isinstance(value, dict):
        members: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        members = value
    elif callable(getattr(value, "owned_tensor_values", None)):
        if id(value) in visiting:
            return None
        owned = value.owned_tensor_values()
        members = (owned,)
    else:
        return None
    return None if id(value) in visiting else members
