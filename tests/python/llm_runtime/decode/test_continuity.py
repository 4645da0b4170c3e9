# SPDX-License-Identifier: Apache-2.0
"""Inferred refresh: which steps go on with what is on the device, and what they copy when they cannot."""

from __future__ import annotations

import numpy as np
import pytest

STALE = (63, 63)


def tokens_of(result):
    return result[0].tolist()


@pytest.fixture
def running(lane, request_for, greedy):
    """A captured lane after one greedy step: tokens (3, 5) at positions (4, 9) gave (7, 14)."""
    lane.capture(request_for(sampling_params=greedy()), request_for())
    step = request_for((3, 5), (4, 9), sampling_params=greedy(), reset_batch=True)
    assert tokens_of(lane.traced.decode_forward(**step)) == [7, 14]
    return lane


def copies_of(lane, call):
    before = lane.mesh.counters.calls["copy_host_to_device_tensor"]
    result = tokens_of(lane.traced.decode_forward(**call))
    return result, lane.mesh.counters.calls["copy_host_to_device_tensor"] - before


def test_a_steady_step_takes_nothing_from_the_host(running, request_for, greedy):
    assert copies_of(running, request_for(STALE, (5, 10), sampling_params=greedy())) == ([12, 24], 0)


def test_a_row_that_ends_stops_writing_at_once_while_the_others_go_on(running, request_for, greedy):
    ledger = running.mesh.ledger
    ledger.clear()
    call = request_for(STALE, (-1, 10), sampling_params=greedy())
    result, copies = copies_of(running, call)
    assert result[1] == 24
    assert copies == 3  # positions, rotary indices and page table, but no token
    assert [(write.block, write.offset) for write in ledger.writes] == [(6, 10)]
    result, copies = copies_of(running, request_for(STALE, (-1, 11), sampling_params=greedy()))
    assert (result[1], copies) == (35, 0)
    assert [(write.block, write.offset) for write in ledger.writes] == [(6, 10), (6, 11)]


def test_after_an_eager_step_the_host_takes_over(running, request_for, greedy):
    eager = request_for((7, 14), (5, 10), sampling_params=greedy())
    assert tokens_of(running.eager.decode_forward(**eager)) == [12, 24]
    assert copies_of(running, request_for((12, 24), (6, 11), sampling_params=greedy())) == ([18, 35], 4)


def test_rows_that_moved_come_from_the_host(running, request_for, greedy):
    table = [[6, 7, 8], [3, 4, 5]]
    moved = request_for((14, 7), (10, 5), table, sampling_params=greedy(), slot_remap=[1, 0])
    assert copies_of(running, moved) == ([24, 12], 4)
    identity = request_for(STALE, (11, 6), table, sampling_params=greedy(), slot_remap=[0, 1])
    assert copies_of(running, identity) == ([35, 18], 0)


def test_a_remap_on_a_host_sampled_step_moves_the_random_streams(lane, request_for, topk):
    lane.capture(request_for(sampling_params=topk()), request_for())
    state = lane.decode._state.seed_state
    step = request_for((3, 5), (4, 9), sampling_params=topk(seed=[8, 9]), reset_batch=True)
    lane.traced.decode_forward(**step)
    lane.traced.decode_forward(**request_for((0, 7), (-1, 5), slot_remap=[1, 0]))
    assert state.request_seeds[:2] == (None, 8)


def test_what_a_row_sampled_is_unknown_to_the_host_until_it_was_processed(running, request_for, greedy):
    raw = running.traced.decode_forward(**request_for(STALE, (5, 10), sampling_params=greedy()), read_from_device=False)
    host, _ = running.decode.read_decode_output(raw, async_read=True)
    moved = request_for(STALE, (10, 5), sampling_params=greedy(), slot_remap=[1, 0])
    for call in (moved, request_for(STALE, (6, 11))):
        with pytest.raises(RuntimeError, match="not been processed"):
            running.traced.decode_forward(**call)
    assert tokens_of(running.decode.process_decode_output_host(host, is_tokens=True)) == [12, 24]
    logits, _ = running.traced.decode_forward(**request_for((12, 24), (6, 11)))
    assert np.argmax(logits[:, 0], axis=-1).tolist() == [18, 35]
