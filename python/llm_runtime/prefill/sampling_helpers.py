# SPDX-License-Identifier: Apache-2.0
"""Stateless sampling helpers: row slicing, slot placement, token history, K/P/T rows.

Follows chapter 20, sections 7.2, 9.2 and 10.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime.prefill.sampling_normalization import prepare_sampling_params
from llm_runtime.prefill.sampling_params import (
    NEUTRAL_ROW,
    PreparedSamplingParams,
    SamplingParams,
    SamplingPath,
    plain_value,
    require_sampling_dataclass,
    sampling_field_names,
)

__all__ = [
    "KPTSignature",
    "KPTValues",
    "PreparedSamplingParams",
    "SamplingParams",
    "SamplingPath",
    "_slice_sampling_params",
    "default_prompt_history",
    "history_row_count",
    "kpt_values",
    "place_sampling_in_slots",
    "prepare_sampling_params",
    "select_request_history",
    "take_history_rows",
]

_TILE_SIZE = 32

HostArray = npt.NDArray[Any]

#: K, P and inverse T as uploaded.
KPTValues = tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]

#: The same, or None when the path needs none.
KPTSignature = KPTValues | None


def _slice_sampling_params(params: Any, source_rows: Sequence[int]) -> Any:
    """Return a copy of ``params`` that holds only ``source_rows``, in that order; ``None`` stays ``None``.

    Scalars stay scalars, a one-element field is repeated for every selected row, a longer one is picked by
    row. Arrays and sequences come back as lists. Raises ``ValueError`` for an empty selection, a negative
    row, an empty field or a row beyond a field's end, ``TypeError`` for anything but a dataclass. Follows
    chapter 20, section 10.3.
    """
    if params is None:
        return None
    require_sampling_dataclass(params)
    if len(source_rows) == 0:
        raise ValueError("sampling parameters cannot be sliced to no rows")
    if min(source_rows) < 0:
        raise ValueError(f"sampling row must not be negative, got {min(source_rows)}")
    last = max(source_rows)
    changes: dict[str, Any] = {}
    for name in sampling_field_names(type(params)):
        original = getattr(params, name)
        value = plain_value(original)
        if isinstance(value, (list, tuple)):
            if len(value) == 0:
                raise ValueError(f"sampling field {name} is empty")
            if len(value) == 1:
                changes[name] = [value[0]] * len(source_rows)
            elif last >= len(value):
                raise ValueError(f"sampling field {name} has {len(value)} rows, row {last} was asked for")
            else:
                changes[name] = [value[row] for row in source_rows]
        elif value is not original:
            changes[name] = value
    return dataclasses.replace(params, **changes)


def place_sampling_in_slots(prepared: PreparedSamplingParams, slots: Sequence[int]) -> PreparedSamplingParams:
    """Move the request-ordered active rows to ``slots``; every other slot becomes neutral and inactive.

    Needs as many unique destinations inside ``[0, batch_size)`` as there are active rows (``ValueError``).
    History rows move along, unused slots are filled with -1 (False for bool). Follows chapter 20, section
    10.2.
    """
    rows = prepared.active_rows
    if len(slots) != rows or len(set(slots)) != rows:
        raise ValueError(f"{rows} sampled rows need {rows} different slots, got {list(slots)}")
    if min(slots) < 0 or max(slots) >= prepared.batch_size:
        raise ValueError(f"slots {list(slots)} are outside [0, {prepared.batch_size})")
    changes: dict[str, Any] = {}
    if list(slots) != list(range(rows)):
        for name, neutral in NEUTRAL_ROW.items():
            column = [neutral] * prepared.batch_size
            for slot, value in zip(slots, getattr(prepared, name), strict=False):
                column[slot] = value
            changes[name] = tuple(column)
    for name in ("prompt_tokens", "output_tokens"):
        history = getattr(prepared, name)
        if history is not None:
            changes[name] = _place_history(history, slots, prepared.batch_size, name=name)
    return dataclasses.replace(prepared, **changes) if changes else prepared


def history_row_count(history: Any, *, name: str) -> int:
    """Number of rows of a token history: a list, a tuple or an array of rank 1 or more (else
    TypeError/ValueError)."""
    if isinstance(history, (list, tuple)):
        return len(history)
    shape = getattr(history, "shape", None)
    if shape is None or not hasattr(history, "tolist"):
        raise TypeError(f"{name} must be an array, a list or a tuple of rows, got {type(history).__name__}")
    if len(shape) == 0:
        raise ValueError(f"{name} must have a row dimension, got a scalar")
    return int(shape[0])


def take_history_rows(history: Any, rows: Sequence[int]) -> Any:
    """Pick ``rows`` of a history and keep its container kind (array, list or tuple)."""
    if isinstance(history, tuple):
        return tuple(history[row] for row in rows)
    if isinstance(history, list):
        return [history[row] for row in rows]
    return history[list(rows)]


def _place_history(history: Any, slots: Sequence[int], batch_size: int, *, name: str) -> Any:
    count = history_row_count(history, name=name)
    if count not in (1, len(slots)):
        raise ValueError(f"{name} has {count} rows for {len(slots)} sampled rows")
    sources = [0] * len(slots) if count == 1 else list(range(count))
    if isinstance(history, (list, tuple)):
        width = max((len(row) for row in history if hasattr(row, "__len__")), default=0)
        column: list[Any] = [[-1] * width for _ in range(batch_size)]
        for slot, source in zip(slots, sources, strict=True):
            column[slot] = history[source]
        return tuple(column) if isinstance(history, tuple) else column
    shape = (batch_size, *history.shape[1:])
    filler = False if str(history.dtype).endswith("bool") else -1
    if isinstance(history, np.ndarray):
        placed: Any = np.full(shape, filler, dtype=history.dtype)
    else:
        placed = history.new_full(shape, filler)
    placed[list(slots)] = history[sources]
    return placed


def default_prompt_history(tokens: HostArray, prompt_lens: HostArray | None) -> HostArray:
    """Copy ``tokens [N, T]`` with -1 from each prompt's length onward; the input is not touched.

    Raises ``ValueError`` for a length below 0 or above T. Follows chapter 20, section 9.2.
    """
    width = tokens.shape[1]
    if prompt_lens is None:
        prompt_lens = np.full(len(tokens), width)
    for row, length in enumerate(prompt_lens.tolist()):
        if not 0 <= length <= width:
            raise ValueError(f"row {row}: prompt length {length} is outside [0, {width}]")
    history: HostArray = np.where(np.arange(width) < prompt_lens[:, None], tokens, -1).astype(tokens.dtype)
    return history


def select_request_history(
    history: Any,
    *,
    source_rows: Sequence[int],
    slots: Sequence[int],
    batch_size: int,
    max_batch_size: int,
    name: str,
) -> Any:
    """Pick one planned request's rows of a history.

    A history of ``max_batch_size`` rows is indexed by slot (also when both readings fit), one of
    ``batch_size`` rows by source row, one of a single row is repeated. ``None`` passes; any other count is
    a ``ValueError``, a value without rows a ``TypeError``. Follows chapter 20, section 9.2.
    """
    if history is None:
        return None
    count = history_row_count(history, name=name)
    if count == max_batch_size:
        return take_history_rows(history, slots)
    if count == batch_size:
        return take_history_rows(history, source_rows)
    if count == 1:
        return take_history_rows(history, [0] * len(source_rows))
    raise ValueError(
        f"{name} has {count} rows; expected 1, the {batch_size} rows of the call, "
        f"or the {max_batch_size} slots of the lane"
    )


def kpt_values(sampling: PreparedSamplingParams, rows: int) -> KPTValues:
    """K, P and inverse T for ``rows`` sampler rows.

    A single active row is repeated for every row, because its token may sit in any row of a tile; otherwise
    the first ``rows`` entries are used. Follows chapter 20, section 7.2.
    """
    if sampling.active_rows == 1 and rows > 1:
        row = sampling.active_mask.index(True)
        return (
            (sampling.top_k[row],) * rows,
            (sampling.top_p[row],) * rows,
            (sampling.temperature[row],) * rows,
        )
    if rows > sampling.batch_size:
        raise ValueError(f"{rows} sampler rows exceed the {sampling.batch_size} prepared rows")
    return sampling.top_k[:rows], sampling.top_p[:rows], sampling.temperature[:rows]
