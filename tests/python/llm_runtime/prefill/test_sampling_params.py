# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters: normalisation, row slicing, slot placement, token history."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from llm_runtime.prefill.sampling_helpers import (
    SamplingParams,
    _slice_sampling_params,
    default_prompt_history,
    kpt_values,
    place_sampling_in_slots,
    prepare_sampling_params,
    select_request_history,
)
from llm_runtime.prefill.sampling_limits import refuse_unsupported_log_probs


def prepare(params, batch_size=4, **changes):
    options = {"max_device_top_k": 32, "allow_force_argmax": True, **changes}
    return prepare_sampling_params(params, batch_size, **options)


@pytest.mark.covers("PRE-06")
def test_scalar_parameters_describe_one_logical_row():
    prepared = prepare(SamplingParams(1.0, 32, 0.08), 1)
    assert (prepared.top_k, prepared.top_p, prepared.temperature) == ((32,), (0.08,), (1.0,))
    assert prepared.active_rows == 1


@pytest.mark.covers("PRE-07")
def test_greedy_rows_become_k1_p0_t1():
    prepared = prepare(SamplingParams([0.0] * 32, [1] * 32, [1.0] * 32), 32)
    assert prepared.top_k == (1,) * 32
    assert prepared.top_p == (0.0,) * 32
    assert prepared.temperature == (1.0,) * 32
    assert prepared.sampling_path == "argmax"
    assert prepared.all_active_rows_greedy and prepared.all_active_rows_argmax


def test_scalar_temperature_applies_to_every_active_row():
    prepared = prepare(SamplingParams(0.5, [3, 4, 5], 0.9), 4, active_rows=3)
    assert prepared.active_mask == (True, True, True, False)
    assert prepared.temperature == (2.0, 2.0, 2.0, 1.0)
    assert prepared.top_k == (3, 4, 5, 1)
    assert prepared.top_p == (0.9, 0.9, 0.9, 0.0)


def test_one_element_field_applies_to_every_active_row():
    prepared = prepare(SamplingParams([0.5, 1.0, 2.0], [7], [0.9], presence_penalty=[0.25]), 4)
    assert prepared.top_k == (7, 7, 7, 1)
    assert prepared.presence_penalty == (0.25, 0.25, 0.25, 0.0)
    assert prepared.penalties_enabled


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "expected"),
    [
        (0.0, -1, 1.0, (1, 0.0, 1.0)),
        (1.0, 1, 0.5, (1, 0.5, 1.0)),
        (0.0, 40, 0.9, (1, 0.0, 1.0)),
        (0.25, 2, 1.5, (2, 1.0, 4.0)),
        (1.0, 2, -0.5, (2, 0.0, 1.0)),
    ],
)
@pytest.mark.covers("D19")
def test_edge_values_have_a_written_result(temperature, top_k, top_p, expected):
    prepared = prepare(SamplingParams(temperature, top_k, top_p), 1)
    assert (prepared.top_k[0], prepared.top_p[0], prepared.temperature[0]) == expected


@pytest.mark.parametrize("top_k", [0, 33, -1])
@pytest.mark.covers("D17", "D19")
def test_stochastic_top_k_outside_the_device_range_is_refused(top_k):
    with pytest.raises(ValueError, match=rf"row 9: top_k {top_k} is outside \[1, 32\].*host"):
        prepare(SamplingParams([1.0, 1.0], [5, top_k], 1.0), row_labels=(4, 9))


@pytest.mark.parametrize("top_k", [True, 2.0, None, "3"])
def test_stochastic_top_k_must_be_an_integer(top_k):
    with pytest.raises(TypeError, match="row 0: top_k must be an integer"):
        prepare(SamplingParams(1.0, top_k, 1.0))


@pytest.mark.covers("D17")
def test_top_n_log_probs_are_refused_with_row_and_count():
    prepared = prepare(SamplingParams([1.0, 1.0], 4, 1.0, enable_log_probs=True, num_logprobs=[0, 2]))
    assert prepared.logprob_modes == ("sampled_token", "top_n", "none", "none")
    with pytest.raises(ValueError, match=r"row 6 asks for num_logprobs 2.*host"):
        refuse_unsupported_log_probs(prepared, served=True, row_labels=(5, 6))
    with pytest.raises(ValueError, match=r"row 5 asks for log-probabilities.*host"):
        refuse_unsupported_log_probs(prepared, served=False, row_labels=(5, 6))


