# SPDX-License-Identifier: Apache-2.0
"""Compares what a model's modules get with what they declare; a help while a family is written (docs/new-model.md).

Follows chapter 40, section B.4.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llm_runtime.device import tensor_namespace

__all__ = ["InputMismatch", "check_module_inputs", "suspend_module_input_checks"]

MODES = ("prefill", "decode")
#: The method that takes a mode's input, by preference.
_METHODS = {"prefill": ("prefill_forward", "forward"), "decode": ("decode_forward",)}

_suspensions = threading.local()


@dataclass(frozen=True)
class InputMismatch:
    """A module whose input lay elsewhere than declared; both are memory configs."""

    module: str
    declared: Any
    actual: Any

    def __str__(self) -> str:
        return f"{self.module}: input has memory config {self.actual}, declared is {self.declared}"


@contextmanager
def check_module_inputs(
    named_modules: Iterable[tuple[str, Any]] | None, *, mode: str = "decode"
) -> Iterator[list[InputMismatch]]:
    """Watch the modules of `iter_executor_named_modules()` for the duration; yields the mismatches found so far.

    A module takes part when its `config` declares `decode_input_memcfg` (or `prefill_input_memcfg`). The first argument
    of every call is read once; equal placements cost a comparison and are never formatted. `None` watches nothing.
    `ValueError` for another mode, `AttributeError` naming a module that declares an input without the method. The
    methods come back on every way out.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
    found: list[InputMismatch] = []
    wrapped: list[tuple[Any, str, Any]] = []
    try:
        for name, module in named_modules or ():
            declared = getattr(getattr(module, "config", None), f"{mode}_input_memcfg", None)
            if declared is None:
                continue
            method = next((method for method in _METHODS[mode] if callable(getattr(module, method, None))), None)
            if method is None:
                raise AttributeError(f"module {name} declares {mode}_input_memcfg but has no {_METHODS[mode][0]}")
            own = vars(module).get(method, _ABSENT)
            setattr(module, method, _watched(name, getattr(module, method), declared, found))
            wrapped.append((module, method, own))
        yield found
    finally:
        for module, method, own in reversed(wrapped):
            if own is _ABSENT:
                delattr(module, method)
            else:
                setattr(module, method, own)


@contextmanager
def suspend_module_input_checks() -> Iterator[None]:
    """No checks on this thread for the duration; suspensions nest, and checking resumes after the outermost one."""
    _suspensions.depth = getattr(_suspensions, "depth", 0) + 1
    try:
        yield
    finally:
        _suspensions.depth -= 1


_ABSENT: Any = object()


def _watched(name: str, original: Any, declared: Any, found: list[InputMismatch]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not getattr(_suspensions, "depth", 0):
            value: Any = args[0] if args else next(iter(kwargs.values()), None)
            if tensor_namespace(value) is not None and value.is_allocated():
                actual = value.spec.memory_config
                if actual != declared:
                    found.append(InputMismatch(name, declared, actual))
        return original(*args, **kwargs)

    return call
