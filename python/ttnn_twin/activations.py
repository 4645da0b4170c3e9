# SPDX-License-Identifier: Apache-2.0
"""Names of element-wise functions that ops accept as fused activations."""

from __future__ import annotations

from .dtypes import _Identity


class UnaryOpType(_Identity):
    """Element-wise function of one tensor."""

    EXP = 0
    GELU = 2
    RELU = 3
    SQRT = 4
    SIGMOID = 5
    TANH = 7
    SILU = 47