def test_log_probs_keep_a_greedy_batch_off_argmax():
    prepared = prepare(SamplingParams([0.0, 0.0], 1, 1.0, enable_log_probs=[False, True], num_logprobs=0))
    assert prepared.row_paths == ("argmax", "topk", "inactive", "inactive")
    assert prepared.sampling_path == "topk"
    assert prepared.log_probs_enabled
    assert prepared.all_active_rows_greedy and not prepared.all_active_rows_argmax


def test_one_stochastic_row_moves_the_batch_to_top_k():
    assert prepare(SamplingParams([0.0, 1.0], 4, 1.0)).sampling_path == "topk"
    assert prepare(SamplingParams([0.0, 0.0], 4, 1.0), allow_force_argmax=False).sampling_path == "topk"


def test_entries_past_the_active_rows_are_not_validated():
    prepared = prepare(SamplingParams([1.0], [4, 999], [0.5, 0.5], num_logprobs=[0, -7], enable_log_probs=[True, True]))
    assert prepared.top_k == (4, 1, 1, 1)
    assert prepared.logprob_modes == ("sampled_token", "none", "none", "none")


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (None, (None, None, None, None)),
        (7, (7, None, None, None)),
        (-1, (None, None, None, None)),
        ([5, -1], (5, None, None, None)),
        ([1, 2, 3], (1, 2, 3, None)),
        (np.array([4, 5, 6]), (4, 5, 6, None)),
    ],
)
def test_seeds_are_not_broadcast(seed, expected):
    assert prepare(SamplingParams([1.0, 1.0, 1.0], 2, 1.0, seed=seed)).seeds == expected


def test_zero_repetition_penalty_is_neutral():
    prepared = prepare(SamplingParams([1.0, 1.0], 2, 1.0, repetition_penalty=[0.0, 1.0]))
    assert prepared.repetition_penalty == (1.0, 1.0, 1.0, 1.0)
    assert not prepared.penalties_enabled


@pytest.mark.parametrize("temperature", [-0.5, float("nan"), float("inf")])
def test_impossible_temperature_names_the_row(temperature):
    with pytest.raises(ValueError, match="row 1: temperature"):
        prepare(SamplingParams([1.0, temperature], 2, 1.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_p": [0.1, 0.2]}, "top_p has 2 rows for 3 active rows"),
        ({"top_p": [0.1] * 5}, "top_p has 5 rows, the sampler has 4"),
        ({"top_p": []}, "top_p is empty"),
        ({"temperature": []}, "temperature is empty"),
        ({"temperature": [1.0] * 5}, "5 sampled rows exceed the sampler's 4 rows"),
        ({"seed": [1] * 5}, "seed has 5 rows"),
    ],
)
def test_field_lengths_are_checked(changes, message):
    params = dataclasses.replace(SamplingParams([1.0, 1.0, 1.0], 2, 1.0), **changes)
    with pytest.raises(ValueError, match=message):
        prepare(params)


def test_arrays_are_read_like_lists():
    prepared = prepare(SamplingParams(np.array([0.0, 2.0]), np.array([9, 3]), np.float32(0.5)))
    assert prepared.top_k == (1, 3, 1, 1)
    assert prepared.top_p == (0.0, 0.5, 0.0, 0.0)


def test_foreign_dataclass_is_accepted_and_a_dict_is_not():
    @dataclasses.dataclass(frozen=True)
    class ServerParams:
        temperature: list[float]
        top_k: list[int]
        top_p: list[float]
        min_tokens: int = 3

    assert prepare(ServerParams([1.0], [2], [0.5])).top_k[0] == 2
    with pytest.raises(TypeError, match="dataclass"):
        prepare({"temperature": 1.0, "top_k": 2, "top_p": 0.5})


