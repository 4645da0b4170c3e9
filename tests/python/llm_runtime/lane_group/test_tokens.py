# SPDX-License-Identifier: Apache-2.0
"""Lanes answer token by token as one lane of the same total capacity does."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from llm_runtime.prefill.sampling_params import SamplingParams
from support.lanes_model import prompts_of

LENGTHS = (20, 5, 33, 70)
ORDERS = [(3, 0, 2, 1), (0, 1, 2, 3), (2, 3, 0, 1)]
STEPS = 5


@pytest.fixture(scope="module")
def wanted(one_lane):
    """Greedy continuations by the single eager lane, from logits."""
    tokens = one_lane.serving.generate(prompts_of(LENGTHS), range(4), steps=STEPS, sampled=False)
    assert len({token for row in tokens for token in row}) > STEPS * 2, "the model must not repeat itself"
    return tokens


@pytest.mark.parametrize("slots", ORDERS)
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("group", ["eager_lanes", "traced_lanes"])
def test_two_lanes(request, wanted, group, sampled, slots):
    lanes = request.getfixturevalue(group)
    assert lanes.serving.generate(prompts_of(LENGTHS), slots, steps=STEPS, sampled=sampled) == wanted


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("group", ["eager_lanes", "traced_lanes"])
def test_explicit_eager_targets_and_caches(request, wanted, group, sampled):
    lanes = request.getfixturevalue(group)
    tokens = lanes.serving.generate(
        prompts_of(LENGTHS),
        (1, 2, 0, 3),
        steps=STEPS,
        sampled=sampled,
        kv_cache=lanes.kv_cache,
        execution=lanes.group.eager_execution,
    )
    assert tokens == wanted


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("group", ["eager_lanes", "traced_lanes"])
def test_split_reads(request, wanted, group, sampled):
    lanes = request.getfixturevalue(group)
    tokens = lanes.serving.generate(prompts_of(LENGTHS), (3, 1, 2, 0), steps=STEPS, sampled=sampled, asynchronous=True)
    assert tokens == wanted


def test_some_rows_at_a_time(traced_lanes, wanted):
    """Three requests in slots of both lanes; the fourth slot is idle."""
    prompts = prompts_of(LENGTHS)
    assert traced_lanes.serving.generate(prompts[:3], (2, 1, 3), steps=STEPS, sampled=True) == wanted[:3]
    assert traced_lanes.serving.generate(prompts[3:], (2,), steps=STEPS, sampled=True) == wanted[3:]


@pytest.mark.parametrize("trace_mode", ["none", "all"])
def test_four_lanes_of_one_row_on_a_late_device(twin_lanes, wanted, trace_mode):
    lanes = twin_lanes(4, 1, trace_mode=trace_mode, execution="deferred")
    if trace_mode == "all":
        lanes.warm_up()
    prompts = prompts_of(LENGTHS)
    assert lanes.serving.generate(prompts, (2, 0, 3, 1), steps=STEPS, sampled=True) == wanted
    assert lanes.serving.generate(prompts, (1, 3, 2, 0), steps=STEPS, sampled=False, asynchronous=True) == wanted


@pytest.mark.parametrize("trace_mode", ["none", "decode_only"])
def test_seeded_rows_keep_their_stream_in_any_lane(twin_lanes, one_lane, trace_mode):
    lanes = twin_lanes(2, 2, trace_mode=trace_mode, stochastic=True)
    if trace_mode != "none":
        lanes.warm_up()
    prompts = prompts_of(LENGTHS)
    rows = {"temperature": [0.9, 1.3, 0.0, 1.0], "top_k": [32, 5, 1, 20], "top_p": [1.0, 0.9, 1.0, 0.8]}
    rows["seed"] = [11, 12, None, 14]
    single = one_lane.serving.generate(prompts, range(4), steps=STEPS, sampled=True, row_sampling=rows)
    assert lanes.serving.generate(prompts, (3, 0, 2, 1), steps=STEPS, sampled=True, row_sampling=rows) == single
    greedy = one_lane.serving.generate(prompts, range(4), steps=STEPS, sampled=True)
    assert [row == other for row, other in zip(single, greedy, strict=True)] == [False, False, True, False]


def test_two_steps_in_flight(traced_lanes, wanted):
    """Step n is completed on another thread, after step n + 1 was submitted; inputs stay on the devices."""
    serving, group = traced_lanes.serving, traced_lanes.group
    prompts, slots = prompts_of(LENGTHS), (3, 0, 2, 1)
    greedy = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)
    first, _ = serving.prefill(prompts, slots, sampling_params=greedy)
    tokens = dict(zip(slots, first.tolist(), strict=True))
    positions = {slot: len(prompt) for slot, prompt in zip(slots, prompts, strict=True)}
    made: list[list[int]] = []
    completion = None
    uploads = None
    for step in range(STEPS):
        raw = serving.step(
            tokens, {slot: at + step for slot, at in positions.items()}, sampling_params=greedy,
            reset_batch=step == 0, read_from_device=False,
        )  # fmt: skip
        host, events = group.read_decode_output(raw, async_read=True)
        assert len(events) == 2
        if completion is not None:
            completion.start()
            completion.join(60)
        completion = threading.Thread(
            target=lambda host=host: made.append(group.process_decode_output_host(host, is_tokens=True)[0].tolist())
        )
        if step == 1:
            uploads = [mesh.counters.bytes_to_device for mesh in traced_lanes.meshes]
    completion.start()
    completion.join(60)
    assert [mesh.counters.bytes_to_device for mesh in traced_lanes.meshes] == uploads, "a steady step copied inputs"
    rows = [[int(first[row]), *(step[slot] for step in made)] for row, slot in enumerate(slots)]
    assert rows == wanted


def test_logits_of_both_lanes_in_row_order(eager_lanes, one_lane):
    prompts = prompts_of(LENGTHS)
    logits = eager_lanes.serving.prefill(prompts, (2, 0, 1, 3))
    assert logits.shape == (4, 1, 256)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, one_lane.serving.prefill(prompts, range(4)), atol=1e-4)


def test_the_evidence_of_a_replay_names_the_lane(traced_lanes):
    traced_lanes.serving.prefill(prompts_of((7, 9)), (1, 2))
    for index, target in enumerate(traced_lanes.group.traced_prefill_execution):
        (evidence,) = target.recent_prefill_replay_evidence
        assert (evidence.lane, evidence.rank, evidence.active_batch_size) == (index, index, 1)


@pytest.mark.torch
def test_torch_in_torch_out(eager_lanes, wanted):
    torch = pytest.importorskip("torch")
    serving = eager_lanes.serving
    prompts = prompts_of(LENGTHS)
    tokens = torch.zeros((4, max(LENGTHS)), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    logits = eager_lanes.group.prefill_forward(
        tokens,
        torch.from_numpy(serving.table[[3, 0, 2, 1]]),
        prompt_lens=torch.tensor(LENGTHS),
        empty_slots=[3, 0, 2, 1],
    )
    assert isinstance(logits, torch.Tensor)
    assert logits[:, -1].argmax(-1).tolist() == [row[0] for row in wanted]
