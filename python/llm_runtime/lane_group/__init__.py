# SPDX-License-Identifier: Apache-2.0
"""Data-parallel fanout: several lanes that look like one executor (chapter 30, section 7)."""

from llm_runtime.lane_group.group import LaneGroupExecutor

__all__ = ["LaneGroupExecutor"]
