# SPDX-License-Identifier: Apache-2.0
"""Faults of comparable runtimes around captured traces, on real lanes."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin
from llm_runtime.config import WarmupConfig
from llm_runtime.errors import TraceCoverageError
from llm_runtime.prefill.sampling_params import SamplingParams
from support.one_layer_lane import BLOCK, OneLayerLane, check_equal
from support.recording_controller import RecordingController
from support.tiny_decode_model import DecodeLane, TinyDecodeModel, TinySampler
from support.warm_lane import WarmLane


@pytest.fixture
def open_lane():
    """Makes lanes, warmed unless told; they are closed with a check that nothing is left."""
    lanes = []

    def make(*, warm=True, **options):
        lanes.append(OneLayerLane(**options))
        if warm:
            lanes[-1].llama.warm_up()
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.close()


@pytest.mark.covers("T06")
def test_every_decode_variant_compiles_before_the_first_capture():
    """Greedy, top-k and log-probabilities, which eight devices have."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 8), trace_region_size=1 << 24)
    lane = WarmLane(
        mesh, lengths=(128,), raw=8, warmup=WarmupConfig(include_decode_top_k=True), sampler=TinySampler(mesh)
    )
    lane.warm_decode(trace=True, sampling=True)
    lane.warm_prefill(trace=True, sampling=True)
    cases = lane.config.sampled_plan.decode
    assert {(case.sampling_path, case.logprobs_enabled) for case in cases} == {
        ("logits", False),
        *((path, log_probs) for path in ("argmax", "topk") for log_probs in (False, True)),
    }
    entries = [entry[1] for entry in lane.log if len(entry) == 3] + ["capture"] * lane.captures()
    assert lane.log[-1] == ("capture",)
    assert lane.captures() == 1
    assert entries.count("decode") == len(cases)
    log_probs = [alias.program_signature for alias in lane.coordinator.coverage_manifest.aliases]
    assert any(getattr(signature, "logprobs_enabled", False) for signature in log_probs)
    lane.close()
    ttnn_twin.close_mesh_device(mesh)


@pytest.mark.covers("T07")
@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_a_tensor_made_after_the_capture_stops_the_next_replay(open_lane, call):
    lane = open_lane()
    replays = lane.mesh.counters.replays
    staging = ttnn_twin.zeros((4, 4), device=lane.mesh)
    with pytest.raises(RuntimeError, match=rf"tensor #{staging.buffer_id} .*allocate them before the first capture"):
        if call == "prefill":
            lane.executor.prefill_forward(**lane.prefill_call())
        else:
            lane.executor.decode_forward(**lane.decode_call(reset_batch=True))
    assert lane.mesh.counters.replays == replays
    ttnn_twin.deallocate(staging)


@pytest.mark.covers("T08")
@pytest.mark.parametrize("execution", ["immediate", "deferred"])
def test_one_batch_three_times(open_lane, execution):
    lane = open_lane(execution=execution, length=256)
    executor, rounds = lane.executor, []
    for _ in range(3):
        prompt = executor.prefill_forward(**lane.prefill_call(200, rows=2))
        tokens, steps = prompt[:, -1].argmax(-1), [prompt]
        for position in range(200, 204):
            call = {**lane.decode_call(position=position, reset_batch=position == 200), "tokens": tokens}
            logits, _ = executor.decode_forward(**call)
            tokens = logits[:, -1].argmax(-1)
            steps.append(logits)
        rounds.append(np.concatenate(steps, axis=1))
    np.testing.assert_array_equal(rounds[1], rounds[0])
    np.testing.assert_array_equal(rounds[2], rounds[0])


class CountingController(RecordingController):
    """Counts the sampled tokens of each row on the device, as penalties need it."""

    def __init__(self, sampling, mesh):
        super().__init__(sampling)
        self._zero = ttnn_twin.Tensor(np.zeros(32, np.int32), ttnn_twin.int32)
        self._counts = ttnn_twin.to_device(self._zero, mesh)

    @property
    def counts(self):
        return set(self._counts.cpu().to_numpy().tolist())

    def reset(self, state, sampling=None):
        super().reset(state, sampling)
        ttnn_twin.copy_host_to_device_tensor(self._zero, self._counts)

    def synchronize_decode(self, state, sampling, *, reset_batch):
        if reset_batch:
            ttnn_twin.copy_host_to_device_tensor(self._zero, self._counts)
        return super().synchronize_decode(state, sampling, reset_batch=reset_batch)

    def decode_forward(self, *args, count_tokens, **options):
        if count_tokens:
            ttnn_twin.plus_one(self._counts)
        return super().decode_forward(*args, count_tokens=count_tokens, **options)


@pytest.mark.covers("T09")
def test_a_dry_run_counts_nothing_and_a_replay_counts(mesh):
    model = TinyDecodeModel(mesh)
    controller = CountingController(model.sampling, mesh)
    lane = DecodeLane(model, sampling_state_controller=controller, sampling_state=controller.create_state())

    def call(**penalties):
        return {
            "tokens": np.array([3, 5]),
            "start_pos": np.array([4, 9]),
            "page_table": np.array([[3, 4], [6, 7]], np.int32),
            "sampling_params": sampling(**penalties),
        }

    lane.traced.compile_decode(**call())
    lane.traced.compile_decode(**call(presence_penalty=[0.5, 0.0]))
    assert controller.counts == {0}
    lane.traces.capture_all()
    lane.traced.decode_forward(**call(), reset_batch=True)
    assert controller.counts == {1}
    lane.traced.decode_forward(**call(presence_penalty=[0.5, 0.0]))
    assert controller.counts == {2}
    lane.close()


