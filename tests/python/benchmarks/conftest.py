# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own modules, importable by name as their scripts see them."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
for folder in ("python", "cpp", "bindings"):
    path = str(BENCHMARKS / folder)
    if path not in sys.path:
        sys.path.append(path)
