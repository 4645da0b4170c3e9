# SPDX-License-Identifier: Apache-2.0
"""Tracking of allocations made while a trace is live; the twin tracks them always (``strict_allocations``)."""

from __future__ import annotations

from ..trace import acknowledge_corruptible

__all__ = ["acknowledge_corruptible"]
