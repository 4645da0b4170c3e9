# SPDX-License-Identifier: Apache-2.0
"""From raw host values to rows: tokens int64 ``[B]``, log-probabilities float32 ``[B]``, logits float32 ``[B,1,V]``.

Follows chapter 20, section 6.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_runtime._core import flat_int64, leading_logits
from llm_runtime.device import tensor_namespace, tensor_values
from llm_runtime.host_arrays import host_array

__all__ = [
    "concat_mesh_shards",
    "normalise_log_probs",
    "normalise_logits",
    "normalise_tokens",
    "split_output",
]

HostArray = np.ndarray[Any, Any]


def split_output(value: Any) -> tuple[Any, Any]:
    """Split a raw value into output and log-probabilities; a non-tuple has none, another length is a TypeError."""
    if not isinstance(value, tuple):
        return value, None
    if len(value) != 2:
        raise TypeError(f"a decode output must be a pair (output, log_probs), got {len(value)} elements")
    return value[0], value[1]


def concat_mesh_shards(value: Any, cluster_shape: tuple[int, int]) -> HostArray:
    """Join the device shards of a host tensor: columns of the mesh on the last axis, its rows on axis 1.

    Formats that NumPy does not have arrive as float32.
    """
    namespace = tensor_namespace(value)
    if namespace is None:
        return host_array(value, name="decode output")
    if cluster_shape == (1, 1):
        return tensor_values(namespace, value)
    rows, columns = cluster_shape
    shards = [tensor_values(namespace, shard) for shard in namespace.get_device_tensors(value)]
    if len(shards) == 1:
        return shards[0]
    lines = [np.concatenate(shards[row * columns : (row + 1) * columns], axis=-1) for row in range(rows)]
    return lines[0] if rows == 1 else np.concatenate(lines, axis=1)


def normalise_tokens(value: Any, *, lane_capacity: int, cluster_shape: tuple[int, int]) -> HostArray:
    """Token ids of the lane as int64 ``[B]``.

    A rank-4 result carries its rows on axis 2 when that is long enough, else on axis 3; other ranks are
    read flat. ValueError when there are fewer than ``B`` values.
    """
    array = concat_mesh_shards(value, cluster_shape)
    if array.size == lane_capacity:
        try:
            return flat_int64(array)
        except TypeError:
            # Another kind of number, or entries that lie apart.
            return array.reshape(-1).astype(np.int64)
    shape = array.shape
    if len(shape) >= 4:
        if shape[2] >= lane_capacity:
            array = array[0, 0, :lane_capacity, 0]
        elif shape[3] >= lane_capacity:
            array = array[0, 0, 0, :lane_capacity]
    array = array.reshape(-1)
    if len(array) < lane_capacity:
        raise ValueError(f"the sampler returned {len(array)} tokens for a lane of {lane_capacity} rows")
    return array[:lane_capacity].astype(np.int64)


def normalise_log_probs(value: Any, *, lane_capacity: int, cluster_shape: tuple[int, int]) -> Any:
    """Log-probabilities as float32 ``[B]`` from an array or a tensor (first replica); other objects pass.

    ValueError when there are fewer than ``B`` values.
    """
    if value is None:
        return None
    namespace = tensor_namespace(value)
    if namespace is not None:
        replica = value if cluster_shape == (1, 1) else namespace.get_device_tensors(value)[0]
        array = tensor_values(namespace, replica)
    else:
        try:
            array = host_array(value, name="log_probs")
        except TypeError:
            return value
    array = array.reshape(-1)
    if len(array) < lane_capacity:
        raise ValueError(f"the sampler returned {len(array)} log-probabilities for {lane_capacity} rows")
    return array[:lane_capacity].astype(np.float32)


def normalise_logits(value: Any, *, lane_capacity: int, vocab_size: int, cluster_shape: tuple[int, int]) -> HostArray:
    """Logits as contiguous float32 ``[B, 1, V]``: padding rows and padding columns are cut off.

    ValueError when the result has fewer rows or columns than asked for.
    """
    array = concat_mesh_shards(value, cluster_shape)
    if array.ndim < 2 or array.shape[-2] < lane_capacity or array.shape[-1] < vocab_size:
        raise ValueError(
            f"decode logits have shape {list(array.shape)}; at least {lane_capacity} rows and "
            f"{vocab_size} columns are needed"
        )
    try:
        return leading_logits(array, lane_capacity, vocab_size)
    except TypeError:
        # Another kind of number, or entries that lie apart.
        rows = array.reshape(-1, *array.shape[-2:])[0, :lane_capacity, :vocab_size]
        return rows.astype(np.float32, order="C").reshape(lane_capacity, 1, vocab_size)
