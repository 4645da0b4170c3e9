# SPDX-License-Identifier: Apache-2.0
"""Device dtypes by name: the host dtype that stands for each, and its storage size."""

from __future__ import annotations

from typing import Any

import numpy as np

_HOST_NAMES = {
    "bfloat16": "bfloat16",
    "bfloat8_b": "bfloat16",
    "bfloat4_b": "bfloat16",
    "float32": "float32",
    "int32": "int32",
    "uint32": "uint32",
    "uint16": "uint16",
    "uint8": "uint8",
}

# Block formats without their shared exponents: one byte per 16 values, which no capacity figure needs.
_BITS = {"bfloat8_b": 8, "bfloat4_b": 4, "bfloat16": 16, "uint16": 16, "uint8": 8}


def torch_dtype_for_ttnn(dtype: Any) -> Any:
    """The torch dtype that a server uses for a device dtype; `ValueError` when there is none.

    bfloat16, bfloat8_b and bfloat4_b map to `torch.bfloat16`, the others to their namesake. Imports torch here,
    because nothing else in the package needs it.
    """
    name = host_dtype_name(dtype)
    import torch

    return getattr(torch, name)


def host_dtype_name(dtype: Any) -> str:
    """Name of the host dtype that stands for a device dtype; `ValueError` when there is none."""
    try:
        return _HOST_NAMES[_device_dtype_name(dtype)]
    except KeyError:
        raise ValueError(f"no host dtype stands for device dtype {dtype!r}") from None


def server_dtype_name(dtype: Any) -> str:
    """Name of a torch, NumPy or ml_dtypes dtype; `TypeError` for anything else, also for a plain string."""
    if type(dtype).__module__.partition(".")[0] == "torch" and str(dtype).startswith("torch."):
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, np.dtype):
        return str(dtype.name)
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        return str(np.dtype(dtype).name)
    raise TypeError(f"dtype must be a torch or NumPy dtype, got {dtype!r} of type {type(dtype).__name__}")


def is_block_format(dtype: Any) -> bool:
    """Whether values share exponents, so that the host must pack them."""
    return _device_dtype_name(dtype) in ("bfloat8_b", "bfloat4_b")


def stored_bytes(elements: int, dtype: Any) -> int:
    """Bytes that `elements` values of a device dtype take."""
    return elements * _BITS.get(_device_dtype_name(dtype), 32) // 8


def _device_dtype_name(dtype: Any) -> str:
    name = getattr(dtype, "name", None)
    return (name if isinstance(name, str) else str(dtype)).rpartition(".")[2].lower()
