# SPDX-License-Identifier: Apache-2.0
"""Seeds of sampled steps: what lies in the device buffer when the body runs, and who owns which stream."""

from __future__ import annotations

import re

import numpy as np
import pytest

from llm_runtime.prefill.sampling_helpers import SamplingParams
from llm_runtime.seed_manager import device_seed
from support.tiny_decode_model import TinyDecodeModel, TinySampler, decode_runtime

DEFAULTS = list(range(1, 33))


class Streams:
    """A runtime over a fresh model, stepped eagerly; reads the seed buffer as each body saw it."""

    def __init__(self, mesh, *, rows=2):
        self.model = TinyDecodeModel(mesh, lane_capacity=rows)
        self.runtime = decode_runtime(self.model)
        self.seeds = self.model.sampling.config.seeds
        self.state = self.runtime._state.seed_state
        self.rows = rows
        self.seen = []
        body = self.model.decode_forward

        def watching(*args, **kwargs):
            self.seen.append((self.seeds.current(), self.state.active[:rows]))
            return body(*args, **kwargs)

        self.model.decode_forward = watching

    def prepare(self, positions, *, seed=None, table=None, **options):
        rows = self.rows
        params = SamplingParams(temperature=[1.0] * rows, top_k=[4] * rows, top_p=[1.0] * rows, seed=seed)
        table = np.arange(1, rows + 1, dtype=np.int32)[:, None] if table is None else table
        return self.runtime.prepare(
            np.ones(rows, np.int64), np.array(positions), table, sampling_params=params, **options
        )

    def step(self, positions, **options):
        """One counted eager step; returns the seed buffer that its body saw."""
        prepared = self.prepare(positions, **options)
        self.runtime.consume(self.runtime.invoke(prepared))
        return self.seen[-1][0]


@pytest.fixture
def streams(mesh):
    return Streams(mesh)


@pytest.mark.covers("DEC-05")
def test_a_compile_only_step_admits_streams_and_leaves_none(mesh):
    streams = Streams(mesh, rows=4)
    prepared = streams.prepare((0, 0, 0, 0), seed=[11, 22, 33, 44])
    result = streams.runtime.invoke(prepared, device_feedback=True, count_tokens=False)
    buffer, active = streams.seen[0]
    assert active == (True, True, True, True)
    assert buffer[:4] == [device_seed(seed, 0) for seed in (11, 22, 33, 44)]
    assert streams.state.active == (False,) * 32
    assert streams.state.token_counts == (0,) * 32
    assert streams.seeds.current() == DEFAULTS
    streams.runtime.consume(result)
    with pytest.raises(RuntimeError, match="reset_batch=True"):
        streams.runtime.invoke(streams.prepare((1, 1, 1, 1), seed=[11, 22, 33, 44]))
    assert streams.runtime.prepare(np.ones(4, np.int64), np.zeros(4, np.int64), np.ones((4, 1), np.int32))


@pytest.mark.covers("DEC-06")
def test_a_failing_compile_resets_the_streams_and_does_not_invalidate(streams):
    def boom(*args, **kwargs):
        raise RuntimeError("compile boom")

    body, streams.model.decode_forward = streams.model.decode_forward, boom
    with pytest.raises(RuntimeError, match="compile boom"):
        streams.runtime.invoke(streams.prepare((0, 0), seed=[1, 2]), count_tokens=False)
    assert streams.state.active == (False,) * 32
    assert streams.seeds.current() == DEFAULTS
    streams.model.decode_forward = body
    streams.step((0, 0), seed=[1, 2], reset_batch=True)


