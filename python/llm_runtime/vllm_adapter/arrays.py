# SPDX-License-Identifier: Apache-2.0
"""Integer arguments of a server's calls in the width that the runtime wants, in the caller's kind of array."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from llm_runtime.host_arrays import host_array

__all__ = ["integers"]


def integers(value: Any, dtype: type[np.signedinteger[Any]], *, name: str) -> Any:
    """`value` as integers of `dtype`: torch tensors stay torch, everything else (lists too) becomes NumPy.

    An array that has the dtype comes back as it is. `TypeError` for values that are no integers, `ValueError` for
    ragged lists and for values that the dtype cannot hold, naming the argument.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool:
            raise TypeError(f"{name} must hold integers, got {value.dtype}")
        wanted = getattr(torch, np.dtype(dtype).name)
        if value.dtype is wanted:
            return value
        _check_range(host_array(value, name=name), dtype, name)
        return value.to(wanted)
    array = _as_array(value, name)
    if array.dtype == dtype:
        return array
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers, got {array.dtype}")
    _check_range(array, dtype, name)
    return array.astype(dtype)


def _as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    if not isinstance(value, (list, tuple)):
        return np.asarray(value) if isinstance(value, (int, np.integer)) else host_array(value, name=name)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} has rows of different lengths") from error


def _check_range(array: np.ndarray[Any, Any], dtype: type[np.signedinteger[Any]], name: str) -> None:
    limits = np.iinfo(dtype)
    if array.size and np.iinfo(array.dtype).max > limits.max:
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise ValueError(f"{name} holds {high if high > limits.max else low}, outside {np.dtype(dtype).name}")
