# SPDX-License-Identifier: Apache-2.0
"""Slot remaps: what is accepted, how short ones are extended, and what a moved row leaves behind."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.decode.remap import normalise_slot_remap, remap_prepared_sampling, remap_rows
from llm_runtime.prefill.sampling_helpers import SamplingParams, place_sampling_in_slots, prepare_sampling_params


def normalise(remap, *, lane=2, sampler=4):
    return normalise_slot_remap(remap, lane_capacity=lane, sampling_batch_size=sampler)


def sampling_rows(slots, *, size=4, **changes):
    params = SamplingParams(
        temperature=[1.0] * len(slots), top_k=[slot + 2 for slot in slots], top_p=[1.0] * len(slots), **changes
    )
    prepared = prepare_sampling_params(params, size, max_device_top_k=32, allow_force_argmax=True)
    return place_sampling_in_slots(prepared, slots)


@pytest.mark.parametrize("kind", [list, tuple, lambda rows: np.array(rows, np.int32)])
def test_a_lane_wide_remap_is_extended_with_identity_in_its_own_container(kind):
    remap = kind([1, 0])
    extended = normalise(remap)
    assert type(extended) is type(remap)
    assert list(extended) == [1, 0, 2, 3]
    if isinstance(remap, np.ndarray):
        assert extended.dtype == np.int32


def test_a_sampler_wide_remap_passes_unchanged():
    remap = [3, 0, 1, 2]
    assert normalise(remap) is remap
    assert normalise(None) is None


@pytest.mark.covers("D11")
@pytest.mark.parametrize(
    ("remap", "error", "match"),
    [
        (np.array(1), ValueError, "scalar"),
        ("10", TypeError, "str"),
        (5, TypeError, "int"),
        ([0, 1, 2], ValueError, "3 entries.*2 slots.*4"),
        ([0, 2], ValueError, r"slot_remap\[1\] = 2.*\[0, 2\)"),
        ([-1, 1], ValueError, r"slot_remap\[0\] = -1"),
        ([3, 1, 3, 2], ValueError, "slot 3 into two slots, 0 and 2"),
        ([0.0, 1], TypeError, r"slot_remap\[0\]"),
        ([True, 0], TypeError, r"slot_remap\[0\]"),
    ],
)
def test_bad_remaps_are_refused_with_the_offending_value(remap, error, match):
    with pytest.raises(error, match=match):
        normalise(remap)


def test_a_vacated_slot_is_neutral_and_a_swap_keeps_both():
    assert remap_rows(["a", "b", "c"], [0, 0, 2], neutral=None) == (None, "a", "c")
    assert remap_rows(["a", "b", "c"], [1, 0, 2], neutral=None) == ("b", "a", "c")
    assert remap_rows(["a", "b", "c"], [0, 1, 2], neutral=None) == ("a", "b", "c")


def test_prepared_rows_move_with_all_their_values():
    moved = remap_prepared_sampling(sampling_rows([0, 2], seed=[7, 8]), [0, 0, 2, 3])
    assert moved.active_mask == (False, True, True, False)
    assert moved.top_k == (1, 2, 4, 1)
    assert moved.seeds == (None, 7, 8, None)
    assert moved.active_rows == 2


def test_a_remap_that_overwrites_the_last_row_leaves_nothing():
    only = sampling_rows([1])
    assert remap_prepared_sampling(only, [0, 0, 2, 3]) is None
    assert remap_prepared_sampling(only, None) is only


def test_history_moves_with_its_rows():
    history = [[1], [2], [3], [4]]
    prepared = remap_prepared_sampling(
        place_sampling_in_slots(
            prepare_sampling_params(
                SamplingParams([1.0] * 4, [5] * 4, [1.0] * 4),
                4,
                max_device_top_k=32,
                allow_force_argmax=True,
                prompt_tokens=history,
                output_tokens=np.array(history),
            ),
            [0, 1, 2, 3],
        ),
        [1, 0, 3, 2],
    )
    assert prepared.prompt_tokens == [[2], [1], [4], [3]]
    assert prepared.output_tokens.tolist() == [[2], [1], [4], [3]]
