# SPDX-License-Identifier: Apache-2.0
"""Which host tensors a step may write again, as steps are submitted and read."""

from __future__ import annotations

from llm_runtime.decode.staging_turns import STAGING_SETS, StagingTurns


def submitted(turns: StagingTurns) -> int:
    number = turns.take()
    turns.submitted += 1
    return number


def test_steps_that_are_read_at_once_share_one_set():
    turns = StagingTurns()
    for step in range(1, 6):
        assert submitted(turns) == 0
        turns.note_read(step)


def test_steps_in_flight_have_sets_of_their_own_and_more_have_none():
    turns = StagingTurns()
    assert [submitted(turns) for _ in range(STAGING_SETS + 2)] == [0, 1, 2, -1, -1]
    turns.note_read(1)
    assert submitted(turns) == 0  # the set of step 1
    assert submitted(turns) == -1
    turns.note_read(2)
    assert submitted(turns) == 1


def test_a_later_output_frees_the_sets_of_the_steps_before_it_and_an_old_one_takes_nothing_back():
    turns = StagingTurns()
    for _ in range(3):
        submitted(turns)
    turns.note_read(2)
    turns.note_read(1)
    assert [submitted(turns) for _ in range(3)] == [0, 1, -1]


def test_a_step_that_is_refreshed_twice_does_not_write_what_its_first_copies_read():
    turns = StagingTurns()
    assert [turns.take(), turns.take()] == [0, 1]
