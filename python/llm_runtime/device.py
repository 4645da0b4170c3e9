# SPDX-License-Identifier: Apache-2.0
"""How the runtime finds the device namespace (real ttnn, or a twin with the same names), and host tensor
conversion.

Owners look the namespace up once and keep it; hot paths then call the namespace's functions themselves.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np


def namespace_of(mesh: Any) -> Any:
    """The module whose functions serve `mesh`: its `ttnn_namespace`, else the top-level package of its class.

    `TypeError` when that module is no device namespace (it has no `Tensor` and `deallocate`).
    """
    namespace = _declared_or_package(mesh)
    if not _is_device_namespace(namespace):
        raise TypeError(f"{type(mesh).__module__}.{type(mesh).__qualname__} belongs to no device namespace")
    return namespace


def tensor_namespace(value: Any) -> Any | None:
    """The namespace of a device-library tensor (on host or device), or `None` for every other object."""
    kind: Any = type(value)  # a class is hashable, but its type says nothing of that
    namespace = _tensor_namespace_of(kind)
    if namespace is not None:
        return namespace
    declared: Any = getattr(value, "ttnn_namespace", None)
    return declared if _is_device_namespace(declared) and isinstance(value, declared.Tensor) else None


def host_tensor(namespace: Any, array: np.ndarray[Any, Any], dtype: Any) -> Any:
    """A row-major host tensor of `array`'s shape with the namespace's `dtype` (float32 in for bfloat16)."""
    return namespace.Tensor(array, dtype)


def numpy_of(tensor: Any) -> np.ndarray[Any, Any]:
    """The values of a host tensor (or an array that is one already) as NumPy; bfloat16 arrives as float32.

    A block format arrives as float32 too. `TypeError` for a value that is neither an array nor offers `to_numpy()`.
    """
    if isinstance(tensor, np.ndarray):
        array: np.ndarray[Any, Any] = tensor
    else:
        namespace = tensor_namespace(tensor)
        if namespace is not None:
            return tensor_values(namespace, tensor)
        to_numpy = getattr(tensor, "to_numpy", None) or getattr(tensor, "numpy", None)
        if not callable(to_numpy):
            raise TypeError(f"cannot read host values from {type(tensor).__name__}")
        array = to_numpy()
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def tensor_values(namespace: Any, tensor: Any) -> np.ndarray[Any, Any]:
    """`numpy_of` for a host tensor that is known to belong to `namespace`."""
    if tensor.dtype in _formats_without_numpy_type(namespace):
        # NumPy has no type for these formats: ttnn returns an array without shape or values.
        tensor = namespace.to_dtype(tensor, namespace.float32)
    array: np.ndarray[Any, Any] = tensor.to_numpy()
    return array


def _declared_or_package(value: Any) -> Any:
    declared = getattr(value, "ttnn_namespace", None)
    return declared if declared is not None else _package_module(type(value))


def _package_module(kind: type) -> Any:
    return sys.modules.get(kind.__module__.partition(".")[0])


# Asked for every tensor of every step. Bounded, so that classes which come and go are not kept for good.
@lru_cache(maxsize=256)
def _tensor_namespace_of(kind: type) -> Any | None:
    namespace = _package_module(kind)
    return namespace if _is_device_namespace(namespace) and issubclass(kind, namespace.Tensor) else None


@lru_cache(maxsize=16)
def _formats_without_numpy_type(namespace: Any) -> tuple[Any, ...]:
    return namespace.bfloat16, namespace.bfloat8_b, namespace.bfloat4_b


def _is_device_namespace(module: Any) -> bool:
    return isinstance(getattr(module, "Tensor", None), type) and hasattr(module, "deallocate")
