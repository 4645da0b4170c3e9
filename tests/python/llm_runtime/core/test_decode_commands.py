# SPDX-License-Identifier: Apache-2.0
"""Decode staging and the command table (chapter 20, sections 4.6 and 5.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llm_runtime._core import stage_decode_inputs, validate_decode_commands

NONE: dict[str, Any] = {
    "reset_batch": False,
    "reload_inputs": None,
    "reload_page_table": False,
    "reload_sampling_params": False,
    "reset_sampling_state": False,
    "has_sampling": False,
    "has_slot_remap": False,
    "resident_feedback": False,
}
RESIDENT: dict[str, Any] = {"reload_inputs": False, "has_sampling": True, "resident_feedback": True}


@pytest.mark.parametrize(
    "commands",
    [
        {},
        {"reset_batch": True, "has_sampling": True, "has_slot_remap": True},
        {"reload_inputs": True},
        {"reload_inputs": True, "has_slot_remap": True},
        {
            "reload_inputs": True,
            "has_sampling": True,
            "reload_sampling_params": True,
            "reset_sampling_state": True,
        },
        RESIDENT,
        {**RESIDENT, "reload_page_table": True, "reload_sampling_params": True},
    ],
)
def test_legal_commands_pass(commands: dict[str, Any]) -> None:
    validate_decode_commands(**{**NONE, **commands})


@pytest.mark.parametrize(
    ("commands", "named"),
    [
        ({"reload_page_table": True}, "reload_page_table"),
        ({"reload_sampling_params": True, "has_sampling": True}, "reload_sampling_params"),
        ({"reset_sampling_state": True, "has_sampling": True}, "reset_sampling_state"),
        ({"reset_batch": True, "reload_inputs": True}, "reset_batch"),
        ({**RESIDENT, "reset_batch": True}, "reset_batch"),
        ({"reload_inputs": True, "reload_page_table": True}, "reload_inputs and reload_page_table"),
        ({**RESIDENT, "reset_sampling_state": True}, "reset_sampling_state needs reload_inputs=True"),
        ({**RESIDENT, "has_sampling": False}, "needs sampling_params"),
        ({**RESIDENT, "resident_feedback": False}, "no device feedback"),
        ({"reload_inputs": True, "reload_sampling_params": True}, "reload_sampling_params needs sampling"),
        ({"reload_inputs": True, "reset_sampling_state": True}, "reset_sampling_state needs sampling"),
        ({**RESIDENT, "has_slot_remap": True}, "slot_remap"),
    ],
)
def test_illegal_commands_name_the_command(commands: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        validate_decode_commands(**{**NONE, **commands})


def test_numbers_are_no_commands() -> None:
    with pytest.raises(TypeError):
        validate_decode_commands(**{**NONE, "reload_inputs": 0})


class Buffers:
    """Staging arrays of a lane, filled with a marker so that every written entry shows."""

    def __init__(self, rows: int) -> None:
        self.tokens = np.full((1, 1, 1, 32), 77, dtype=np.uint32)
        self.positions = np.full(rows, 77, dtype=np.int32)
        self.rotary = np.full((1, 32), 77, dtype=np.uint32)

    def stage(self, tokens: Any, start_pos: Any) -> None:
        stage_decode_inputs(
            np.asarray(tokens),
            np.asarray(start_pos),
            out_tokens=self.tokens,
            out_positions=self.positions,
            out_rotary=self.rotary,
        )


def test_staging_fills_all_three_arrays() -> None:
    buffers = Buffers(4)
    buffers.stage([5, 6, 8, -1], [0, -1, 40, -7])
    assert buffers.tokens.ravel().tolist() == [5, 6, 8, 0] + [0] * 28
    assert buffers.positions.tolist() == [0, -1, 40, -7]
    assert buffers.rotary.ravel().tolist() == [0, 0, 40, 0] + [0] * 28


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_staging_takes_both_integer_widths_and_overwrites_the_last_step(rows: int, kind: type) -> None:
    buffers = Buffers(rows)
    buffers.stage(np.full(rows, 9, kind), np.full(rows, 3, kind))
    buffers.stage(np.arange(rows, dtype=kind), np.arange(rows, dtype=kind) - 1)
    assert buffers.tokens.ravel().tolist() == list(range(rows)) + [0] * (32 - rows)
    assert buffers.positions.tolist() == list(range(-1, rows - 1))
    assert buffers.rotary.ravel().tolist() == [0, *range(rows - 1)] + [0] * (32 - rows)


def test_staging_refuses_a_bad_token_of_an_active_row_before_it_writes() -> None:
    buffers = Buffers(2)
    with pytest.raises(ValueError, match=r"row 1: token -3"):
        buffers.stage([1, -3], [0, 0])
    with pytest.raises(ValueError, match=r"row 0: position 2147483648"):
        buffers.stage([1, 1], [2**31, 0])
    assert (buffers.tokens == 77).all()
    assert (buffers.positions == 77).all()


def test_staging_refuses_other_buffers() -> None:
    tokens = positions = np.zeros(2, dtype=np.int32)
    good: dict[str, Any] = {
        "out_tokens": np.zeros((1, 1, 1, 32), np.uint32),
        "out_positions": np.zeros(2, np.int32),
        "out_rotary": np.zeros((1, 32), np.uint32),
    }
    stage_decode_inputs(tokens, positions, **good)
    for name, wrong in [
        ("out_tokens", np.zeros((1, 1, 32, 1), np.uint32)),
        ("out_positions", np.zeros(3, np.int32)),
        ("out_rotary", np.zeros((1, 64), np.uint32)),
    ]:
        with pytest.raises(ValueError, match=name):
            stage_decode_inputs(tokens, positions, **{**good, name: wrong})
    with pytest.raises(TypeError):
        stage_decode_inputs(tokens, positions, **{**good, "out_positions": np.zeros(2, np.int64)})
    read_only = np.zeros(2, np.int32)
    read_only.setflags(write=False)
    with pytest.raises(TypeError):
        stage_decode_inputs(tokens, positions, **{**good, "out_positions": read_only})
    with pytest.raises(ValueError, match="must match"):
        stage_decode_inputs(np.zeros(1, np.int32), positions, **good)
