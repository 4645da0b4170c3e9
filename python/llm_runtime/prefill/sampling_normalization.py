# SPDX-License-Identifier: Apache-2.0
"""Turns a caller's sampling parameters into rows for the device. Follows chapter 20, section 10.2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from llm_runtime.prefill.sampling_params import (
    NEUTRAL_ROW,
    PreparedSamplingParams,
    plain_value,
    require_sampling_dataclass,
)


class _Columns:
    """Reads the fields of one parameter value as columns of ``rows`` entries."""

    def __init__(self, params: Any, rows: int, batch_size: int, labels: Sequence[int] | None) -> None:
        self.params, self.rows, self.batch_size, self.labels = params, rows, batch_size, labels

    def refuse(self, kind: type[Exception], row: int, text: str) -> NoReturn:
        label = row if self.labels is None else self.labels[row]
        raise kind(f"sampling row {label}: {text}")

    def read(self, name: str, default: Any) -> list[Any]:
        value = plain_value(getattr(self.params, name, default))
        if not isinstance(value, (list, tuple)):
            return [value] * self.rows
        return self.fit(name, value)

    def fit(self, name: str, value: Sequence[Any]) -> list[Any]:
        length = len(value)
        if length == self.rows:
            return list(value)
        if length == 0:
            raise ValueError(f"sampling field {name} is empty")
        if length > self.batch_size:
            raise ValueError(f"sampling field {name} has {length} rows, the sampler has {self.batch_size}")
        if length == 1:
            return [value[0]] * self.rows
        if length < self.rows:
            raise ValueError(f"sampling field {name} has {length} rows for {self.rows} active rows")
        # Entries past the active rows belong to nobody and are not validated.
        return list(value[: self.rows])

    def floats(self, name: str, default: float) -> list[float]:
        column = self.read(name, default)
        try:
            values = [float(value) for value in column]
        except (TypeError, ValueError):
            for row, value in enumerate(column):
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    self.refuse(TypeError, row, f"{name} must be a number, got {value!r}")
            raise
        if not math.isfinite(sum(values)):
            for row, number in enumerate(values):
                if not math.isfinite(number):
                    self.refuse(ValueError, row, f"{name} must be finite, got {number!r}")
        return values


def _active_row_count(temperature: Any, batch_size: int, active_rows: int | None) -> int:
    """Number of rows that the parameters describe; an explicit count makes a scalar apply to all of them."""
    if active_rows is not None and (type(active_rows) is not int or active_rows < 1):
        raise ValueError(f"active_rows must be a positive integer, got {active_rows!r}")
    if not isinstance(temperature, (list, tuple)):
        rows = 1 if active_rows is None else active_rows
    else:
        rows = len(temperature)
        if rows == 0:
            raise ValueError("sampling field temperature is empty")
        if active_rows is not None and rows != active_rows:
            if rows != 1:
                raise ValueError(f"sampling field temperature has {rows} rows for {active_rows} active rows")
            rows = active_rows
    if rows > batch_size:
        raise ValueError(f"{rows} sampled rows exceed the sampler's {batch_size} rows")
    return rows


def _top_k_rows(columns: _Columns, greedy: list[bool], limit: int) -> list[int]:
    column = columns.read("top_k", None)
    for row, value in enumerate(column):
        if greedy[row]:
            column[row] = 1
        elif type(value) is not int:
            columns.refuse(TypeError, row, f"top_k must be an integer, got {value!r}")
        elif not 1 <= value <= limit:
            columns.refuse(
                ValueError,
                row,
                f"top_k {value} is outside [1, {limit}], the device sampler's range; sample this request on the host",
            )
    return column


def _seed_rows(columns: _Columns) -> list[int | None]:
    seed = plain_value(getattr(columns.params, "seed", None))
    if not isinstance(seed, (list, tuple)):
        # One seed names one random stream, so it belongs to one row and is not repeated.
        seed = [seed]
    if len(seed) > columns.batch_size:
        raise ValueError(f"sampling field seed has {len(seed)} rows, the sampler has {columns.batch_size}")
    rows: list[int | None] = [None] * columns.rows
    for row, value in enumerate(seed[: columns.rows]):
        if value is None:
            continue
        if type(value) is not int:
            columns.refuse(TypeError, row, f"seed must be an integer or None, got {value!r}")
        rows[row] = None if value == -1 else value
    return rows


def _logprob_rows(columns: _Columns) -> tuple[list[bool], list[int], list[str]]:
    enabled = [bool(value) for value in columns.read("enable_log_probs", False)]
    if True not in enabled:
        return enabled, [0] * columns.rows, ["none"] * columns.rows
    counts: list[int] = []
    modes: list[str] = []
    for row, value in enumerate(columns.read("num_logprobs", 0)):
        count = 0 if value is None or not enabled[row] else value
        if type(count) is not int:
            columns.refuse(TypeError, row, f"num_logprobs must be an integer, got {value!r}")
        if count < 0:
            columns.refuse(ValueError, row, f"num_logprobs must not be negative, got {count}")
        counts.append(count)
        modes.append("none" if not enabled[row] else "sampled_token" if count == 0 else "top_n")
    return enabled, counts, modes


def prepare_sampling_params(
    params: Any,
    batch_size: int,
    *,
    max_device_top_k: int,
    allow_force_argmax: bool,
    prompt_tokens: Any = None,
    output_tokens: Any = None,
    slot_remap: Any = None,
    active_rows: int | None = None,
    row_labels: Sequence[int] | None = None,
) -> PreparedSamplingParams:
    """Normalise one request's parameters to ``batch_size`` rows.

    ``active_rows`` is the number of rows in use: a scalar temperature then applies to each of them. Without
    it, the temperature decides: a scalar means one row, a list means its length. A one-element field
    applies to every active row, but a scalar seed belongs to row 0 alone. ``row_labels`` names the rows in
    errors (source rows or slots). Temperature 0 becomes ``k=1, p=0.0, t=1.0``; any other is stored
    inverted. ``top_k`` of a stochastic row outside ``[1, max_device_top_k]`` is refused, never clamped;
    rows past the active ones are never validated.

    Raises ``ValueError`` or ``TypeError`` naming row, value and limit. Follows chapter 20, section 10.2.
    """
    for name, limit in (("batch_size", batch_size), ("max_device_top_k", max_device_top_k)):
        if type(limit) is not int or limit < 1:
            raise ValueError(f"{name} must be a positive integer, got {limit!r}")
    if not isinstance(allow_force_argmax, bool):
        raise TypeError(f"allow_force_argmax must be a bool, got {allow_force_argmax!r}")
    require_sampling_dataclass(params)
    rows = _active_row_count(plain_value(params.temperature), batch_size, active_rows)
    columns = _Columns(params, rows, batch_size, row_labels)

    temperatures = columns.floats("temperature", 0.0)
    if min(temperatures) < 0.0:
        row = next(index for index, value in enumerate(temperatures) if value < 0.0)
        columns.refuse(ValueError, row, f"temperature must not be negative, got {temperatures[row]}")
    greedy = [value == 0.0 for value in temperatures]
    top_p = columns.floats("top_p", 1.0)
    enabled, counts, modes = _logprob_rows(columns)
    paths = [
        "argmax" if is_greedy and allow_force_argmax and not wants else "topk"
        for is_greedy, wants in zip(greedy, enabled, strict=True)
    ]
    values: dict[str, list[Any]] = {
        "top_k": _top_k_rows(columns, greedy, max_device_top_k),
        "top_p": [0.0 if is_greedy else min(max(p, 0.0), 1.0) for p, is_greedy in zip(top_p, greedy, strict=True)],
        "temperature": [1.0 if value == 0.0 else 1.0 / value for value in temperatures],
        "presence_penalty": columns.floats("presence_penalty", 0.0),
        "frequency_penalty": columns.floats("frequency_penalty", 0.0),
        "repetition_penalty": [value or 1.0 for value in columns.floats("repetition_penalty", 1.0)],
        "seeds": _seed_rows(columns),
        "enable_log_probs": enabled,
        "num_logprobs": counts,
        "logprob_modes": modes,
        "greedy_mask": greedy,
        "row_paths": paths,
        "active_mask": [True] * rows,
    }
    spare = batch_size - rows
    return PreparedSamplingParams(
        **{name: tuple(column) + (NEUTRAL_ROW[name],) * spare for name, column in values.items()},
        sampling_path="argmax" if paths.count("argmax") == rows else "topk",
        active_rows=rows,
        batch_size=batch_size,
        max_device_top_k=max_device_top_k,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        slot_remap=slot_remap,
    )
