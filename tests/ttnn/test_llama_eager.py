# SPDX-License-Identifier: Apache-2.0
"""The unchanged Llama body, eagerly: every op with the shapes of two real models passes ttnn's own validation."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime.prefill.sampling_params import SamplingParams
from support.ttnn_lane import MODELS, open_lane

GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)
RANDOM = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=7)
LANES = [("smollm2", 1), ("smollm2", 32), ("llama-3.2-1b", 1), ("llama-3.2-1b", 32)]


def lane_id(lane):
    """A model and its rows as a test id."""
    return f"{lane[0]}-{lane[1]}"


def rows_of(batch):
    """Only the lanes with so many rows."""
    lanes = [lane for lane in LANES if lane[1] == batch]
    return pytest.mark.parametrize("lane", lanes, ids=lane_id, indirect=True, scope="module")


one_row, many_rows = rows_of(1), rows_of(32)


@pytest.fixture(scope="module", params=LANES, ids=lane_id)
def lane(request, mesh, checkpoints, weight_cache, allocated):
    """One model with a number of rows; closing it leaves nothing on the device."""
    name, batch = request.param
    before = allocated(mesh)
    lane = open_lane(
        mesh, checkpoints[name], batch=batch, max_seq_len=4096 if batch == 1 else 512, cache_path=weight_cache
    )
    yield lane
    lane.close()
    assert allocated(mesh) == before


def require_logits(lane, output, rows):
    """Float32 `[rows, 1, vocabulary]`; the mock reads zeros."""
    assert output.dtype == np.float32
    assert output.shape == (rows, 1, lane.model.vocab_size)
    assert not output.any()


@one_row
@pytest.mark.parametrize("length", [1, 100, 128, 1000, 1024, 2000, 2048])
def test_one_prompt(lane, length):
    require_logits(lane, lane.prefill([length]), 1)


@one_row
@pytest.mark.parametrize(
    ("length", "cached"),
    [(3000, 0), (4096, 0), (100, 32), (1100, 1024), (2500, 64)],
    ids=["chunks", "full chunks", "cached", "cached block", "cached chunks"],
)
def test_chunked_and_cached_prompts(lane, length, cached):
    require_logits(lane, lane.prefill([length], cached=[cached]), 1)


@many_rows
@pytest.mark.parametrize("rows", [1, 2, 8, 32])
@pytest.mark.parametrize("length", [100, 500])
def test_waves(lane, rows, length):
    require_logits(lane, lane.prefill([length - row % 3 for row in range(rows)]), rows)


@many_rows
def test_a_wave_into_scattered_slots(lane):
    require_logits(lane, lane.prefill([50, 60, 70], slots=[31, 4, 17]), 3)


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["argmax", "top-k"])
def test_prefill_samples_on_the_device(lane, sampling):
    rows = min(2, lane.model.config.max_batch_size)
    tokens, log_probs = lane.prefill([100] * rows, sampling=sampling)
    assert tokens.tolist() == [0] * rows
    assert log_probs is None


@pytest.mark.parametrize("active", ["all rows", "one row"])
def test_decode_gives_logits(lane, active):
    batch = lane.model.config.max_batch_size
    positions = [40] * batch if active == "all rows" else [40] + [-1] * (batch - 1)
    output, log_probs = lane.decode(positions)
    require_logits(lane, output, batch)
    assert log_probs is None


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["argmax", "top-k"])
def test_decode_samples_on_the_device(lane, sampling):
    batch = lane.model.config.max_batch_size
    tokens, log_probs = lane.decode([40] * batch, sampling=sampling)
    assert tokens.tolist() == [0] * batch
    assert log_probs is None


def test_an_asynchronous_read_of_a_step(lane):
    batch = lane.model.config.max_batch_size
    raw = lane.decode([41] * batch, sampling=GREEDY, read_from_device=False)
    host, events = lane.executor.read_decode_output(raw, async_read=True)
    assert len(events) == 1
    tokens, _ = lane.executor.process_decode_output_host(host, is_tokens=True)
    assert tokens.tolist() == [0] * batch


def test_a_second_call_compiles_nothing(lane):
    batch = lane.model.config.max_batch_size
    for call in (
        lambda: lane.prefill([100] * batch),
        lambda: lane.decode([40] * batch),
        lambda: lane.decode([40] * batch, sampling=RANDOM),
    ):
        call()
        programs = lane.mesh.num_program_cache_entries()
        call()
        assert lane.mesh.num_program_cache_entries() == programs


def test_calls_leave_nothing_behind(lane, allocated):
    batch = lane.model.config.max_batch_size
    lane.prefill([100] * batch)
    lane.decode([40] * batch, sampling=RANDOM)
    before = allocated(lane.mesh)
    lane.prefill([100] * batch)
    lane.decode([40] * batch, sampling=RANDOM)
    assert allocated(lane.mesh) == before


def test_block_float_weights_and_cache(ttnn, mesh, checkpoints, allocated):
    before = allocated(mesh)
    lane = open_lane(
        mesh,
        checkpoints["smollm2"],
        batch=2,
        max_seq_len=512,
        dtype=ttnn.bfloat8_b,
        kv_cache_dtype=ttnn.bfloat8_b,
    )
    assert {tensor.dtype for pair in lane.kv_cache for tensor in pair} == {ttnn.bfloat8_b}
    require_logits(lane, lane.prefill([100]), 1)
    require_logits(lane, lane.prefill([300], cached=[32]), 1)
    require_logits(lane, lane.decode([40, 41])[0], 2)
    lane.close()
    assert allocated(mesh) == before


def test_the_models_have_the_shapes_of_the_real_ones():
    shapes = [(m.n_heads, m.n_kv_heads, m.head_dim, m.dim, m.vocab_size) for m in MODELS.values()]
    assert shapes == [(9, 3, 64, 576, 49152), (32, 8, 64, 2048, 128256)]
