# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of the rows that a lane serves; log-probabilities are refused.

Follows chapter 30, section 7.3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from llm_runtime.lane_group.routing import take_rows
from llm_runtime.prefill.sampling_params import plain_value


def require_sampling_fields(params: Any, *, row_count: int) -> None:
    """`TypeError` unless `params` is a dataclass instance or a dict; `ValueError` for a field with too few rows.

    A field is one value, a sequence of one value for every row, or one entry per row of the call.
    """
    for name, value in _fields(params).items():
        rows = _row_count(value)
        if rows == 0:
            raise ValueError(f"sampling field {name} is empty; give one value, or one per row")
        if rows is not None and rows != 1 and rows < row_count:
            raise ValueError(f"sampling field {name} has {rows} rows for the {row_count} rows of the call")


def select_sampling(params: Any, rows: list[int] | slice) -> Any:
    """The same kind of parameters with only `rows` (source rows, or a slice of slots).

    Single values pass as they are. A sequence of one entry is repeated for each row, in its own container. Checked
    before by `require_sampling_fields`.
    """
    count = len(rows) if isinstance(rows, list) else rows.stop - rows.start
    changes = {}
    for name, value in _fields(params).items():
        length = _row_count(value)
        if length is None or length == count == 1:
            continue
        changes[name] = take_rows(value, [0] * count if length == 1 else rows)
    if not changes:
        return params
    return {**params, **changes} if isinstance(params, dict) else dataclasses.replace(params, **changes)


def refuse_log_probs(params: Any, rows: Sequence[int], *, label: str) -> None:
    """`ValueError` when one of `rows` (which the error calls `label`) asks for log-probabilities.

    The lanes' values are not aggregated. Rows that are not used are not looked at.
    """
    wanted = plain_value(_fields(params).get("enable_log_probs", False))
    column = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    if not any(column):
        return
    for row in rows:
        if column[0] if len(column) == 1 else column[row]:
            raise ValueError(
                f"{label} {row}: enable_log_probs asks for log-probabilities, which a lane group does not return; "
                "turn it off, or sample this request on the host"
            )


def _fields(params: Any) -> Mapping[str, Any]:
    if isinstance(params, dict):
        return params
    if not dataclasses.is_dataclass(params) or isinstance(params, type):
        raise TypeError(f"sampling_params must be a dataclass instance or a dict, got {type(params).__name__}")
    return {item.name: getattr(params, item.name) for item in dataclasses.fields(params)}


def _row_count(value: Any) -> int | None:
    """Entries of a row-wise field, or `None` for one value that serves every row."""
    if isinstance(value, (list, tuple)):
        return len(value)
    shape = getattr(value, "shape", ())
    return int(shape[0]) if shape else None
