# SPDX-License-Identifier: Apache-2.0
"""A two-row lane over the tiny decode model, and requests for it."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.prefill.sampling_helpers import SamplingParams
from support.tiny_decode_model import DecodeLane, TinyDecodeModel, decode_runtime

TABLE = [[3, 4, 5], [6, 7, 8]]


def request_of(tokens=(1, 2), positions=(0, 0), table=None, **options):
    """Arguments of a decode call with the default table; `options` are further keywords."""
    return {
        "tokens": np.array(tokens, np.int64),
        "start_pos": np.array(positions, np.int64),
        "page_table": np.array(TABLE if table is None else table, np.int32),
        **options,
    }


def greedy_params(rows=2, **changes):
    values = {"temperature": [0.0] * rows, "top_k": [1] * rows, "top_p": [1.0] * rows}
    return SamplingParams(**{**values, **changes})


def topk_params(rows=2, **changes):
    """Stochastic by name, but with one candidate, so that the result is the greedy one."""
    values = {"temperature": [1.0] * rows, "top_k": [1] * rows, "top_p": [1.0] * rows}
    return SamplingParams(**{**values, **changes})


@pytest.fixture
def request_for():
    return request_of


@pytest.fixture
def greedy():
    return greedy_params


@pytest.fixture
def topk():
    return topk_params


@pytest.fixture
def model(mesh):
    return TinyDecodeModel(mesh)


@pytest.fixture
def runtime(model):
    return decode_runtime(model)


@pytest.fixture
def lane(model):
    lane = DecodeLane(model)
    yield lane
    lane.close()


@pytest.fixture
def deferred_lane(deferred_mesh):
    """The lane on a mesh whose work runs only when somebody waits for it."""
    lane = DecodeLane(TinyDecodeModel(deferred_mesh))
    yield lane
    lane.close()