@pytest.mark.covers("P18")
def test_slicing_keeps_each_requests_own_rows():
    params = SamplingParams([0.1, 0.2, 0.3], 5, [0.9], seed=np.array([7, 8, 9]))
    sliced = _slice_sampling_params(params, (2, 0))
    assert sliced == SamplingParams([0.3, 0.1], 5, [0.9, 0.9], seed=[9, 7])
    assert params.temperature == [0.1, 0.2, 0.3]
    assert _slice_sampling_params(None, (0,)) is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [((), "no rows"), ((-1,), "negative, got -1"), ((3,), "temperature has 3 rows, row 3")],
)
def test_slicing_refuses_rows_that_do_not_exist(rows, message):
    with pytest.raises(ValueError, match=message):
        _slice_sampling_params(SamplingParams([0.1, 0.2, 0.3], 5, 0.9), rows)


@pytest.mark.covers("P15")
def test_placement_moves_every_field_to_its_slot():
    prepared = prepare(SamplingParams([0.5, 0.0], [3, 4], 0.9, seed=[11, 12]), 4)
    placed = place_sampling_in_slots(prepared, (2, 0))
    assert placed.top_k == (1, 1, 3, 1)
    assert placed.temperature == (1.0, 1.0, 2.0, 1.0)
    assert placed.seeds == (12, None, 11, None)
    assert placed.active_mask == (True, False, True, False)
    assert placed.row_paths == ("argmax", "inactive", "topk", "inactive")
    assert placed.active_rows == 2


@pytest.mark.parametrize("slots", [(0,), (0, 0), (0, 4), (-1, 0)])
@pytest.mark.covers("D11")
def test_placement_refuses_bad_slots(slots):
    with pytest.raises(ValueError, match="slots"):
        place_sampling_in_slots(prepare(SamplingParams([0.5, 0.0], 3, 0.9), 4), slots)


def test_placement_moves_history_and_fills_the_rest():
    prepared = prepare(
        SamplingParams([0.5, 0.5], 3, 0.9),
        4,
        prompt_tokens=np.array([[1, 2], [3, 4]]),
        output_tokens=[[5], [6]],
    )
    placed = place_sampling_in_slots(prepared, (3, 1))
    assert placed.prompt_tokens.tolist() == [[-1, -1], [3, 4], [-1, -1], [1, 2]]
    assert placed.output_tokens == [[-1], [6], [-1], [5]]


def test_single_active_row_fills_every_sampler_row():
    placed = place_sampling_in_slots(prepare(SamplingParams(0.5, 3, 0.9), 4), (2,))
    assert kpt_values(placed, 3) == ((3,) * 3, (0.9,) * 3, (2.0,) * 3)
    several = prepare(SamplingParams([0.5, 1.0], [3, 4], 0.9), 4)
    assert kpt_values(several, 3) == ((3, 4, 1), (0.9, 0.9, 0.0), (2.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="5 sampler rows exceed the 4"):
        kpt_values(several, 5)


@pytest.mark.covers("PRE-08")
def test_default_history_is_the_prompt_with_filler():
    tokens = np.array([[11, 12, 0, 0], [21, 22, 23, 0]])
    history = default_prompt_history(tokens, np.array([2, 3]))
    assert history.tolist() == [[11, 12, -1, -1], [21, 22, 23, -1]]
    assert tokens.tolist() == [[11, 12, 0, 0], [21, 22, 23, 0]]
    with pytest.raises(ValueError, match="row 1: prompt length 5"):
        default_prompt_history(tokens, np.array([2, 5]))


def test_history_rows_are_found_by_slot_then_by_source_row():
    options = {"source_rows": (1,), "slots": (3,), "max_batch_size": 4, "name": "prompt_tokens"}
    assert select_request_history([[0], [1], [2], [3]], batch_size=2, **options) == [[3]]
    assert select_request_history([[0], [1], [2], [3]], batch_size=4, **options) == [[3]]
    assert select_request_history(np.array([[0], [1]]), batch_size=2, **options).tolist() == [[1]]
    assert select_request_history(((5,),), batch_size=2, **options) == ((5,),)
    assert select_request_history(None, batch_size=2, **options) is None
    with pytest.raises(ValueError, match="prompt_tokens has 3 rows"):
        select_request_history([[0], [1], [2]], batch_size=2, **options)
    with pytest.raises(TypeError, match="prompt_tokens must be"):
        select_request_history(5, batch_size=2, **options)
