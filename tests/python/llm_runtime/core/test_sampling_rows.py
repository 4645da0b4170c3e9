# SPDX-License-Identifier: Apache-2.0
"""Sampling rows that the core normalises are those that the field-by-field normalisation makes, or it declines."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime._core import environment_variable, normalise_sampling
from llm_runtime.prefill.sampling_helpers import (
    _slice_sampling_params,
    place_sampling_in_slots,
    prepare_sampling_params,
)
from llm_runtime.prefill.sampling_params import (
    PreparedSamplingParams,
    SamplingParams,
    plain_fields,
    prepared_sampling,
    with_fields,
)

BATCH = 8
LIMIT = 32


def by_field(params: Any, rows: tuple[int, ...], *, in_slots: bool, argmax: bool = True) -> PreparedSamplingParams:
    prepared = prepare_sampling_params(
        _slice_sampling_params(params, rows),
        BATCH,
        max_device_top_k=LIMIT,
        allow_force_argmax=argmax,
        active_rows=len(rows),
        row_labels=rows,
    )
    return place_sampling_in_slots(prepared, rows) if in_slots else prepared


def by_core(
    params: Any, rows: tuple[int, ...], *, in_slots: bool, argmax: bool = True
) -> PreparedSamplingParams | None:
    fields = plain_fields(params)
    assert fields is not None
    core = normalise_sampling(
        fields, rows, batch_size=BATCH, max_device_top_k=LIMIT, allow_force_argmax=argmax, in_slots=in_slots
    )
    return None if core is None else prepared_sampling(core, BATCH, LIMIT, None, None)


def column(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(entries, min_size=0, max_size=BATCH + 2)
    return entries | lists | lists.map(tuple)


numbers = st.floats(-0.5, 2.0, allow_nan=False) | st.integers(-1, 2) | st.just(0.0)
odd = st.sampled_from([float("nan"), float("inf"), True, "x", None, 10**400, np.float32(0.5)])
params_strategy = st.builds(
    SamplingParams,
    temperature=column(numbers | odd),
    top_k=column(st.integers(-1, LIMIT + 1) | odd),
    top_p=column(numbers),
    presence_penalty=column(numbers) | st.just(0.0),
    frequency_penalty=st.just(0.0) | odd,
    repetition_penalty=column(st.sampled_from([0, 1.0, 1.5])),
    seed=column(st.none() | st.integers(-2, 3) | st.just(1 << 70)),
    enable_log_probs=st.sampled_from([False, False, False, True, [False] * BATCH, None]),
    num_logprobs=st.sampled_from([0, [0] * BATCH, None, "x"]),
)
rows_strategy = st.lists(st.integers(0, BATCH - 1), min_size=1, max_size=BATCH, unique=True).map(sorted).map(tuple)


@settings(max_examples=500, deadline=None)
@given(params=params_strategy, rows=rows_strategy, in_slots=st.booleans(), argmax=st.booleans())
def test_the_core_agrees_with_the_field_by_field_form_or_declines(params, rows, in_slots, argmax):
    ours = by_core(params, rows, in_slots=in_slots, argmax=argmax)
    if ours is not None:
        assert ours == by_field(params, rows, in_slots=in_slots, argmax=argmax)


@settings(max_examples=200, deadline=None)
@given(
    temperature=column(st.floats(0.0, 2.0)).filter(
        lambda value: not isinstance(value, (list, tuple)) or len(value) > 7
    ),
    rows=rows_strategy,
)
def test_the_core_takes_every_plain_call(temperature, rows):
    params = SamplingParams(temperature=temperature, top_k=4, top_p=0.9, seed=[3])
    assert by_core(params, rows, in_slots=True) == by_field(params, rows, in_slots=True)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": -1.0},
        {"top_k": LIMIT + 1},
        {"top_k": []},
        {"enable_log_probs": True},
        {"top_p": np.full(BATCH, 0.5)},
        {"seed": True},
        {"temperature": [1.0, 1.0]},
    ],
)
def test_what_needs_a_closer_look_is_declined(change):
    params = dataclasses.replace(SamplingParams(temperature=1.0, top_k=4, top_p=1.0), **change)
    assert by_core(params, (0, 5), in_slots=False) is None


def test_rows_made_on_demand_behave_as_the_frozen_value_they_are():
    params = SamplingParams(temperature=[0.0, 1.0, 0.5], top_k=3, top_p=0.5, presence_penalty=[0.0, 1.0, 0.0])
    made = by_core(params, (0, 1), in_slots=False)
    expected = by_field(params, (0, 1), in_slots=False)
    assert made.penalties_enabled and not made.log_probs_enabled and not made.all_active_rows_argmax
    assert hash(made) == hash(expected)
    assert repr(by_core(params, (0, 1), in_slots=False)) == repr(expected)
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), dataclasses.replace(made, slot_remap=(0,))):
        assert again == expected
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.top_k = ()
    with pytest.raises(AttributeError, match="no attribute nothing"):
        _ = made.nothing


def test_fields_are_copies_of_the_callers_lists():
    temperature = [1.0, 2.0]
    params = SamplingParams(temperature=temperature, top_k=3, top_p=0.5)
    fields = plain_fields(params)
    temperature[0] = 9.0
    assert with_fields(params, fields).temperature == [1.0, 2.0]


def test_another_dataclass_with_the_same_fields_is_plain_and_one_with_more_is_not():
    names = [item.name for item in dataclasses.fields(SamplingParams)]
    same = dataclasses.make_dataclass("Same", sorted(names))
    assert plain_fields(same(**dict.fromkeys(names, 0))) == (0,) * len(names)
    more = dataclasses.make_dataclass("More", [*names, "extra"])
    assert plain_fields(more(**dict.fromkeys([*names, "extra"], 0))) is None


def test_the_environment_is_the_processes_own(monkeypatch):
    monkeypatch.delenv("LLM_RUNTIME_TEST", raising=False)
    assert environment_variable("LLM_RUNTIME_TEST") is None
    monkeypatch.setenv("LLM_RUNTIME_TEST", "ünï")
    assert environment_variable("LLM_RUNTIME_TEST") == "ünï"
