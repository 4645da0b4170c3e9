# SPDX-License-Identifier: Apache-2.0
"""A lane's blocks, traces and programs are its own: nothing that one lane does shows in another."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from llm_runtime.prefill.plan import _plan_prefill_requests
from llm_runtime.prefill.sampling_params import SamplingParams
from support.lanes_model import prompts_of

PROMPTS = prompts_of((20, 5, 33, 70))
GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)


@dataclass(frozen=True)
class TraceNumber:
    """A trace id that is equal on every device."""

    number: int


def blocks_written(mesh):
    return {write.block for write in mesh.ledger.writes}


def clear(lanes):
    for mesh in lanes.meshes:
        mesh.ledger.clear()
        mesh.counters.clear()


@pytest.mark.covers("P17")
def test_only_the_named_slots_are_written(twin_lanes):
    lanes = twin_lanes(2, 8)
    clear(lanes)
    table = lanes.serving.table
    lanes.serving.prefill(PROMPTS[:2], (5, 9))
    assert blocks_written(lanes.meshes[0]) == {table[5][0]}
    assert blocks_written(lanes.meshes[1]) == {table[9][0]}
    lanes.serving.step({5: 1, 9: 2}, {5: 32, 9: 5})
    assert blocks_written(lanes.meshes[0]) == {table[5][0], table[5][1]}
    assert blocks_written(lanes.meshes[1]) == {table[9][0]}


@pytest.mark.covers("L03")
@pytest.mark.parametrize("group", ["eager_lanes", "traced_lanes"])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_lane_without_requests(request, group, sampled):
    """Prefill does not touch it; a step of logits runs it with idle rows, a sampled step leaves it out."""
    lanes = request.getfixturevalue(group)
    params = GREEDY if sampled else None
    alone = lanes.serving.generate(PROMPTS[:2], (0, 1), steps=3, sampled=sampled)
    clear(lanes)
    lanes.serving.prefill(PROMPTS[:2], (1, 0), sampling_params=params)
    assert not lanes.meshes[1].counters.calls
    positions = {1: len(PROMPTS[0]), 0: len(PROMPTS[1])}
    values, _ = lanes.serving.step(
        {1: alone[0][0], 0: alone[1][0]}, positions, sampling_params=params, reset_batch=True
    )
    picked = values if sampled else values[:, -1].argmax(-1)
    assert (int(picked[1]), int(picked[0])) == (alone[0][1], alone[1][1])
    assert blocks_written(lanes.meshes[0])
    assert not lanes.meshes[1].ledger.writes
    assert bool(lanes.meshes[1].counters.calls) is not sampled
    if sampled:
        assert values[2:].tolist() == [0, 0]


@pytest.mark.covers("L04")
def test_a_prefix_is_cached_in_its_lane_only(twin_lanes):
    """Both lanes use block ids from 0: a prefix of lane 0 is another prompt's content in lane 1."""
    lanes = twin_lanes()
    serving, prompt = lanes.serving, prompts_of((70,), seed=5)[0]
    other = prompts_of((70,), seed=6)[0]
    serving.prefill([prompt, other], (0, 2))
    tables = serving.table.copy()
    tables[1, :2] = tables[0, :2]  # the prefix of slot 0, two blocks, shared with slot 1 of its lane
    tables[3, :2] = tables[2, :2]

    def resume(slot):
        return lanes.group.prefill_forward(
            np.array([prompt]),
            tables[[slot]],
            prompt_lens=np.array([70]),
            start_pos=np.array([64]),
            empty_slots=[slot],
        )

    whole = serving.prefill([prompt, prompt], (1, 3))
    np.testing.assert_allclose(whole[0], whole[1], atol=1e-4)
    np.testing.assert_allclose(resume(1)[0], whole[0], atol=1e-4)
    assert np.abs(resume(3)[0] - whole[0]).max() > 0.1


@pytest.mark.covers("P26")
def test_part_of_a_long_prompt_stays_in_its_blocks(twin_lanes):
    """2048 of 5000 tokens are scheduled, with 32 blocks of 64; the rest of the table is poison."""
    lanes = twin_lanes(2, 1, length=8192, block=64, chunk=2048, device_sampling=False)
    tokens = np.random.default_rng(0).integers(1, 256, (1, 5000))
    table = np.full((1, 128), 99, np.int32)
    table[0, :32] = np.arange(32)[::-1]
    clear(lanes)
    for mesh, handle in zip(lanes.meshes, lanes.kv_cache, strict=True):
        mesh.ledger.poison([99], caches=[tensor for layer in handle for tensor in layer])
    plans = []
    for lane in lanes.lanes:
        prepare = lane.prefill_runtime.prepare

        def noted(prepare=prepare, **call):
            prepared = prepare(**call)
            plans.append([request.request for request in prepared])
            return prepared

        lane.prefill_runtime.prepare = noted
    logits = lanes.group.prefill_forward(tokens, table, prompt_lens=np.array([2048]), empty_slots=[1])
    assert np.isfinite(logits).all()
    written = {(write.block, write.offset) for write in lanes.meshes[1].ledger.writes}
    assert written == {(block, offset) for block in range(32) for offset in range(64)}
    assert not lanes.meshes[0].ledger.writes
    layout = lanes.lanes[1].page_table_layout
    (single,) = _plan_prefill_requests(
        tokens=tokens,
        page_table=table,
        prompt_lens=np.array([2048]),
        empty_slots=[0],
        block_size=64,
        max_batch_size=1,
        max_prefill_chunk_size=2048,
        max_actual_page_table_width=layout.raw_capacity_width,
        canonical_page_table_width=layout.prefill_width,
    )
    (planned,) = plans[-1]
    assert (planned.prompt_lengths, planned.slots, planned.kind) == (single.prompt_lengths, (0,), single.kind)
    assert np.array_equal(planned.tokens, single.tokens)
    assert np.array_equal(planned.page_table, single.page_table)


