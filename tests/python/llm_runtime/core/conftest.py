# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the C++ core."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Run code in a fresh interpreter with another hash seed; return its output, fail on a leak report."""

    def run(code: str) -> str:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "4321"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert "leak" not in done.stderr, done.stderr
        return done.stdout

    return run
