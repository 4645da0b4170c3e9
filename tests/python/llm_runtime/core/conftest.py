# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the C++ core."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from support.planner import core_explain, core_plan


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


def call_with_defaults(
    lengths: Sequence[int],
    *,
    cached: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A planner call for rows of the given lengths with block 32, 32 slots, chunks of 2048 and waves of up to 8.

    Tokens are numbered 0, 1, 2, … row-major; table row r holds 256 * r + column.
    """
    count, width = len(lengths), max([128, *lengths])
    call = {
        "tokens": np.arange(count * width, dtype=np.int64).reshape(count, width),
        "page_table": np.arange(count * 256, dtype=np.int32).reshape(count, 256),
        "prompt_lens": np.array(lengths, np.int64),
        "start_pos": None if cached is None else np.array(cached, np.int64),
        "empty_slots": None if slots is None else list(slots),
        "block_size": 32,
        "max_batch_size": 32,
        "max_prefill_chunk_size": 2048,
        "supports_batched_prefill": True,
        "disable_batched_prefill": False,
        "max_prefill_batch_size": 8,
        "max_actual_page_table_width": 256,
        "canonical_page_table_width": 264,
        "start_alignment": changes.get("block_size", 32),
    }
    return {**call, **changes}


def plan_with_defaults(lengths: Sequence[int], **changes: Any) -> tuple[Any, ...]:
    """Plan a call with defaults."""
    return core_plan(**call_with_defaults(lengths, **changes))


@pytest.fixture
def planned() -> Callable[..., tuple[Any, ...]]:
    """The planner on the fixture of the acceptance rows; keywords replace its arguments."""
    return plan_with_defaults


@pytest.fixture
def explained() -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """As `planned`, with the fallbacks beside the requests."""
    return lambda lengths, **changes: core_explain(**call_with_defaults(lengths, **changes))
