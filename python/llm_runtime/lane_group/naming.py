# SPDX-License-Identifier: Apache-2.0
"""Which lane an error belongs to: lanes number their rows from 0, so their errors need the group's rows beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from llm_runtime.errors import add_error_note


@contextmanager
def naming_lane(lane: int, rows: Sequence[int] | None = None) -> Iterator[None]:
    """Give an error that passes through the attribute `lane`, and a note with the lane and its `rows` of the call."""
    try:
        yield
    except BaseException as error:
        with suppress(AttributeError):  # a class with fixed attributes keeps the note alone
            error.lane = lane  # type: ignore[attr-defined]
        served = "" if rows is None else f", whose rows are rows {list(rows)} of the call"
        add_error_note(error, f"in lane {lane} of the group{served}")
        raise
