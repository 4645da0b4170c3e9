# SPDX-License-Identifier: Apache-2.0
"""Decodes host copies of prefill outputs: token rows, logits rows, log-probabilities.

Follows chapter 20, sections 6.4 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_runtime.device import numpy_of, tensor_namespace
from llm_runtime.prefill.plan import HostArray

#: Marks a row without a log-probability; a real one is never above 0.
NO_LOG_PROB = 1.0


def token_rows(value: Any, rows: int) -> HostArray:
    """The first ``rows`` sampled token ids, int64 ``[rows]``.

    Tokens are replicated, so only the first device's copy is converted. The sampler's rows lie in the
    second-last or the last dimension. Fewer than ``rows`` ids are a ``ValueError``.
    """
    array = numpy_of(_first_replica(value))
    if array.ndim >= 4 and array.shape[2] >= rows:
        array = array[0, 0, :rows, 0]
    elif array.ndim >= 4:
        array = array[0, 0, 0, :rows]
    flat = array.reshape(-1)[:rows]
    if flat.shape[0] < rows:
        raise ValueError(f"the sampler returned {flat.shape[0]} tokens, {rows} rows were sampled")
    result: HostArray = flat.astype(np.int64)
    return result


def logits_array(value: Any, cluster_shape: tuple[int, int]) -> HostArray:
    """Host logits ``[d0, d1, rows, V]`` of a mesh: columns concatenated along V, mesh rows along dimension
    1."""
    ns = tensor_namespace(value)
    if ns is None:
        return numpy_of(value)
    if value.storage_type() != ns.StorageType.HOST:
        raise ValueError("prefill logits are still on the device; they must be read to the host first")
    parts = [numpy_of(part) for part in ns.get_device_tensors(value)]
    if len(parts) == 1:
        return parts[0]
    columns = cluster_shape[1]
    mesh_rows = [np.concatenate(parts[at : at + columns], axis=-1) for at in range(0, len(parts), columns)]
    result: HostArray = np.concatenate(mesh_rows, axis=1)
    return result


def log_prob_values(payload: Any, rows: int) -> HostArray:
    """A log-probability payload as float32 ``[rows]``; one value serves every row, fewer than ``rows`` do
    not.

    Accepts a number, a sequence or a tensor (first device's copy); anything else is a ``TypeError``.
    """
    if isinstance(payload, (int, float, np.number)):
        flat = np.full(1, payload, np.float32)
    elif isinstance(payload, (list, tuple)):
        flat = np.asarray(payload, np.float32).reshape(-1)
    elif isinstance(payload, np.ndarray) or hasattr(payload, "to_numpy") or hasattr(payload, "numpy"):
        flat = numpy_of(_first_replica(payload)).astype(np.float32).reshape(-1)
    else:
        raise TypeError(f"cannot read log-probabilities from {type(payload).__name__}")
    if flat.shape[0] == 1:
        return np.repeat(flat, rows)
    if flat.shape[0] < rows:
        raise ValueError(f"{flat.shape[0]} log-probabilities for {rows} rows")
    return flat[:rows]


def merge_log_probs(payloads: Sequence[tuple[Sequence[int], HostArray]], batch_size: int) -> HostArray | None:
    """Float32 ``[batch_size]`` with each payload at its source rows and 1.0 elsewhere; ``None`` without
    payloads."""
    if not payloads:
        return None
    merged = np.full(batch_size, NO_LOG_PROB, np.float32)
    for source_rows, values in payloads:
        merged[list(source_rows)] = values
    return merged


def _first_replica(value: Any) -> Any:
    ns = tensor_namespace(value)
    if ns is None:
        return value
    replicas = ns.get_device_tensors(value)
    if not replicas:
        raise ValueError("a sampled output has no device tensor")
    return replicas[0]
