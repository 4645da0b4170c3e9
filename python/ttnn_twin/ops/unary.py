# SPDX-License-Identifier: Apache-2.0
"""Element-wise functions of one tensor beside the activations."""

from __future__ import annotations

import numpy as np

from ..dtypes import bfloat8_b, bfloat16, float32
from ..memory import MemoryConfig
from ..tensor import Array, Tensor, TensorSpec
from .common import require_dtype, require_tensors, run_one


def log(
    input_tensor: Tensor, *, memory_config: MemoryConfig | None = None, output_tensor: Tensor | None = None
) -> Tensor:
    """Return the natural logarithm, in the layout and memory config of the tensor; of 0 it is -infinity.

    Raises:
        RuntimeError: the tensor holds integers or 4-bit block floats.
    """
    require_tensors("log", input_tensor=input_tensor)
    require_dtype("log", "input_tensor", input_tensor, {bfloat16, bfloat8_b, float32})
    memory = memory_config or input_tensor.memory_config()
    spec = TensorSpec(input_tensor.shape, input_tensor.dtype, input_tensor.layout, memory)

    def kernel(out: Array, arrays: list[Array]) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            np.log(arrays[0], out=out)

    return run_one("log", (input_tensor,), kernel, spec, output=output_tensor)
