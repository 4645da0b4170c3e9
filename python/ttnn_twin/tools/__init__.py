# SPDX-License-Identifier: Apache-2.0
"""Diagnostic tools, where ttnn has them."""

from __future__ import annotations

from . import trace_allocation_tracker

__all__ = ["trace_allocation_tracker"]
