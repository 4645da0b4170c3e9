# SPDX-License-Identifier: Apache-2.0
"""The traced path on real ttnn: everything but the four trace calls, which the mock cannot serve, is ttnn's own.

A capture runs the body eagerly and a replay leaves its outputs as they are, so that copies into persistent inputs,
reads, events and the compile gate around the trace calls are real.
"""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.errors import TraceCoverageError
from llm_runtime.prefill.sampling_params import SamplingParams
from support.conformance.cases import calls
from support.ttnn_lane import open_lane

GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)
RANDOM = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=7)
LANES = [("smollm2", 8), ("llama-3.2-1b", 32)]


@pytest.fixture(scope="module", params=LANES, ids=lambda lane: f"{lane[0]}-{lane[1]}")
def lane(request, mesh, traces, recorded, checkpoints, weight_cache, allocated):
    """A lane that was warmed up: every program compiled, every trace captured."""
    name, batch = request.param
    before = allocated(mesh)
    lane = open_lane(
        mesh,
        checkpoints[name],
        batch=batch,
        max_seq_len=1024,
        chunk=512,
        trace="all",
        top_k=True,
        cache_path=weight_cache,
    )
    lane.warm_up()
    yield lane
    lane.close()
    assert not traces.live
    assert allocated(mesh) == before


@pytest.fixture
def steady(lane, traces, allocated):
    """Checks that a test compiled, captured and allocated nothing."""
    before = (lane.mesh.num_program_cache_entries(), traces.captures, allocated(lane.mesh))
    yield
    assert (lane.mesh.num_program_cache_entries(), traces.captures, allocated(lane.mesh)) == before


def replays_of(traces, call):
    """The traces that `call` replayed, and its result."""
    before = len(traces.replays)
    result = call()
    return traces.replays[before:], result


def require_logits(lane, output, rows):
    assert output.dtype == np.float32
    assert output.shape == (rows, 1, lane.model.vocab_size)


def test_warmup_captures_both_operations(lane, traces):
    compiler = lane.executor.trace_compiler
    assert compiler.trace_count == len(traces.live) > 0
    assert compiler.replay_counts == {"prefill": 0, "decode": 0}


@pytest.mark.parametrize(
    ("lengths", "cached", "replays"),
    [
        ([100], None, 1),
        ([500], None, 1),
        ([100] * 8, None, 1),
        ([1000], None, 2),
        ([200], [64], 1),
        ([900, 40], None, 3),
    ],
    ids=["one", "longer", "wave", "chunks", "cached", "mixed"],
)
def test_prefill_replays_traces_only(lane, traces, steady, lengths, cached, replays):
    request = lane.prefill_request(lengths, cached=cached)
    replayed, output = replays_of(traces, lambda: lane.executor.prefill_forward(**request))
    assert len(replayed) == replays
    require_logits(lane, output, len(lengths))


def test_prefill_samples_after_the_replay(lane, traces, steady):
    request = lane.prefill_request([100, 90], sampling=RANDOM)
    replayed, (tokens, _) = replays_of(traces, lambda: lane.executor.prefill_forward(**request))
    assert len(replayed) == 1
    assert tokens.tolist() == [0, 0]


def test_decode_of_logits_replays_one_trace_a_step(lane, traces, steady):
    batch = lane.model.config.max_batch_size
    for step in range(3):
        request = lane.decode_request([40 + step] * batch)
        replayed, (output, _) = replays_of(traces, lambda request=request: lane.executor.decode_forward(**request))
        assert len(replayed) == 1
        require_logits(lane, output, batch)


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "top-k"])
def test_decode_with_device_feedback(lane, traces, steady, sampling):
    batch = lane.model.config.max_batch_size
    for step in range(4):
        # Step 2 enters another block of every row: the page table is refreshed.
        request = {**lane.decode_request([30 + step] * batch, sampling=sampling), "reset_batch": step == 0}
        replayed, (tokens, _) = replays_of(traces, lambda request=request: lane.executor.decode_forward(**request))
        assert len(replayed) == 1
        assert tokens.tolist() == [0] * batch


def test_decode_reads_asynchronously(lane, traces, steady):
    batch = lane.model.config.max_batch_size
    pending = []
    for step in range(3):
        request = {**lane.decode_request([40 + step] * batch, sampling=GREEDY), "reset_batch": step == 0}
        raw = lane.executor.decode_forward(**request, read_from_device=False)
        host, events = lane.executor.read_decode_output(raw, async_read=True)
        assert len(events) == 1
        pending.append(host)
    for host in pending:
        tokens, _ = lane.executor.process_decode_output_host(host, is_tokens=True)
        assert tokens.tolist() == [0] * batch


def test_what_was_never_captured_is_refused(lane, traces, steady):
    page_table = lane.page_table([0])[:, :5]
    request = {**lane.prefill_request([100]), "page_table": page_table}
    before = len(traces.replays)
    try:
        lane.executor.prefill_forward(**request)
    except TraceCoverageError:
        assert len(traces.replays) == before
    else:
        # A narrower table is padded to the captured width: served by a trace, never eagerly.
        assert len(traces.replays) == before + 1


def test_every_call_has_a_row_in_the_conformance_table(lane, recorded):
    accepted = {}
    for call in calls():
        accepted.setdefault(call.function, set()).update(call.kwargs)
    missing = {name: keywords - accepted[name] for name, keywords in recorded.items() if keywords - accepted[name]}
    assert not missing
    assert {"linear", "transformer.chunked_scaled_dot_product_attention", "sampling", "slice"} <= set(recorded)