@pytest.mark.covers("DEC-07")
def test_a_device_seed_does_not_depend_on_the_slot(mesh):
    first, second = Streams(mesh), Streams(mesh)
    in_slot_0 = first.step((41, -1), seed=[1234, None], table=np.ones((2, 2), np.int32), reset_batch=True)
    in_slot_1 = second.step((-1, 41), seed=[None, 1234], table=np.ones((2, 2), np.int32), reset_batch=True)
    assert in_slot_0[0] == in_slot_1[1] == device_seed(1234, 41)
    assert (first.seen[-1][1], second.seen[-1][1]) == ((True, False), (False, True))
    assert (in_slot_0[1], in_slot_1[0]) == (DEFAULTS[1], DEFAULTS[0])


@pytest.mark.covers("DEC-08")
@pytest.mark.parametrize("seed", [1234, np.array(1234)])
def test_a_scalar_seed_belongs_to_one_request(streams, seed):
    prepared = streams.prepare((17, 17), seed=seed, reset_batch=True)
    assert prepared.sampling_seeds[:2] == (1234, None)
    assert prepared.prepared_sampling.active_mask[:2] == (True, True)
    buffer = streams.step((17, 17), seed=seed, reset_batch=True)
    assert buffer[0] == device_seed(1234, 17)
    assert buffer[1] not in (buffer[0], DEFAULTS[1])


@pytest.mark.covers("DEC-09")
@pytest.mark.parametrize("seed", [[111, 222], (111, 222), np.array([111, 222])])
def test_vector_seeds_belong_to_their_rows(streams, seed):
    streams.step((3, 3), seed=seed, reset_batch=True)
    assert streams.state.request_seeds[:2] == (111, 222)


@pytest.mark.covers("DEC-10")
def test_equal_seeds_at_once_get_different_salts(streams):
    buffer = streams.step((5, 5), seed=[77, 77], reset_batch=True)
    assert streams.state.salts[:2] == (0, 1)
    assert buffer[:2] == [device_seed(77, 5, 0), device_seed(77, 5, 1)]
    assert buffer[0] != buffer[1]


@pytest.mark.covers("DEC-11")
def test_seed_and_position_both_count(streams):
    at_7 = streams.step((7, -1), seed=[101, None], reset_batch=True)[0]
    at_8 = streams.step((8, -1), seed=[101, None])[0]
    other = streams.step((7, -1), seed=[202, None], reset_batch=True)[0]
    assert len({at_7, at_8, other}) == 3


@pytest.mark.covers("DEC-12")
def test_an_explicit_seed_depends_on_the_absolute_position_only(streams):
    drawn = [
        streams.step((position, -1), seed=[909, None], reset_batch=reset)[0]
        for position, reset in ((19, True), (20, False), (19, True), (20, True))
    ]
    assert drawn[0] == drawn[2]
    assert drawn[1] == drawn[3]
    assert drawn[0] != drawn[1]


@pytest.mark.covers("DEC-13")
def test_the_buffer_is_written_before_the_body_runs(streams):
    buffer = streams.step((4, 4), seed=[5, 6], reset_batch=True)
    assert buffer[:2] == [device_seed(5, 4), device_seed(6, 4)]


@pytest.mark.covers("DEC-15")
def test_the_callers_parameters_are_not_modified(streams):
    params = SamplingParams(temperature=[1.0, 1.0], top_k=[4, 4], top_p=[1.0, 1.0], seed=[11, 22])
    call = (np.ones(2, np.int64), np.zeros(2, np.int64), np.ones((2, 1), np.int32))
    prepared = streams.runtime.prepare(*call, sampling_params=params, reset_batch=True)
    streams.runtime.consume(streams.runtime.invoke(prepared))
    assert params == SamplingParams(temperature=[1.0, 1.0], top_k=[4, 4], top_p=[1.0, 1.0], seed=[11, 22])


@pytest.mark.covers("DEC-16")
def test_an_unseeded_row_draws_once_per_position(streams):
    first = streams.step((5, -1), reset_batch=True)
    state_at_5 = streams.state.random_states[0]
    assert first[0] != DEFAULTS[0]
    assert first[1:] == DEFAULTS[1:]
    assert streams.step((5, -1)) == first
    streams.step((6, -1))
    assert streams.state.token_counts[0] == 2
    assert streams.state.random_states[0] != state_at_5


