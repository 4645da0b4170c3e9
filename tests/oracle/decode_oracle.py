# SPDX-License-Identifier: Apache-2.0
"""A slow, plain model of `DecodeTables`, written from chapter 20, section 4.3."""

from __future__ import annotations

from dataclasses import dataclass

Rows = list[list[int]]


@dataclass(frozen=True)
class Layout:
    """The decode part of a page-table layout; widths count blocks."""

    block_size: int
    raw_capacity_width: int
    decode_width: int


class DecodeOracle:
    """Normalises with plain lists and remembers only the last submitted rows."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.submitted: Rows | None = None

    def _checked_blocks(self, position: int, width: int) -> int:
        blocks = -(-max(0, position + 1) // self.layout.block_size)
        if blocks > min(self.layout.raw_capacity_width, width):
            raise ValueError(f"position {position} needs {blocks} blocks")
        return blocks

    def _prefix(self, position: int, width: int, *, device_feedback: bool) -> int:
        blocks = self._checked_blocks(position, width)
        at_block_end = position >= 0 and (position + 1) % self.layout.block_size == 0
        if device_feedback and at_block_end:
            blocks = min(blocks + 1, self.layout.raw_capacity_width, width)
        return blocks

    def prepare(
        self,
        *,
        start_pos: list[int],
        page_table: Rows,
        device_feedback: bool,
        reload_inputs: bool | None,
        reload_page_table: bool,
    ) -> tuple[Rows, bool, tuple[int, ...]]:
        """Return (normalised rows, page_table_changed, active slots)."""
        active = tuple(slot for slot, position in enumerate(start_pos) if position >= 0)
        if reload_inputs is False and not reload_page_table:
            if self.submitted is None:
                raise RuntimeError("no step was submitted")
            return self.submitted, False, active
        rows = []
        for position, row in zip(start_pos, page_table, strict=True):
            if reload_inputs is None:
                count = self._prefix(position, len(row), device_feedback=device_feedback)
            else:
                if reload_inputs:
                    self._checked_blocks(position, len(row))
                count = min(len(row), self.layout.raw_capacity_width)
            rows.append(row[:count] + [0] * (self.layout.decode_width - count))
        return rows, rows != self.submitted, active
