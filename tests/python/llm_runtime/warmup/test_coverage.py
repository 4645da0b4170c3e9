# SPDX-License-Identifier: Apache-2.0
"""After warmup nothing that serving can ask for is missing: checked with the real planner and with real calls."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from llm_runtime.config import WarmupConfig
from llm_runtime.errors import TraceCoverageError
from llm_runtime.prefill.sampling_helpers import SamplingParams
from support.prefill_model import echo_row


def params_of(path, rows):
    if path == "logits":
        return None
    greedy = path == "argmax"
    return SamplingParams(
        temperature=[0.0 if greedy else 1.0] * rows, top_k=[1 if greedy else 4] * rows, top_p=[1.0] * rows
    )


def warm(lane, *, trace=True, sampling=True):
    lane.warm_prefill(trace=trace, sampling=sampling)
    lane.warm_decode(trace=trace, sampling=sampling)


def served_signatures(lane, *, longest):
    """Every program signature that the real planner makes for prompts up to `longest` tokens."""
    found = {}
    for path in ("logits", "topk", "argmax"):
        for length in range(1, longest + 1):
            for start in range(0, length, 32):
                call = lane.prompts([length], start_pos=np.array([start]), sampling_params=params_of(path, 1))
                for request in lane.prefill.prepare(**call):
                    for signature in request.program_signatures:
                        found.setdefault(signature, (path, length, start))
        for rows, length in product(range(2, 5), [*range(1, longest + 1, 31), longest]):
            call = lane.prompts([length] * rows, sampling_params=params_of(path, rows))
            for request in lane.prefill.prepare(**call):
                for signature in request.program_signatures:
                    found.setdefault(signature, (path, length, rows))
    return found


@pytest.mark.covers("W04", "WRM-41", "W02")
@pytest.mark.parametrize(
    ("raw", "chunk", "lengths"),
    [(16, 128, (128,)), (12, 256, (128,)), (8, 256, (128,)), (12, 512, (128, 1024))],
    ids=["chunks of a bucket", "chunk without a bucket", "one chunk", "lengths beyond the cap"],
)
def test_the_planner_makes_no_signature_that_was_not_warmed(new_lane, raw, chunk, lengths):
    lane = new_lane(raw=raw, chunk=chunk, lengths=lengths)
    warm(lane)
    warmed = {record.signature for record in lane.programs.compiled_programs}
    missing = {
        signature: call
        for signature, call in served_signatures(lane, longest=raw * 32).items()
        if signature not in warmed
    }
    assert missing == {}


@pytest.mark.covers("W01", "T23")
def test_serving_compiles_and_captures_nothing(new_lane, mesh):
    lane = new_lane(raw=16, chunk=128, lengths=(128,))
    warm(lane)
    before = (mesh.counters.compiles, mesh.counters.captures, len(lane.programs.compiled_programs))
    for lengths, path in product(([1], [128], [129], [500], [100] * 4, [100, 300, 17]), ("logits", "topk", "argmax")):
        lane.traced.prefill_forward(**lane.prompts(lengths, sampling_params=params_of(path, len(lengths))))
    lane.traced.prefill_forward(**lane.prompts([200], start_pos=np.array([64])))
    decode = {"tokens": np.ones(4, np.int64), "page_table": np.arange(4, dtype=np.int32)[:, None]}
    for position, path in enumerate(("logits", "argmax", "argmax")):
        lane.traced.decode_forward(
            **decode, start_pos=np.full(4, position), sampling_params=params_of(path, 4), reset_batch=position < 2
        )
    after = (mesh.counters.compiles, mesh.counters.captures, len(lane.programs.compiled_programs))
    assert after == before
    assert lane.traced.runtime_summary()["eager_prefill_executions"] == 0


@pytest.mark.covers("W06")
def test_a_prompts_answer_does_not_depend_on_its_companions(new_lane):
    lane = new_lane(raw=32, chunk=1024, lengths=(128, 1024))
    warm(lane, sampling=False)
    alone = [lane.traced.prefill_forward(**lane.prompts([length])) for length in (100, 900)]
    for lengths in ([100] * 4, [900, 100, 900, 900], [900, 900, 900, 100]):
        rows = lane.traced.prefill_forward(**lane.prompts(lengths))
        for row, length in enumerate(lengths):
            np.testing.assert_array_equal(rows[row], alone[0 if length == 100 else 1][0])
            np.testing.assert_array_equal(rows[row, 0], echo_row(1, length - 1))


@pytest.mark.covers("T20")
def test_a_wave_that_the_configuration_left_out_is_refused_and_reported(new_lane, mesh):
    lane = new_lane(raw=8, lengths=(128,), warmup=WarmupConfig(prefill_batch_sizes=(1,)), sampling=False)
    warm(lane, sampling=False)
    gaps = lane.coordinator.config.coverage_gaps
    assert [(case.sequence_length, case.batch_size) for case in gaps] == [(128, 2), (128, 4)]
    writes = len(mesh.ledger.writes)
    with pytest.raises(TraceCoverageError) as error:
        lane.traced.prefill_forward(**lane.prompts([100, 100]))
    assert ("padded_batch_size", 2) in error.value.signature_material
    assert len(mesh.ledger.writes) == writes
    assert lane.traced.prefill_forward(**lane.prompts([100])).shape == (1, 1, 64)


@pytest.mark.covers("T22")
def test_registered_coverage_is_no_permission_before_the_barrier(new_lane, mesh):
    lane = new_lane(raw=8, lengths=(128,), sampling=False)
    lane.warm_prefill(trace=True)
    writes = len(mesh.ledger.writes)
    with pytest.raises(TraceCoverageError, match="not captured"):
        lane.traced.prefill_forward(**lane.prompts([100]))
    assert len(mesh.ledger.writes) == writes


@pytest.mark.covers("W02")
def test_the_manifest_lists_what_was_warmed(new_lane):
    lane = new_lane(raw=8, lengths=(128,), lane_capacity=4)
    warm(lane)
    manifest = lane.coordinator.coverage_manifest
    waves = {
        signature.padded_batch_size
        for signature in manifest.traced_source_program_signatures
        if hasattr(signature, "padded_batch_size")
    }
    assert waves == {1, 2, 4}
    assert manifest.eager_program_signatures == ()
    assert len(manifest.aliases) == len(lane.programs.compiled_programs)
    assert len(manifest.trace_signatures) == lane.traces.trace_count
