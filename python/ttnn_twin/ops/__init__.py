# SPDX-License-Identifier: Apache-2.0
"""Compute ops, under the names, keywords and checks of ttnn."""

from __future__ import annotations

from . import experimental, transformer
from .elementwise import add, eq, maximum, minimum, mul, multiply, plus_one, silu, sub, subtract
from .indexing import embedding, gather
from .joining import concat, pad
from .layout import (
    interleaved_to_sharded,
    sharded_to_interleaved,
    tilize,
    to_layout,
    to_memory_config,
    untilize,
)
from .matmul import linear, matmul
from .norm import rms_norm, softmax
from .program_configs import MathFidelity, SDPAProgramConfig, WormholeComputeKernelConfig
from .reduction import argmax, topk
from .reshape import permute, reshape, transpose, unsqueeze_to_4D
from .sampling import manual_seed, sampling
from .slicing import slice, split
from .typecast import typecast
from .unary import log

__all__ = [
    "MathFidelity",
    "SDPAProgramConfig",
    "WormholeComputeKernelConfig",
    "add",
    "argmax",
    "concat",
    "embedding",
    "eq",
    "experimental",
    "gather",
    "interleaved_to_sharded",
    "linear",
    "log",
    "manual_seed",
    "matmul",
    "maximum",
    "minimum",
    "mul",
    "multiply",
    "pad",
    "permute",
    "plus_one",
    "reshape",
    "rms_norm",
    "sampling",
    "sharded_to_interleaved",
    "silu",
    "slice",
    "softmax",
    "split",
    "sub",
    "subtract",
    "tilize",
    "to_layout",
    "to_memory_config",
    "topk",
    "transformer",
    "transpose",
    "typecast",
    "unsqueeze_to_4D",
    "untilize",
]
