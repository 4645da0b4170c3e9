# SPDX-License-Identifier: Apache-2.0
"""Compute ops."""

from __future__ import annotations

__all__: list[str] = []
