# SPDX-License-Identifier: Apache-2.0
"""Random streams of sampler rows: pure in (seed, position, salt), one draw per position, moved with their request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.seed_manager import MAX_DEVICE_SEED, SeedManager, SeedState, device_seed

ROWS = 4
DEFAULTS = np.arange(10, 10 + ROWS, dtype=np.uint32)


class Buffer:
    """A seed buffer whose device side is an array."""

    def __init__(self) -> None:
        self.source = DEFAULTS.copy()
        self.device = DEFAULTS.copy()

    def update(self, values: npt.NDArray[np.uint32]) -> None:
        self.device[:] = values

    def get_device_buffer(self) -> object:
        return self.device


def lane() -> tuple[SeedManager, SeedState, Buffer]:
    buffer = Buffer()
    manager = SeedManager(buffer)
    return manager, manager.create_state(), buffer


def step(
    seeds: list[int | None],
    positions: list[int],
    *,
    reset_batch: bool = True,
    on: tuple[SeedManager, SeedState, Buffer],
) -> list[int]:
    manager, state, buffer = on
    active = [slot for slot, position in enumerate(positions) if position >= 0]
    manager.synchronize(state, seeds, active, reset_batch=reset_batch)
    manager.refresh(state, active, positions=positions)
    return [int(value) for value in buffer.device]


@pytest.mark.covers("DEC-07")
def test_the_device_seed_does_not_depend_on_the_slot() -> None:
    first, second = lane(), lane()
    assert step([1234, None], [41, -1], on=first)[0] == step([None, 1234], [-1, 41], on=second)[1]
    assert first[1].active[:2] == (True, False)
    assert second[1].active[:2] == (False, True)


@pytest.mark.covers("DEC-08")
def test_a_seed_belongs_to_one_row_and_the_other_row_draws_too() -> None:
    on = lane()
    drawn = step([1234, None], [17, 17], on=on)
    assert on[1].request_seeds[:2] == (1234, None)
    assert on[1].active[:2] == (True, True)
    assert drawn[0] == device_seed(1234, 17)
    assert drawn[1] != DEFAULTS[1]
    assert drawn[2:] == DEFAULTS[2:].tolist()


@pytest.mark.covers("DEC-10")
def test_equal_seeds_at_once_get_salts() -> None:
    on = lane()
    drawn = step([77, 77], [5, 5], on=on)
    assert on[1].salts[:2] == (0, 1)
    assert drawn[0] == device_seed(77, 5, 0) != drawn[1] == device_seed(77, 5, 1)


def test_a_salt_survives_a_reset_after_its_twin_left() -> None:
    on = lane()
    step([77, 77], [5, 5], on=on)
    assert step([3, 77], [9, 6], on=on)[1] == device_seed(77, 6, 1)
    # A request that comes anew is alone and gets the stream it would have alone.
    manager, state, _ = on
    manager.reset(state)
    assert step([None, 77], [-1, 6], on=on)[1] == device_seed(77, 6, 0)


@pytest.mark.covers("DEC-11")
def test_seed_and_position_each_change_the_device_seed() -> None:
    on = lane()
    drawn = {
        step([101], [7], on=on)[0],
        step([101], [8], reset_batch=False, on=on)[0],
        step([202], [7], on=on)[0],
    }
    assert len(drawn) == 3


@pytest.mark.covers("DEC-12")
def test_an_explicit_seed_depends_on_the_absolute_position_only() -> None:
    on = lane()
    first = step([909], [19], on=on)[0]
    second = step([909], [20], reset_batch=False, on=on)[0]
    assert (first, second) == (step([909], [19], on=on)[0], step([909], [20], on=on)[0])
    assert first != second


@pytest.mark.covers("DEC-16")
def test_an_unseeded_row_draws_once_per_position() -> None:
    on = lane()
    _, state, _ = on
    first = step([None], [5], on=on)
    assert first[0] != DEFAULTS[0]
    assert first[1:] == DEFAULTS[1:].tolist()
    moved = state.random_states[0]
    assert step([None], [5], reset_batch=False, on=on) == first
    assert state.token_counts[0] == 1
    assert step([None], [6], reset_batch=False, on=on)[0] != first[0]
    assert state.token_counts[0] == 2
    assert state.random_states[0] != moved


@pytest.mark.covers("DEC-17")
def test_a_row_that_leaves_gets_its_default_back() -> None:
    on = lane()
    _, state, _ = on
    step([None, 42], [20, 20], on=on)
    drawn = step([None, None], [21, -1], reset_batch=False, on=on)
    assert state.active[:2] == (True, False)
    assert state.request_seeds[:2] == (None, None)
    assert state.token_counts[:2] == (2, 0)
    assert drawn[1] == DEFAULTS[1]


@pytest.mark.covers("DEC-55")
def test_a_stream_moves_with_its_request() -> None:
    on = lane()
    manager, state, _ = on
    before = step([77, None], [5, -1], on=on)[0]
    manager.apply_slot_remap(state, (0, 0))
    after = step([None, 77], [-1, 5], reset_batch=False, on=on)[1]
    assert after == before
    assert state.active[:2] == (False, True)
    assert state.request_seeds[:2] == (None, 77)
    assert state.token_counts[:2] == (0, 1)


@pytest.mark.covers("D10")
def test_seed_7_moved_after_four_tokens_draws_as_if_it_were_alone() -> None:
    alone = [device_seed(7, position) for position in range(30, 38)]
    on = lane()
    manager, state, _ = on
    drawn = [step([None, None, 5, 7], [-1, -1, 9, p], reset_batch=p == 30, on=on)[3] for p in range(30, 34)]
    manager.apply_slot_remap(state, (0, 3, 2, 1))
    drawn += [step([None, 7, 5], [-1, p, 9], reset_batch=False, on=on)[1] for p in range(34, 38)]
    assert drawn == alone


@pytest.mark.covers("D14")
def test_seeds_of_the_batch_before_leave_nothing_behind() -> None:
    on = lane()
    step([3, 3, 3, 3], [8, 8, 8, 8], on=on)
    drawn = step([None] * 4, [8, 8, 8, 8], on=on)
    assert len(set(drawn)) == 4
    assert on[1].request_seeds == (None,) * 4


@pytest.mark.covers("D16")
def test_a_seed_elsewhere_does_not_change_a_seeded_row() -> None:
    assert step([42, None], [6, 6], on=lane())[0] == step([42, 7], [6, 6], on=lane())[0]


@pytest.mark.covers("D08")
def test_admission_leaves_other_streams_alone_and_seeds_request_rows() -> None:
    on = lane()
    manager, state, buffer = on
    step([11, None, 13], [4, 4, 4], on=on)
    before = [(state.request_seeds[i], state.random_states[i], state.token_counts[i]) for i in range(3)]
    manager.admit(state, [99], [3], positions=[20])
    assert [(state.request_seeds[i], state.random_states[i], state.token_counts[i]) for i in range(3)] == before
    assert buffer.device.tolist() == [device_seed(99, 20)] * ROWS
    # The decode step that follows needs no reset and goes on with the next position.
    drawn = step([11, None, 13, 99], [5, 5, 5, 21], reset_batch=False, on=on)
    assert (drawn[0], drawn[3]) == (device_seed(11, 5), device_seed(99, 21))
    manager.admit(state, [1, 2], [2, 0], positions=[7, 8])
    assert buffer.device.tolist() == [device_seed(1, 7), device_seed(2, 8), *DEFAULTS[2:].tolist()]
    assert state.request_seeds == (2, None, 1, 99)


@pytest.mark.covers("DEC-05")
def test_after_a_reset_nothing_is_active_and_a_refresh_asks_for_reset_batch() -> None:
    on = lane()
    manager, state, buffer = on
    drawn = step([11, 22, 33, 44], [1, 2, 3, 4], on=on)
    assert all(value != default for value, default in zip(drawn, DEFAULTS, strict=True))
    manager.reset(state)
    assert not any(state.active)
    assert buffer.device.tolist() == DEFAULTS.tolist()
    calls: tuple[Callable[[], None], ...] = (
        lambda: manager.refresh(state, [0], positions=[2]),
        lambda: manager.synchronize(state, [11], [0]),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="reset_batch=True"):
            call()


def test_positions_may_be_left_to_the_streams() -> None:
    on = lane()
    manager, state, buffer = on
    step([5, 6], [30, 40], on=on)
    manager.refresh(state, [0, 1])
    assert buffer.device[:2].tolist() == [device_seed(5, 31), device_seed(6, 41)]


def test_changed_seeds_are_taken_over_and_others_go_on() -> None:
    on = lane()
    manager, state, _ = on
    step([5, None], [30, 40], on=on)
    unseeded = state.random_states[1]
    manager.reload_request_seeds(state, [8, None], [0, 1])
    assert state.request_seeds[:2] == (8, None)
    assert state.random_states[1] == unseeded


@pytest.mark.covers("D11")
@pytest.mark.parametrize("slots", [[0, 0], [9], [-1]])
def test_bad_slots_are_named(slots: list[int]) -> None:
    manager, state, _ = lane()
    calls: tuple[Callable[[], None], ...] = (
        lambda: manager.synchronize(state, None, slots, reset_batch=True),
        lambda: manager.admit(state, None, slots, positions=[1, 2]),
    )
    for call in calls:
        with pytest.raises(ValueError, match=str(slots[0])):
            call()
    assert not any(state.active)
    with pytest.raises(ValueError, match="slot_remap"):
        manager.apply_slot_remap(state, [0, 4])


@given(seed=st.integers(-(2**70), 2**70), position=st.integers(0, 2**31), salt=st.integers(0, 31))
def test_device_seeds_are_in_range_and_repeatable(seed: int, position: int, salt: int) -> None:
    drawn = device_seed(seed, position, salt)
    assert 1 <= drawn <= MAX_DEVICE_SEED
    assert drawn == device_seed(seed, position, salt)


def test_streams_are_spread_over_the_range() -> None:
    drawn = [device_seed(seed, position) for seed in range(40) for position in range(40)]
    assert len(set(drawn)) > 1590
    assert abs(np.mean(drawn) / MAX_DEVICE_SEED - 0.5) < 0.03
    assert len({device_seed(seed, 0) for seed in (0, 1, -1, 2**64, 2**64 - 1, -(2**64))}) == 6
