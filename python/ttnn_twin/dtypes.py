# SPDX-License-Identifier: Apache-2.0
"""Data types, layouts and storage kinds, under the names ttnn gives them, and the NumPy types that hold them."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

TILE_SIZE = 32


class _Identity(enum.Enum):
    """Enumeration hashed by identity: members are looked up in program-cache keys on every op."""

    __hash__ = object.__hash__


class DataType(_Identity):
    """Element type of a tensor."""

    BFLOAT16 = 0
    FLOAT32 = 1
    UINT32 = 2
    BFLOAT8_B = 3
    BFLOAT4_B = 4
    UINT8 = 5
    UINT16 = 6
    INT32 = 7


class Layout(_Identity):
    """Order of the elements in memory: plain rows, or tiles of 32 x 32."""

    ROW_MAJOR = 0
    TILE = 1


class StorageType(_Identity):
    """Where the elements of a tensor live."""

    HOST = 0
    DEVICE = 1


bfloat16 = DataType.BFLOAT16
float32 = DataType.FLOAT32
uint32 = DataType.UINT32
bfloat8_b = DataType.BFLOAT8_B
bfloat4_b = DataType.BFLOAT4_B
uint8 = DataType.UINT8
uint16 = DataType.UINT16
int32 = DataType.INT32
ROW_MAJOR_LAYOUT = Layout.ROW_MAJOR
TILE_LAYOUT = Layout.TILE

BLOCK_FLOAT_TYPES = frozenset({bfloat8_b, bfloat4_b})
"""Types that exist in tile layout only: 16 elements of a row share an exponent."""

ROUNDED_TYPES = frozenset({bfloat16, bfloat8_b, bfloat4_b})
"""Types whose values a mesh with ``precision="bfloat16"`` rounds to bfloat16."""

_F32, _I32, _U32 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint32)
_STORAGE: dict[DataType, np.dtype[Any]] = {
    bfloat16: _F32, float32: _F32, bfloat8_b: _F32, bfloat4_b: _F32,
    uint32: _U32, uint16: _U32, uint8: _U32, int32: _I32,
}  # fmt: skip
_ELEMENT_BYTES = {
    bfloat16: 2.0, float32: 4.0, bfloat8_b: 1088 / 1024, bfloat4_b: 576 / 1024,
    uint32: 4.0, uint16: 2.0, uint8: 1.0, int32: 4.0,
}  # fmt: skip


def storage_dtype(dtype: DataType) -> np.dtype[Any]:
    """Return the NumPy type the twin stores ``dtype`` in: float32, int32 or uint32."""
    return _STORAGE[dtype]


_DEFAULT_TYPES = {"f4": float32, "i4": int32, "u4": uint32, "u2": uint16, "u1": uint8}
_RESULTS: dict[DataType, np.dtype[Any]] = {uint16: np.dtype(np.uint16), uint8: np.dtype(np.uint8)}
_PLAIN_ELEMENTS = frozenset({*_DEFAULT_TYPES, "b1"})
_WIDE_ELEMENTS = frozenset({"f8", "i8"})


def default_type(elements: np.dtype[Any]) -> DataType | None:
    """Return the device type of NumPy ``elements``, or ``None`` when there is none."""
    return _DEFAULT_TYPES.get(elements.str[1:])


def takes_elements(dtype: DataType, elements: np.dtype[Any]) -> bool:
    """Return whether a tensor of ``dtype`` can be made from NumPy ``elements``: the conversions ttnn has."""
    if elements.str[1:] in _PLAIN_ELEMENTS:
        return True
    if storage_dtype(dtype) is _F32:
        return dtype is float32 and elements.str[1:] in _WIDE_ELEMENTS
    return elements.kind in "iu"


def result_dtype(dtype: DataType) -> np.dtype[Any]:
    """Return the NumPy type in which the elements of ``dtype`` come back."""
    return _RESULTS.get(dtype, _STORAGE[dtype])


def storage_bytes(dtype: DataType, volume: int) -> int:
    """Return the bytes that ``volume`` padded elements of ``dtype`` take on the device."""
    return int(_ELEMENT_BYTES[dtype] * volume)


# Typed, because NumPy 1 computes a scalar array and a Python number in int64.
_SHIFT, _ONE, _HALF, _UPPER_HALF = np.uint32(16), np.uint32(1), np.uint32(0x7FFF), np.uint32(0xFFFF0000)


def round_to_bfloat16(array: np.ndarray[Any, Any]) -> None:
    """Round a float32 array to bfloat16 values (nearest, ties to even) in place.

    On the bits, which takes less than half the time of a cast to ``ml_dtypes.bfloat16`` and back.
    """
    bits = array.view(np.uint32)
    carry = bits >> _SHIFT
    carry &= _ONE
    carry += _HALF
    bits += carry
    bits &= _UPPER_HALF
