# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of the rows that a lane serves; log-probabilities are refused.

Follows chapter 30, section 7.3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from llm_runtime.lane_group.routing import take_rows
from llm_runtime.prefill.sampling_params import plain_value


class RowSampling:
    """Parameters of one call of `row_count` rows, checked once and then cut lane by lane.

    A field is one value, a sequence of one value for every row, or one entry per row. `TypeError` unless `params` is a
    dataclass instance or a dict, `ValueError` for a field with too few rows. The parameters are borrowed.
    """

    def __init__(self, params: Any, *, row_count: int) -> None:
        self._params = params
        if isinstance(params, dict):
            fields = params
        elif dataclasses.is_dataclass(params) and not isinstance(params, type):
            fields = {item.name: getattr(params, item.name) for item in dataclasses.fields(params)}
        else:
            raise TypeError(f"sampling_params must be a dataclass instance or a dict, got {type(params).__name__}")
        self._log_probs = fields.get("enable_log_probs", False)
        self._columns: list[tuple[str, Any, int]] = []
        for name, value in fields.items():
            length = _row_count(value)
            if length is None:
                continue
            if length == 0:
                raise ValueError(f"sampling field {name} is empty; give one value, or one per row")
            if length != 1 and length < row_count:
                raise ValueError(f"sampling field {name} has {length} rows for the {row_count} rows of the call")
            self._columns.append((name, value, length))

    def select(self, rows: list[int] | slice) -> Any:
        """The same kind of parameters with only `rows` (source rows, or a slice of slots).

        Single values pass as they are. A sequence of one entry is repeated for each row, in its own container.
        """
        count = len(rows) if isinstance(rows, list) else rows.stop - rows.start
        changes = {
            name: take_rows(value, [0] * count if length == 1 else rows)
            for name, value, length in self._columns
            if not length == count == 1
        }
        params = self._params
        if not changes:
            return params
        return {**params, **changes} if isinstance(params, dict) else dataclasses.replace(params, **changes)

    def refuse_log_probs(self, rows: Callable[[], Sequence[int]], *, label: str) -> None:
        """`ValueError` when one of `rows` (which the error calls `label`) asks for log-probabilities.

        The lanes' values are not aggregated. `rows` is asked only when some row wants them, and rows that it does not
        name are not looked at.
        """
        wanted = plain_value(self._log_probs)
        column = wanted if isinstance(wanted, (list, tuple)) else [wanted]
        if not any(column):
            return
        for row in rows():
            if column[0] if len(column) == 1 else column[row]:
                raise ValueError(
                    f"{label} {row}: enable_log_probs asks for log-probabilities, which a lane group does not return; "
                    "turn it off, or sample this request on the host"
                )


def _row_count(value: Any) -> int | None:
    """Entries of a row-wise field, or `None` for one value that serves every row."""
    if isinstance(value, (list, tuple)):
        return len(value)
    shape = getattr(value, "shape", ())
    return int(shape[0]) if shape else None
