# SPDX-License-Identifier: Apache-2.0
"""Normalisation of raw host values to the lane's rows."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin
from llm_runtime.decode.outputs import normalise_log_probs, normalise_logits, normalise_tokens, split_output


def host(array, dtype=None):
    return ttnn_twin.Tensor(np.ascontiguousarray(array), dtype or ttnn_twin.uint32)


def tokens_of(value, *, lane=2, shape=(1, 1)):
    return normalise_tokens(value, lane_capacity=lane, cluster_shape=shape)


def logits_of(value, *, lane=2, vocab=8, shape=(1, 1)):
    return normalise_logits(value, lane_capacity=lane, vocab_size=vocab, cluster_shape=shape)


@pytest.mark.covers("DEC-31")
def test_logits_are_cut_to_lane_and_vocabulary():
    values = np.arange(1 * 1 * 32 * 16, dtype=np.float32).reshape(1, 1, 32, 16)
    result = logits_of(host(values, ttnn_twin.bfloat16))
    assert (result.shape, result.dtype, result.flags.c_contiguous) == ((2, 1, 8), np.float32, True)
    np.testing.assert_array_equal(result[:, 0], values[0, 0, :2, :8])
    assert logits_of(host(values[:, :, :2, :8], ttnn_twin.bfloat16)).shape == (2, 1, 8)


@pytest.mark.covers("DEC-32")
def test_vocabulary_shards_of_a_mesh_row_are_joined_in_order(monkeypatch):
    shards = [np.full((1, 1, 32, 4), float(index), np.float32) for index in range(2)]
    shards[1][0, 0, 1, 3] = 9.0
    monkeypatch.setattr(
        ttnn_twin, "get_device_tensors", lambda value: [host(shard, ttnn_twin.bfloat16) for shard in shards]
    )
    result = logits_of(host(shards[0], ttnn_twin.bfloat16), shape=(1, 2))
    assert result.shape == (2, 1, 8)
    assert result[1, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 9]


def test_logits_do_not_share_memory_with_the_host_buffer():
    values = np.zeros((1, 1, 2, 8), np.float32)
    result = logits_of(values)
    result[:] = 5.0
    assert not values.any()


@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (1, 1, 2, 7), (8,)])
def test_too_few_logits_are_refused(shape):
    with pytest.raises(ValueError, match="at least 2 rows and 8 columns"):
        logits_of(np.zeros(shape, np.float32))


@pytest.mark.covers("DEC-50")
@pytest.mark.parametrize("shape", [(1, 1, 2, 1), (1, 1, 1, 2), (1, 1, 1, 32), (1, 1, 32, 1), (32,), (1, 32)])
def test_tokens_of_every_layout_become_rows(shape):
    values = np.zeros(shape, np.uint32)
    values.reshape(-1)[:2] = [7, 8]
    result = tokens_of(host(values))
    assert (result.tolist(), result.dtype, result.shape) == ([7, 8], np.int64, (2,))


def test_a_replicated_result_takes_the_first_column_of_its_rows():
    values = np.arange(64, dtype=np.uint32).reshape(1, 1, 32, 2)
    assert tokens_of(host(values)).tolist() == [0, 2]


def test_a_lane_of_one_row():
    assert tokens_of(host(np.array([[[[9, 1, 2]]]], np.uint32)), lane=1).tolist() == [9]


def test_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match="1 tokens for a lane of 2 rows"):
        tokens_of(host(np.array([3], np.uint32)))


@pytest.mark.covers("DEC-50")
def test_log_probs_are_flattened_in_row_order():
    values = np.array([[[[-0.25, -0.75, 0.0, 0.0]]]], np.float32)
    result = normalise_log_probs(host(values, ttnn_twin.bfloat16), lane_capacity=2, cluster_shape=(1, 1))
    assert (result.tolist(), result.dtype) == ([-0.25, -0.75], np.float32)


def test_log_probs_of_other_kinds():
    assert normalise_log_probs(None, lane_capacity=2, cluster_shape=(1, 1)) is None
    opaque = {"values": [1.0]}
    assert normalise_log_probs(opaque, lane_capacity=2, cluster_shape=(1, 1)) is opaque
    with pytest.raises(ValueError, match="1 log-probabilities for 2 rows"):
        normalise_log_probs(np.zeros(1), lane_capacity=2, cluster_shape=(1, 1))


def test_only_a_pair_is_split():
    assert split_output((1, 2)) == (1, 2)
    assert split_output("logits") == ("logits", None)
    with pytest.raises(TypeError, match="3 elements"):
        split_output((1, 2, 3))
