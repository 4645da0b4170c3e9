# SPDX-License-Identifier: Apache-2.0
"""Two lanes on the two chips of one board, through the unchanged lane group."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.lane_group import LaneGroupExecutor
from llm_runtime.prefill.sampling_params import SamplingParams
from support.ttnn_lane import open_lane

CAPACITY = 4
GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)


class Lanes:
    """Two lanes of `CAPACITY` rows and the group over them."""

    def __init__(self, meshes, parent, checkpoint, *, trace, cache_path):
        self.lanes = [
            open_lane(
                mesh, checkpoint, batch=CAPACITY, max_seq_len=256, chunk=128, trace=trace, cache_path=cache_path
            )
            for mesh in meshes
        ]
        self.group = LaneGroupExecutor([lane.executor for lane in self.lanes], mesh_device=parent)
        self.kv_cache = [lane.kv_cache for lane in self.lanes]
        self.trace = trace

    def page_table(self, slots):
        """Block ids count from 0 in every lane."""
        return self.lanes[0].page_table([slot % CAPACITY for slot in slots])

    def warm_up(self):
        """Compile everything on both lanes before either of them captures."""
        traced = self.trace != "none"
        self.group.warmup_model_prefill(kv_cache=self.kv_cache, can_sample_on_device=True, enable_trace=traced)
        self.group.warmup_model_decode(
            kv_cache=self.kv_cache,
            max_batch_size=self.group.max_batch_size,
            num_blocks=self.lanes[0].executor.page_table_layout.raw_capacity_width,
            can_sample_on_device=True,
            enable_trace=traced,
        )

    def prefill(self, lengths, slots, **options):
        """Rows into slots of the whole group."""
        return self.group.prefill_forward(
            np.ones((len(lengths), max(lengths)), np.int64),
            self.page_table(slots),
            prompt_lens=np.array(lengths),
            empty_slots=slots,
            kv_cache=self.kv_cache,
            **options,
        )

    def decode(self, positions, **options):
        """One step of every slot."""
        return self.group.decode_forward(
            np.ones(2 * CAPACITY, np.int64),
            np.array(positions),
            self.page_table(range(2 * CAPACITY)),
            kv_cache=self.kv_cache,
            **options,
        )

    def close(self):
        """Release the group, then the weights."""
        self.group.cleanup()
        for lane in self.lanes:
            lane.model.release()


@pytest.fixture(scope="module", params=["none", "all"], ids=["eager", "traced"])
def lanes(request, two_meshes, traces, checkpoints, weight_cache, allocated):
    parent, meshes = two_meshes
    before = [allocated(mesh) for mesh in meshes]
    lanes = Lanes(meshes, parent, checkpoints["smollm2"], trace=request.param, cache_path=weight_cache)
    lanes.warm_up()
    yield lanes
    lanes.close()
    assert not traces.live
    assert [allocated(mesh) for mesh in meshes] == before


def replays(lanes, traces, call):
    """How many traces a call replays; none on an eager lane."""
    before = len(traces.replays)
    result = call()
    return len(traces.replays) - before, result


def test_rows_of_both_lanes_prefill_in_one_call(lanes, traces):
    count, logits = replays(lanes, traces, lambda: lanes.prefill([100, 200, 50], [6, 1, 0]))
    assert logits.shape == (3, 1, lanes.lanes[0].model.vocab_size)
    # Slot 6 is on the second lane; the row of 200 tokens on the first one takes two chunks.
    assert count == (0 if lanes.trace == "none" else 4)


def test_a_step_runs_both_lanes(lanes, traces):
    positions = [40, -1, 41, -1, -1, 42, -1, -1]
    count, (logits, _) = replays(lanes, traces, lambda: lanes.decode(positions))
    assert logits.shape == (2 * CAPACITY, 1, lanes.lanes[0].model.vocab_size)
    assert count == (0 if lanes.trace == "none" else 2)


def test_sampled_steps_read_asynchronously(lanes, traces):
    for step in range(3):
        raw = lanes.decode(
            [40 + step] * (2 * CAPACITY), sampling_params=GREEDY, reset_batch=step == 0, read_from_device=False
        )
        host, events = lanes.group.read_decode_output(raw, async_read=True)
        assert len(events) == 2
        tokens, _ = lanes.group.process_decode_output_host(host, is_tokens=True)
        assert tokens.tolist() == [0] * (2 * CAPACITY)


def test_lanes_hold_their_own_memory(lanes, allocated):
    used = [allocated(lane.mesh) for lane in lanes.lanes]
    assert used[0] == used[1]
    assert all(used[0])
