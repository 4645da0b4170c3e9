# SPDX-License-Identifier: Apache-2.0
"""Configurations that select a program on hardware. The twin checks what depends on them; values never do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MathFidelity(enum.Enum):
    """Number of multiplier passes: LoFi is the fastest, HiFi4 the most exact."""

    LoFi = 0
    HiFi2 = 2
    HiFi3 = 3
    HiFi4 = 4


@dataclass(frozen=True, kw_only=True)
class WormholeComputeKernelConfig:
    """Arithmetic of a compute kernel."""

    math_fidelity: MathFidelity = MathFidelity.LoFi
    math_approx_mode: bool = True
    fp32_dest_acc_en: bool = False
    packer_l1_acc: bool = False


@dataclass(frozen=True, kw_only=True)
class SDPAProgramConfig:
    """Tiling of an attention op: sizes of query and key chunks, 0 for the op's own choice."""

    compute_with_storage_grid_size: tuple[int, int]
    q_chunk_size: int
    k_chunk_size: int
    exp_approx_mode: bool | None = None
