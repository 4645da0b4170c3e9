# SPDX-License-Identifier: Apache-2.0
"""Sampling rows of a step: which slots count, where values land, which path the lane takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llm_runtime.decode import sampling as sampling_module
from llm_runtime.prefill.sampling_helpers import SamplingParams
from support.tiny_decode_model import TinyDecodeModel, TinySampler, decode_runtime


@pytest.fixture
def two_row_runtime(mesh):
    """A sampler as wide as the lane."""
    return decode_runtime(TinyDecodeModel(mesh, sampler=TinySampler(mesh, rows=2)))


def rows(prepared):
    return prepared.prepared_sampling


@pytest.mark.covers("DEC-01")
def test_scalar_parameters_apply_to_the_one_active_row(two_row_runtime, request_for):
    params = SamplingParams(temperature=1.0, top_k=32, top_p=0.08)
    sampling = rows(two_row_runtime.prepare(**request_for(positions=(0, -1), sampling_params=params)))
    assert (sampling.batch_size, sampling.active_rows, sampling.active_mask) == (2, 1, (True, False))
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == ((32, 1), (0.08, 0.0), (1.0, 1.0))
    assert sampling.row_paths == ("topk", "inactive")


@pytest.mark.covers("DEC-02")
def test_vector_parameters_apply_row_by_row(two_row_runtime, request_for):
    params = SamplingParams(temperature=[1.0, 1.0], top_k=[32, 32], top_p=[0.08, 0.08])
    sampling = rows(two_row_runtime.prepare(**request_for(sampling_params=params)))
    assert sampling.active_mask == (True, True)
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == ((32, 32), (0.08, 0.08), (1.0, 1.0))


def test_a_scalar_temperature_applies_to_every_active_row(two_row_runtime, request_for):
    params = SamplingParams(temperature=0.5, top_k=7, top_p=0.5)
    sampling = rows(two_row_runtime.prepare(**request_for(sampling_params=params)))
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == ((7, 7), (0.5, 0.5), (2.0, 2.0))


@pytest.mark.covers("DEC-03")
def test_an_idle_slot_is_neutral_and_never_validated(two_row_runtime, request_for):
    params = SamplingParams(
        temperature=[1.0, 1.0], top_k=[999, 7], top_p=[0.9, 0.8], seed=[-1, -1], num_logprobs=[-2, -2]
    )
    prepared = two_row_runtime.prepare(
        **request_for(positions=(-1, 4)),
        sampling_params=params,
        prompt_tokens=np.array([[10, -1], [20, 21]]),
        output_tokens=np.array([[30, -1], [40, 41]]),
        slot_remap=(1, 0),
    )
    sampling = rows(prepared)
    assert (sampling.top_k, sampling.top_p, sampling.seeds) == ((1, 7), (0.0, 0.8), (None, None))
    assert (sampling.enable_log_probs, sampling.num_logprobs) == ((False, False), (0, 0))
    assert sampling.prompt_tokens.tolist() == [[-1, -1], [20, 21]]
    assert sampling.output_tokens.tolist() == [[-1, -1], [40, 41]]
    assert sampling.slot_remap == (1, 0)


@pytest.mark.covers("DEC-04")
def test_a_narrow_lane_fills_the_sampler_with_neutral_rows(mesh, request_for):
    runtime = decode_runtime(TinyDecodeModel(mesh, lane_capacity=1))
    params = SamplingParams(
        temperature=0.7,
        top_k=32,
        top_p=0.08,
        presence_penalty=0.25,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        seed=17,
        enable_log_probs=True,
        num_logprobs=1,
    )
    prepared = runtime.prepare(**request_for((1,), (0,), [[3]], sampling_params=params))
    sampling = rows(prepared)
    assert (sampling.batch_size, sampling.active_rows) == (32, 1)
    first = [
        sampling.top_k[0],
        sampling.top_p[0],
        sampling.presence_penalty[0],
        sampling.frequency_penalty[0],
        sampling.repetition_penalty[0],
        sampling.seeds[0],
        sampling.enable_log_probs[0],
        sampling.num_logprobs[0],
    ]
    assert first == [32, 0.08, 0.25, 0.5, 1.2, 17, True, 1]
    assert math.isclose(sampling.temperature[0], 1 / 0.7)
    assert sampling.top_k[1:] == (1,) * 31
    assert sampling.top_p[1:] == (0.0,) * 31
    assert sampling.temperature[1:] == (1.0,) * 31
    assert sampling.seeds[1:] == (None,) * 31
    assert sampling.logprob_modes[1:] == ("none",) * 31
    assert sampling.repetition_penalty[1:] == (1.0,) * 31
    k, p, temp = prepared.sampling_values[:3]
    assert [len(values) for values in (k, p, temp)] == [32, 32, 32]
    assert prepared.sampling_seeds == sampling.seeds


@pytest.mark.covers("DEC-34")
def test_penalties_and_log_probs_enter_the_identity(two_row_runtime, request_for, greedy):
    params = greedy(presence_penalty=[0.5, 0.0], enable_log_probs=[True, False], num_logprobs=[0, -2])
    prepared = two_row_runtime.prepare(**request_for(sampling_params=params))
    assert rows(prepared).logprob_modes == ("sampled_token", "none")
    assert prepared.sampling_path == "topk"
    material = two_row_runtime.program_signature(prepared).key_material()
    assert material[-2:] == (("penalties_enabled", True), ("logprobs_enabled", True))


@pytest.mark.parametrize(("temperature", "path"), [([0.0, 0.0], "argmax"), ([0.0, 0.9], "topk"), ([0.9, 0.0], "topk")])
def test_one_stochastic_row_moves_the_lane_to_top_k(two_row_runtime, request_for, temperature, path):
    params = SamplingParams(temperature=temperature, top_k=[5, 5], top_p=[1.0, 1.0])
    prepared = two_row_runtime.prepare(**request_for(sampling_params=params))
    assert prepared.sampling_path == path
    assert prepared.sampling_values.all_active_rows_greedy is (path == "argmax")


def test_a_stochastic_idle_row_does_not_count(two_row_runtime, request_for):
    params = SamplingParams(temperature=[0.0, 0.9], top_k=[5, 5], top_p=[1.0, 1.0])
    prepared = two_row_runtime.prepare(**request_for(positions=(3, -1), sampling_params=params))
    assert prepared.sampling_path == "argmax"


@pytest.mark.covers("D17")
@pytest.mark.parametrize("top_k", [0, 33, 40])
def test_top_k_beyond_the_sampler_is_refused_with_row_and_limit(two_row_runtime, request_for, topk, top_k):
    with pytest.raises(ValueError, match=rf"row 1.*{top_k}.*32.*host"):
        two_row_runtime.prepare(**request_for(sampling_params=topk(top_k=[5, top_k])))


@pytest.mark.covers("D19")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, -1, 1.0), (1, 0.0, 1.0, True)),
        ((1.0, 1, 0.5), (1, 0.5, 1.0, False)),
        ((1.0, 0, 0.0), None),
        ((0.0, 40, 0.9), (1, 0.0, 1.0, True)),
    ],
)
def test_edge_values_of_one_row(two_row_runtime, request_for, values, expected):
    temperature, top_k, top_p = values
    params = SamplingParams(temperature=[temperature, 0.0], top_k=[top_k, 1], top_p=[top_p, 1.0])
    call = request_for(positions=(0, -1), sampling_params=params)
    if expected is None:
        with pytest.raises(ValueError, match="top_k 0"):
            two_row_runtime.prepare(**call)
        return
    sampling = rows(two_row_runtime.prepare(**call))
    assert (sampling.top_k[0], sampling.top_p[0], sampling.temperature[0], sampling.greedy_mask[0]) == expected


@pytest.mark.covers("DEC-35")
def test_parameters_are_normalised_once_per_step(runtime, model, request_for, topk, monkeypatch):
    calls = []
    original = sampling_module.normalise_sampling

    def counting(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(sampling_module, "normalise_sampling", counting)
    prepared = runtime.prepare(**request_for(sampling_params=topk(), reset_batch=True))
    runtime.consume(runtime.invoke(prepared))
    assert len(calls) == 1
    k = model.sampling.calls[-1]["k"]
    assert k.shape == (32,)


def test_equal_parameters_are_recognised_and_edits_in_place_are_seen(two_row_runtime, request_for, topk):
    params = topk(top_k=[5, 6])
    first = two_row_runtime.prepare(**request_for(sampling_params=params))
    equal = two_row_runtime.prepare(**request_for(sampling_params=topk(top_k=[5, 6])))
    assert rows(equal) is rows(first)
    params.top_k[1] = 9
    assert rows(two_row_runtime.prepare(**request_for(sampling_params=params))).top_k == (5, 9)
    other_slots = two_row_runtime.prepare(**request_for(positions=(0, -1), sampling_params=params))
    assert rows(other_slots).top_k == (5, 1)


def test_array_parameters_are_read_again_every_time(two_row_runtime, request_for):
    params = SamplingParams(temperature=np.ones(2), top_k=np.array([5, 6]), top_p=np.ones(2))
    assert rows(two_row_runtime.prepare(**request_for(sampling_params=params))).top_k == (5, 6)
    params.top_k[0] = 8
    assert rows(two_row_runtime.prepare(**request_for(sampling_params=params))).top_k == (8, 6)


def test_new_parameters_that_are_refused_leave_the_old_ones_remembered(two_row_runtime, request_for, topk):
    good = two_row_runtime.prepare(**request_for(sampling_params=topk(top_k=[5, 6])))
    with pytest.raises(ValueError, match="99"):
        two_row_runtime.prepare(**request_for(sampling_params=topk(top_k=[5, 99])))
    assert rows(two_row_runtime.prepare(**request_for(sampling_params=topk(top_k=[5, 6])))) is rows(good)


@pytest.mark.parametrize(
    ("history", "positions", "expected"),
    [
        ([[1, 2]], (0, 0), [[1, 2], [1, 2]]),
        ([[1, 2], [3, 4]], (0, 0), [[1, 2], [3, 4]]),
        ([[1, 2], [3, 4]], (-1, 0), [[-1, -1], [3, 4]]),
        (((1, 2), (3, 4)), (0, -1), ((1, 2), [-1, -1])),
    ],
)
def test_history_rows_follow_their_slots(two_row_runtime, request_for, topk, history, positions, expected):
    prepared = two_row_runtime.prepare(
        **request_for(positions=positions, sampling_params=topk(), prompt_tokens=history)
    )
    placed = rows(prepared).prompt_tokens
    assert type(placed) is type(history)
    assert list(placed) == list(expected)


def test_history_of_another_length_is_refused(mesh, request_for, topk):
    runtime = decode_runtime(TinyDecodeModel(mesh, lane_capacity=4))
    call = request_for((1,) * 4, (0, 0, 0, -1), [[3]] * 4, sampling_params=topk(4))
    with pytest.raises(ValueError, match=r"prompt_tokens has 2 rows"):
        runtime.prepare(**call, prompt_tokens=[[1], [2]])
    with pytest.raises(ValueError, match="output_tokens"):
        runtime.prepare(**call, output_tokens=np.array(3))
    with pytest.raises(TypeError, match="output_tokens"):
        runtime.prepare(**call, output_tokens="history")
