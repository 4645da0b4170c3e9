# SPDX-License-Identifier: Apache-2.0
"""Checks that every public constructor of the package shares.

The exception types follow chapter 10, section 0.2: a bad integer is a `ValueError` even when its type is
wrong, a flag that is no bool is a `TypeError`.
"""

from __future__ import annotations

from typing import Any, TypeGuard


def is_positive_int(value: object) -> TypeGuard[int]:
    """Whether `value` is a plain Python int above zero (bool, float and NumPy integers are refused)."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def positive_int(value: Any, *, name: str) -> int:
    """Return `value` when it is a positive integer, otherwise raise `ValueError` naming it."""
    if not is_positive_int(value):
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def require_bool(value: Any, *, name: str) -> bool:
    """Return `value` when it is exactly a bool, otherwise raise `TypeError` naming it."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r} of type {type(value).__name__}")
    return value


def require_instance(value: Any, expected: type, *, name: str) -> None:
    """Raise `TypeError` naming the field unless `value` is an instance of `expected` (subclasses pass)."""
    if not isinstance(value, expected):
        raise TypeError(f"{name} must be a {expected.__name__}, got {type(value).__name__}")
