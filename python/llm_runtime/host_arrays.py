# SPDX-License-Identifier: Apache-2.0
"""Host arrays in and out: NumPy arrays, torch CPU tensors, other CPU buffers; torch is never imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

#: `torch.Tensor` once one has been seen. Looking it up costs as much as half a view.
_torch_tensor: Any = None


def host_array(value: Any, *, name: str) -> np.ndarray[Any, Any]:
    """View `value` as a NumPy array of the same shape and dtype, without copying.

    NumPy arrays come back as they are, torch CPU tensors as their `.numpy()` view, other objects through
    DLPack or the buffer protocol. Anything else, also a list and a torch tensor that NumPy cannot view
    (another device, bfloat16), is a `TypeError` naming the argument.
    """
    if type(value) is _torch_tensor and value.is_cpu:
        try:
            view: np.ndarray[Any, Any] = value.numpy()
            return view
        except (RuntimeError, TypeError):
            pass  # below is said why, or autograd is told to look away
    if isinstance(value, np.ndarray):
        return value
    if _is_torch_tensor(value):
        return _torch_view(value, name=name)
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name}: NumPy cannot view this {type(value).__name__} on the CPU: {error}") from error
    try:
        return np.asarray(memoryview(value))
    except TypeError as error:
        raise TypeError(
            f"{name} must be a host array (NumPy, torch CPU tensor, CPU buffer), got {type(value).__name__}"
        ) from error


def result_like(reference: Any) -> Callable[[np.ndarray[Any, Any]], Any]:
    """How to hand a result to the caller who brought `reference`: torch in, torch out; else unchanged."""
    if type(reference) is np.ndarray or not _is_torch_tensor(reference):
        return _unchanged
    return _to_torch


def _is_torch_tensor(value: Any) -> bool:
    global _torch_tensor
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    _torch_tensor = torch.Tensor
    return True


def _torch_view(tensor: Any, *, name: str) -> np.ndarray[Any, Any]:
    """The view of a tensor that does not give one at the first asking, or why there is none."""
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} must be a CPU tensor, got a torch tensor on {tensor.device}")
    try:
        # Autograd may follow it.
        view: np.ndarray[Any, Any] = tensor.detach().numpy()
    except TypeError as error:
        raise TypeError(f"{name}: NumPy has no view of a torch tensor of dtype {tensor.dtype}") from error
    return view


def _to_torch(array: np.ndarray[Any, Any]) -> Any:
    # torch warns about (and would let callers write to) memory that NumPy holds read-only.
    return sys.modules["torch"].from_numpy(array if array.flags.writeable else array.copy())


def _unchanged(array: np.ndarray[Any, Any]) -> Any:
    return array
