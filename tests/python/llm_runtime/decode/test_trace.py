# SPDX-License-Identifier: Apache-2.0
"""Captured steps: plans, what each refresh copies, and that replays give what a fresh runtime gives."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from llm_runtime.decode import DecodeRefreshPolicy
from llm_runtime.decode.trace import persistent_inputs_of
from llm_runtime.prefill.sampling_helpers import SamplingParams
from llm_runtime.seed_manager import device_seed
from support.tiny_decode_model import DecodeLane, TinyDecodeModel, decode_runtime, expected_logits

STALE = (63, 63)


def copies(mesh, step):
    """How many host tensors a call copies into device tensors."""
    before = mesh.counters.calls["copy_host_to_device_tensor"]
    result = step()
    return mesh.counters.calls["copy_host_to_device_tensor"] - before, result


def tokens_of(result):
    return result[0].tolist()


@pytest.mark.covers("DEC-46")
def test_a_capture_plan_stages_inputs_and_remembers_the_sampling_values(runtime, model, request_for, topk):
    prepared = runtime.prepare(**request_for((3, 5), (4, 9), sampling_params=topk(seed=[1, 2])))
    plan = runtime.capture_plan(prepared)
    assert plan.refresh_policy == DecodeRefreshPolicy(
        every_replay=("sampling",),
        full_on_batch_reset=True,
        full_on_graph_switch=True,
        full_without_device_feedback=True,
        refresh_page_table_on_change=True,
    )
    persistent = plan.prepare_inputs()
    assert persistent.device_inputs.tokens.cpu().to_numpy().reshape(-1)[:2].tolist() == [3, 5]
    assert persistent.device_inputs.positions.cpu().to_numpy().tolist() == [4, 9]
    assert [tuple(tensor.shape) for tensor in persistent.kpt] == [(32,)] * 3
    sampling = prepared.prepared_sampling
    assert persistent.kpt_signature == [(sampling.top_k, sampling.top_p, sampling.temperature)]
    assert persistent.seed_buffer is model.sampling.config.seeds.device
    assert persistent.owned_tensor_values() == (persistent.device_inputs, persistent.kpt)
    output = plan.prime(persistent)
    assert plan.release_prime_output(output) == []
    assert not output[0].is_allocated()
    runtime._health.release(persistent)
    assert persistent.seed_buffer.is_allocated()


def test_an_argmax_plan_has_no_sampling_values(runtime, request_for, greedy):
    persistent = runtime.capture_plan(runtime.prepare(**request_for(sampling_params=greedy()))).prepare_inputs()
    assert (persistent.kpt, persistent.kpt_signature) == (None, None)


@pytest.mark.covers("DEC-14", "T05", "R03")
def test_a_trace_keeps_its_tensors_and_replays_the_current_request(lane, model, request_for, topk):
    call = request_for(sampling_params=topk(seed=[1, 2]))
    lane.capture(call)
    record = lane.traces.registered_coverage("decode")[0][0]
    artifact = lane.traces.get(record).artifact
    inputs = persistent_inputs_of(artifact)
    before = [tensor.buffer_id for tensor in (*inputs.device_inputs.values(), *inputs.kpt)]
    assert inputs.seed_buffer is model.sampling.config.seeds.device
    bodies = model.body_calls
    gc.collect()
    first = lane.traced.decode_forward(
        **request_for((3, 5), (4, 9), [[9, 10], [11, 12]], sampling_params=topk(seed=[8, 9])), reset_batch=True
    )
    assert model.sampling.config.seeds.current()[:2] == [device_seed(8, 4), device_seed(9, 9)]
    second = lane.traced.decode_forward(
        **request_for((1, 1), (33, 2), [[9, 10], [11, 12]], sampling_params=topk()), reset_batch=True
    )
    assert (tokens_of(first), tokens_of(second)) == ([7, 14], [34, 3])
    after = persistent_inputs_of(lane.traces.get(record).artifact)
    assert [tensor.buffer_id for tensor in (*after.device_inputs.values(), *after.kpt)] == before
    assert model.body_calls == bodies
    assert {(write.block, write.position) for write in list(lane.mesh.ledger.writes)[-4:]} == {
        (9, 4),
        (11, 9),
        (10, 33),
        (11, 2),
    }


@pytest.mark.covers("D20")
def test_steady_steps_copy_nothing_and_wait_for_nothing(lane, request_for, greedy):
    call = request_for((1, 1), (0, 0), sampling_params=greedy())
    lane.capture(call)
    lane.traced.decode_forward(**call, reset_batch=True)
    mesh, sequence = lane.mesh, []
    for position in range(1, 9):
        step = request_for(STALE, (position, position), sampling_params=greedy())

        def submit(step=step):
            raw = lane.traced.decode_forward(**step, read_from_device=False)
            return lane.decode.read_decode_output(raw, async_read=True)[0]

        syncs = mesh.counters.calls["synchronize_device"], mesh.counters.syncs
        copied, host = copies(mesh, submit)
        assert copied == 0
        assert (mesh.counters.calls["synchronize_device"], mesh.counters.syncs) == syncs
        sequence.append(tokens_of(lane.decode.process_decode_output_host(host, is_tokens=True))[0])
    assert sequence == [2, 4, 7, 11, 16, 22, 29, 37]


@pytest.mark.covers("DEC-47")
def test_sampling_values_are_uploaded_when_they_change(lane, request_for, topk):
    call = request_for((1, 1), (0, 0), sampling_params=topk())
    lane.capture(call)
    mesh, params = lane.mesh, topk(seed=[5, 5])
    first, _ = copies(mesh, lambda: lane.traced.decode_forward(**call, reset_batch=True))
    uploads = []
    for position, options in enumerate(({}, {"top_p": [0.5, 0.5]}, {"top_p": [0.5, 0.5]}, {}), 1):
        step = request_for(STALE, (position, position), sampling_params=replace(params, **options))
        uploads.append(copies(mesh, lambda step=step: lane.traced.decode_forward(**step))[0])
    assert first == 4 + 1
    assert uploads == [1, 1 + 3, 1, 1 + 3]


def expected_copies(*, reset, changed, switched, feedback):
    """The written table: four inputs on a full refresh, the page table alone when only it changed, else nothing."""
    if reset or switched or not feedback:
        return 4
    return 1 if changed else 0


@pytest.mark.covers("D07", "D20")
@pytest.mark.parametrize(("reset", "changed", "switched", "feedback"), list(product((False, True), repeat=4)))
def test_the_refresh_table(lane, request_for, greedy, reset, changed, switched, feedback):
    sampled = {"sampling_params": greedy()}
    path = sampled if feedback else {}
    lane.capture(request_for(**sampled), request_for())
    lane.traced.decode_forward(**request_for((1, 1), (0, 0), **path), reset_batch=True)
    if switched:
        other = {} if feedback else sampled
        lane.traced.decode_forward(**request_for((1, 1), (0, 0), **other), reset_batch=True)
    table = [[9, 4, 5], [6, 7, 8]] if changed else None
    step = request_for((4, 4), (1, 1), table, **path)
    copied, result = copies(lane.mesh, lambda: lane.traced.decode_forward(**step, reset_batch=reset))
    assert copied == expected_copies(reset=reset, changed=changed, switched=switched, feedback=feedback)
    staged = copied == 4
    expected = 5 if staged else 2
    answer = result[0][0, 0].argmax() if not feedback else result[0][0]
    assert answer == expected
    assert lane.mesh.ledger.writes[-2].block == (9 if changed else 3)


def test_a_model_without_feedback_stages_every_step(mesh, request_for, greedy):
    model = TinyDecodeModel(mesh)
    model.increment_positions = None
    lane = DecodeLane(model)
    call = request_for((1, 1), (0, 0), sampling_params=greedy())
    lane.capture(call)
    lane.traced.decode_forward(**call, reset_batch=True)
    copied, result = copies(
        mesh, lambda: lane.traced.decode_forward(**request_for((5, 6), (7, 7), sampling_params=greedy()))
    )
    assert (copied, tokens_of(result)) == (4, [12, 13])
    lane.close()


@pytest.mark.covers("T27")
def test_rows_that_end_are_idle_in_the_next_step(mesh, request_for, greedy):
    lane = DecodeLane(TinyDecodeModel(mesh, lane_capacity=4))
    table = [[1], [2], [3], [4]]
    params = greedy(4)
    call = request_for((1,) * 4, (0,) * 4, table, sampling_params=params)
    lane.capture(call)
    lane.traced.decode_forward(**call, reset_batch=True)
    before = len(mesh.ledger.writes)
    lane.traced.decode_forward(
        **request_for((5, 6, 0, 0), (1, 1, -1, -1), table, sampling_params=params), reset_batch=True
    )
    assert [(write.block, write.position) for write in list(mesh.ledger.writes)[before:]] == [(1, 1), (2, 1)]
    lane.close()


@pytest.mark.covers("T29")
def test_a_steady_row_enters_a_block_that_the_caller_adds(lane, mesh, request_for, greedy):
    call = request_for((0, 0), (30, 0), [[5], [6]], sampling_params=greedy())
    lane.capture(call)
    tables = set()
    for position in range(30, 35):
        table = [[5, 6, 7], [8, 0, 0]] if position >= 32 else [[5], [8]]
        step = request_for((0, 0), (position, position - 30), table, sampling_params=greedy())
        lane.traced.decode_forward(**step, reset_batch=position == 30)
        artifact = lane.traces.get(lane.traces.registered_coverage("decode")[0][0]).artifact
        tables.add(persistent_inputs_of(artifact).device_inputs.page_table.buffer_id)
    written = [(write.block, write.offset) for write in list(mesh.ledger.writes)[-10:]][::2]
    assert written == [(5, 30), (5, 31), (6, 0), (6, 1), (6, 2)]
    assert len(tables) == 1


@pytest.mark.covers("O06")
def test_a_staged_step_is_not_disturbed_by_the_next_one(deferred_lane, request_for):
    lane = deferred_lane
    call = request_for((3, 5), (4, 9))
    lane.capture(call)
    hosts = []
    for tokens in ((3, 5), (8, 1)):
        arrays = request_for(tokens, (4, 9))
        raw = lane.traced.decode_forward(**arrays, read_from_device=False)
        hosts.append(lane.decode.read_decode_output(raw, async_read=True)[0])
        for array in (arrays["tokens"], arrays["start_pos"], arrays["page_table"]):
            array[:] = 0
    rows = [lane.decode.process_decode_output_host(host)[0] for host in hosts]
    np.testing.assert_array_equal(rows[0][0, 0], expected_logits(3, 4))
    np.testing.assert_array_equal(rows[1][1, 0], expected_logits(1, 9))


@pytest.mark.parametrize("path", ["logits", "argmax", "topk"])
def test_replays_equal_eager_steps(lane, mesh, request_for, greedy, path):
    params = {
        "logits": None,
        "argmax": greedy(),
        "topk": SamplingParams(temperature=[0.7, 0.9], top_k=[8, 5], top_p=[0.9, 1.0], seed=[11, 12]),
    }[path]
    eager = decode_runtime(TinyDecodeModel(mesh))
    lane.capture(request_for(sampling_params=params))
    for position, tokens in enumerate(((3, 5), (9, 2), (20, 30))):
        step = request_for(tokens, (position, position + 30), sampling_params=params, reset_batch=True)
        want, _ = eager.consume(eager.invoke(eager.prepare(**step)))
        got, _ = lane.traced.decode_forward(**step)
        np.testing.assert_array_equal(got, want)


def test_decode_variants_compile_before_the_first_capture(lane, request_for, greedy, topk):
    calls = [request_for(), request_for(sampling_params=greedy()), request_for(sampling_params=topk())]
    compiles = []
    for call in calls:
        lane.traced.compile_decode(**call)
        compiles.append(lane.mesh.counters.captures)
    entries = lane.mesh.num_program_cache_entries()
    lane.traces.capture_all()
    assert (compiles, lane.mesh.counters.captures) == ([0, 0, 0], 3)
    assert lane.mesh.num_program_cache_entries() == entries
    for call in calls:
        lane.traced.decode_forward(**call, reset_batch=True)
    assert lane.mesh.num_program_cache_entries() == entries