@pytest.mark.covers("P31")
@pytest.mark.parametrize(
    ("lengths", "slots"), [((40, 60, 200, 100), (6, 4, 1, 3)), ((40, 200, 130, 100), (6, 1, 4, 3))]
)
def test_poison_behind_the_prompt_reaches_no_lane(twin_lanes, lengths, slots):
    """A wave of two in lane 1, or single rows; chunked and cached rows; unused table entries name poison."""
    lanes = twin_lanes(2, 4, length=512, chunk=128)
    reference = twin_lanes(1, 8, length=512, chunk=128)
    prompts = prompts_of(lengths, seed=9)
    poison = 63
    clear(lanes)
    table = np.full((8, 16), poison, np.int32)
    for slot, length in zip(slots, lengths, strict=True):
        used = -(-length // 32)
        table[slot, :used] = lanes.serving.table[slot, :used]
        assert poison not in table[slot, :used]
    for mesh, handle in zip(lanes.meshes, lanes.kv_cache, strict=True):
        mesh.ledger.poison([poison], caches=[tensor for layer in handle for tensor in layer])

    def run(group, rows, start_pos=None):
        return group.prefill_forward(
            np.array([prompts[row] + [0] * (200 - lengths[row]) for row in rows]),
            (table if group is lanes.group else reference.serving.table)[[slots[row] for row in rows]],
            prompt_lens=np.array([lengths[row] for row in rows]),
            start_pos=start_pos,
            empty_slots=[slots[row] for row in rows],
        )

    wanted = run(reference.group, range(4))
    np.testing.assert_allclose(run(lanes.group, range(4)), wanted, atol=1e-4)
    cached = run(lanes.group, [3], start_pos=np.array([64]))
    np.testing.assert_allclose(cached[0], wanted[3], atol=1e-4)
    for mesh in lanes.meshes:
        assert mesh.ledger.writes
        assert mesh.ledger.poisoned_writes() == []


@pytest.mark.covers("PLAN-34")
def test_each_lane_plans_its_own_wave(twin_lanes):
    lanes = twin_lanes(2, 16, device_sampling=False)
    waves = []
    for index, lane in enumerate(lanes.lanes):
        invoke = lane.prefill_runtime.invoke

        def noted(prepared, index=index, invoke=invoke, **options):
            request = prepared.request
            waves.append((index, request.kind, request.padded_batch_size, len(request.source_rows)))
            return invoke(prepared, **options)

        lane.prefill_runtime.invoke = noted
    prompts = prompts_of([128] * 30)
    order = np.random.default_rng(1).permutation([*range(15), *range(16, 31)]).tolist()
    logits = lanes.serving.prefill(prompts, order)
    assert logits.shape == (30, 1, 256)
    assert waves == [(0, "batched", 16, 15), (1, "batched", 16, 15)]


@pytest.mark.covers("T14")
def test_lanes_with_equal_trace_ids_replay_their_own_work(twin_lanes, monkeypatch):
    lanes = twin_lanes(2, 1, trace_mode="all", device_sampling=False)
    made = []
    for lane in lanes.lanes:
        capture = lane.trace_compiler.capture_all

        def numbered(capture=capture):
            """Every device numbers its traces from 1."""
            numbers = itertools.count(1)
            made.append([])

            def next_id():
                made[-1].append(TraceNumber(next(numbers)))
                return made[-1][-1]

            monkeypatch.setattr("ttnn_twin.trace_region.MeshTraceId", next_id)
            capture()

        monkeypatch.setattr(lane.trace_compiler, "capture_all", numbered)
    lanes.warm_up()
    assert len(made[0]) > 1
    assert made[0] == made[1]
    prompts = PROMPTS[:2]
    both = lanes.serving.generate(prompts, (1, 0), steps=3, sampled=False)
    assert both[0] != both[1]
    lanes.lanes[0].cleanup()
    alone = lanes.lanes[1]
    logits = alone.prefill_forward(np.array([prompts[0]]), lanes.serving.table[[1]])
    assert int(logits[0, -1].argmax()) == both[0][0]
    for step in range(3):
        logits, _ = alone.decode_forward(
            np.array([both[0][step]]), np.array([len(prompts[0]) + step]), lanes.serving.table[[1]]
        )
        assert int(logits[0, -1].argmax()) == both[0][step + 1]
    with pytest.raises(RuntimeError, match="was cleaned up") as caught:
        lanes.serving.prefill(prompts, (1, 0))
    assert caught.value.lane == 0