@pytest.mark.covers("DEC-17")
def test_a_row_that_leaves_takes_its_stream_along(streams):
    streams.step((20, 20), seed=[None, 42], reset_batch=True)
    count = streams.state.token_counts[0]
    buffer = streams.step((21, -1), seed=[None, 42])
    assert streams.state.active[:2] == (True, False)
    assert streams.state.request_seeds[:2] == (None, None)
    assert streams.state.token_counts[0] == count + 1
    assert buffer[1] == DEFAULTS[1]


@pytest.mark.covers("DEC-55")
def test_a_remap_moves_the_whole_stream(streams):
    before = streams.step((5, -1), seed=[77, None], reset_batch=True)
    count = streams.state.token_counts[0]
    after = streams.step((-1, 5), seed=[None, 77], slot_remap=(0, 0))
    assert streams.state.active[:2] == (False, True)
    assert streams.state.request_seeds[:2] == (None, 77)
    assert streams.state.token_counts[1] == count
    assert (after[1], after[0]) == (before[0], DEFAULTS[0])


@pytest.mark.covers("D14")
def test_a_new_batch_without_seeds_gets_unrelated_streams(streams):
    streams.step((3, 3), seed=[42, 42], reset_batch=True)
    buffer = streams.step((3, 3), reset_batch=True)
    assert len({buffer[0], buffer[1], device_seed(42, 3), device_seed(42, 3, 1)}) == 4


@pytest.mark.covers("D16")
def test_a_rows_seed_does_not_depend_on_its_neighbour(mesh):
    alone, together = Streams(mesh), Streams(mesh)
    assert (
        alone.step((9, 9), seed=[42, None], reset_batch=True)[0]
        == together.step((9, 9), seed=[42, 7], reset_batch=True)[0]
    )


def test_greedy_and_host_sampled_steps_use_the_default_seeds(streams, request_for, greedy):
    streams.step((5, 5), seed=[1, 2], reset_batch=True)
    runtime = streams.runtime
    runtime.consume(runtime.invoke(runtime.prepare(**request_for(positions=(6, 6), sampling_params=greedy()))))
    assert streams.seen[-1][0] == DEFAULTS
    streams.step((5, 5), seed=[1, 2], reset_batch=True)
    runtime.consume(runtime.invoke(runtime.prepare(**request_for(positions=(6, 6)))))
    assert streams.seen[-1][0] == DEFAULTS


def test_explicit_seeds_need_a_mutable_buffer(mesh, request_for, topk):
    model = TinyDecodeModel(mesh, sampler=TinySampler(mesh, seeds=False))
    runtime = decode_runtime(model)
    calls = mesh.counters.calls.copy()
    with pytest.raises(TypeError, match=r"slot 1.*seed 5.*seed buffer"):
        runtime.invoke(runtime.prepare(**request_for(sampling_params=topk(seed=[None, 5]))))
    assert mesh.counters.calls == calls
    tokens, _ = runtime.consume(runtime.invoke(runtime.prepare(**request_for(sampling_params=topk()))))
    assert tokens.tolist() == [1, 2]


@pytest.mark.parametrize(("slots", "positions"), [([1], (5, 5)), ([0, 1], (5, 5))])
def test_unknown_streams_are_refused_before_device_work(mesh, streams, slots, positions):
    if slots == [1]:
        streams.step((4, -1), seed=[1, None], reset_batch=True)
    calls = mesh.counters.calls.copy()
    with pytest.raises(RuntimeError, match=re.escape(f"slots {slots}") + ".*reset_batch=True"):
        streams.runtime.invoke(streams.prepare(positions, seed=[1, 2]))
    assert mesh.counters.calls == calls
    streams.step(positions, seed=[1, 2], reset_batch=True)