def sampling(**penalties):
    return SamplingParams(temperature=[1.0, 1.0], top_k=[1, 1], top_p=[1.0, 1.0], **penalties)


@pytest.mark.covers("T12")
@pytest.mark.parametrize("sampled", [False, True])
def test_an_input_that_is_missing_or_new_never_replays_old_contents(open_lane, sampled):
    """A table or sampling parameters that the trace was captured with, or without."""
    lane = open_lane(sampling=sampled, device_stochastic_sampling=False)
    executor = lane.executor
    before = executor.prefill_forward(**lane.prefill_call()), executor.decode_forward(**lane.decode_call())
    replays = lane.traces.replay_count
    for call, run in (
        (lane.prefill_call(), executor.prefill_forward),
        (lane.decode_call(), executor.decode_forward),
        (lane.prefill_call(), executor.compile_prefill),
        (lane.decode_call(), executor.compile_decode),
    ):
        with pytest.raises(TypeError, match="page_table"):
            run(**{**call, "page_table": None})
    unknown = lane.decode_call(path="topk", reset_batch=True)
    with pytest.raises(TraceCoverageError if sampled else ValueError, match="sampling"):
        executor.decode_forward(**unknown)
    assert lane.traces.replay_count == replays
    after = executor.prefill_forward(**lane.prefill_call()), executor.decode_forward(**lane.decode_call())
    check_equal(after, before)


@pytest.mark.covers("T24")
def test_padding_needs_no_block_and_a_miss_changes_no_mode(open_lane):
    """Every block belongs to a row; three rows run as a wave of four, and one slot of the decode step is idle."""
    lane = open_lane(rows=4, sampling=True, device_stochastic_sampling=False)
    executor, ledger, table = lane.executor, lane.mesh.ledger, lane.table()
    for row, blocks in enumerate(table):
        for block in blocks:
            ledger.own(int(block), row)
    ledger.take_writes()
    executor.prefill_forward(**lane.prefill_call(40, rows=3))
    (evidence,) = executor.traced_executor.recent_prefill_replay_evidence
    assert (evidence.active_batch_size, evidence.padded_batch_size) == (3, 4)
    step = lane.decode_call(path="argmax", reset_batch=True)
    step["start_pos"][3] = -1
    executor.decode_forward(**step)
    written = {(write.owner, write.block) for write in ledger.take_writes()}
    assert written == {(row, int(table[row, block])) for row in range(3) for block in (0, 1)}
    with pytest.raises(TraceCoverageError):
        executor.decode_forward(**lane.decode_call(path="topk", reset_batch=True))
    replays = lane.traces.replay_counts
    executor.decode_forward(**lane.decode_call(path="argmax", reset_batch=True))
    executor.prefill_forward(**lane.prefill_call(40, rows=3))
    assert lane.traces.replay_counts == {name: count + 1 for name, count in replays.items()}
    eager = executor.traced_executor.runtime_summary()["eager_prefill_executions"]
    assert eager == 1, "only the run before the warmup"


@pytest.mark.covers("L05")
@pytest.mark.parametrize("trace_mode", ["none", "all"])
def test_a_row_decodes_between_the_chunks_of_another(open_lane, trace_mode):
    """A prompt of four chunks comes chunk by chunk; a row decodes in between, as a server interleaves them."""
    lane = open_lane(trace_mode=trace_mode, length=512)
    executor, length = lane.executor, 500
    prompt, short = lane.prefill_call(length), lane.prefill_call(30)
    short = {**short, "page_table": lane.table()[1:], "empty_slots": [1]}

    def decode(tokens, *, positions):
        call = lane.decode_call(reset_batch=True)
        logits, _ = executor.decode_forward(**{**call, "tokens": tokens, "start_pos": np.array(positions)})
        return logits[:, -1].argmax(-1)

    whole = executor.prefill_forward(**prompt)
    alone = [int(executor.prefill_forward(**short)[0, -1].argmax())]
    for step in range(4):
        alone.append(int(decode(np.array([0, alone[-1]]), positions=[-1, 30 + step])[1]))
    after = int(decode(np.array([int(whole[0, -1].argmax()), 0]), positions=[length, -1])[0])

    made = [int(executor.prefill_forward(**short)[0, -1].argmax())]
    for start in range(0, length, 128):
        end = min(start + 128, length)
        part = executor.prefill_forward(
            tokens=prompt["tokens"][:, :end],
            page_table=prompt["page_table"][:, : -(-end // BLOCK)],
            prompt_lens=np.array([end]),
            start_pos=np.array([start]),
        )
        made.append(int(decode(np.array([0, made[-1]]), positions=[-1, 30 + len(made) - 1])[1]))
    np.testing.assert_allclose(part, whole, rtol=0, atol=1e-5)
    assert made == alone
    assert int(decode(np.array([int(part[0, -1].argmax()), 0]), positions=[length, -1])[0]) == after
