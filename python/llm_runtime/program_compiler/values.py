# SPDX-License-Identifier: Apache-2.0
"""What the program registry remembers of one compiled program: key, signature and output contract."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_runtime.device import tensor_namespace
from llm_runtime.digest import ProgramKey


@dataclass(frozen=True)
class OutputSpec:
    """Shape, dtype, layout and placement that a program's (first) output is promised to have."""

    shape: tuple[int, ...]
    dtype: Any
    layout: Any = None
    memory_config: Any = None

    @classmethod
    def from_value(cls, value: Any) -> OutputSpec:
        """Describe an output: a device-library tensor, a host array, or the first entry of a tuple of those.

        Placement is known for allocated device tensors only. `ValueError` for an empty tuple, `TypeError` for
        anything else (a list, `None`, a tuple inside a tuple).
        """
        if isinstance(value, tuple):
            if not value:
                raise ValueError("cannot derive an output spec from an empty tuple")
            value = value[0]
        if _is_host_array(value):
            return cls(shape=tuple(int(size) for size in value.shape), dtype=value.dtype)
        if tensor_namespace(value) is None:
            raise TypeError(f"cannot derive an output spec from {type(value).__name__}")
        is_allocated = getattr(value, "is_allocated", None)
        placed = callable(is_allocated) and is_allocated()
        return cls(
            shape=tuple(int(size) for size in value.shape),
            dtype=value.dtype,
            layout=value.layout,
            memory_config=value.spec.memory_config if placed else None,
        )


@dataclass(frozen=True)
class CompiledProgram:
    """One registered program. Holds no tensors and no trace state."""

    key: ProgramKey
    signature: Any
    output_spec: OutputSpec


def _is_host_array(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))
