# SPDX-License-Identifier: Apache-2.0
"""From results per lane to one result in the order of the caller's rows.

Follows chapter 30, sections 7.4 and 7.5; log-probabilities are not aggregated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_runtime.host_arrays import host_array, result_like
from llm_runtime.lane_group.routing import HostArray, LaneRows


def merge_prefill(parts: Sequence[tuple[LaneRows, Any]], *, row_count: int, tokens: Any) -> Any:
    """Lane results of a prefill in source-row order.

    Integers become int64 `[row_count]`, floats `[row_count, …]` with the lanes' trailing shape and dtype. The result
    is a pair (output, None) when a lane gave a pair, `None` when all gave `None`, a list in lane order when an output
    is no array. A call without rows gives no tokens, in the kind of `tokens`. `TypeError` for a tuple that is no
    pair, `ValueError` for a wrong number of rows, `NotImplementedError` for log-probabilities.
    """
    if not parts:
        return result_like(tokens)(np.zeros(0, np.int64))
    outputs = [_output(value, routed.lane) for routed, value in parts]
    is_pair = any(isinstance(value, tuple) for _, value in parts)
    merged = _merge_rows([routed for routed, _ in parts], outputs, row_count)
    return (merged, None) if is_pair else merged


def merge_decode(values: Sequence[Any], *, lane_capacity: int, is_tokens: bool) -> tuple[Any, None]:
    """Lane results of a decode step as (tokens int64 `[B]` or floats `[B, …]`, None), `B` rows of all lanes in order.

    A lane without a result (`None`: no row of it was active in a sampled step) gives zeros. `TypeError` for an output
    without rows, `ValueError` for another number of rows than the lane has, `NotImplementedError` for
    log-probabilities.
    """
    arrays: list[HostArray] = []
    like = None
    for lane, value in enumerate(values):
        output = _output(value, lane)
        if output is None and is_tokens:
            arrays.append(np.zeros(lane_capacity, np.int64))
            continue
        array = _rows(output, lane)
        arrays.append(_lane_rows(array, lane, lane_capacity, is_tokens=is_tokens))
        like = like or result_like(output)
    merged = np.concatenate(arrays)
    return (merged if like is None else like(merged)), None


def _output(value: Any, lane: int) -> Any:
    if not isinstance(value, tuple):
        return value
    if len(value) != 2:
        raise TypeError(f"lane {lane} returned {len(value)} values; expected an output or (output, log_probs)")
    output, log_probs = value
    if log_probs is not None:
        raise NotImplementedError(
            f"lane {lane} returned log probabilities, which a lane group does not aggregate; turn them off"
        )
    return output


def _merge_rows(lanes: Sequence[LaneRows], outputs: Sequence[Any], row_count: int) -> Any:
    if all(output is None for output in outputs):
        return None
    try:
        arrays = [host_array(output, name="output") for output in outputs]
    except TypeError:
        return list(outputs)
    if any(array.ndim == 0 for array in arrays):
        return list(outputs)
    parts = [
        _lane_rows(array, routed.lane, len(routed.rows), is_tokens=False)
        for routed, array in zip(lanes, arrays, strict=True)
    ]
    if len(parts) == 1:
        merged = parts[0]
    else:
        merged = np.empty((row_count, *parts[0].shape[1:]), parts[0].dtype)
        for routed, part in zip(lanes, parts, strict=True):
            if part.shape[1:] != merged.shape[1:]:
                raise ValueError(
                    f"lane {routed.lane} returned rows of shape {list(part.shape[1:])}, "
                    f"lane {lanes[0].lane} of {list(merged.shape[1:])}"
                )
            merged[routed.rows] = part
    return result_like(outputs[0])(merged)


def _rows(output: Any, lane: int) -> HostArray:
    try:
        array = host_array(output, name="output")
    except TypeError as error:
        raise TypeError(f"lane {lane} returned a decode output without rows: {error}") from error
    if array.ndim == 0:
        raise TypeError(f"lane {lane} returned a decode output without rows: a scalar")
    return array


def _lane_rows(array: HostArray, lane: int, rows: int, *, is_tokens: bool) -> HostArray:
    """Tokens flat and int64, everything else as it is; the lane's rows must all be there."""
    if is_tokens or array.dtype.kind in "iub":
        array = array.reshape(-1).astype(np.int64, copy=False)
    if len(array) != rows:
        raise ValueError(f"lane {lane} returned {len(array)} rows for its {rows} rows")
    return array
