# SPDX-License-Identifier: Apache-2.0
"""A two-layer Llama through the whole prefill path, eager and traced, against the NumPy reference."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

import ttnn_twin as ns
from llm_models.llama.executor import Llama, LlamaOptions
from llm_runtime.errors import TraceCoverageError
from llm_runtime.prefill.sampling_params import SamplingParams
from oracle.numpy_llama import NumpyLlama
from support.llama import tiny_checkpoint

VOCABULARY = 256


@functools.cache
def checkpoint():
    return tiny_checkpoint()


@functools.cache
def reference():
    return NumpyLlama(checkpoint().config, checkpoint().tensor)


@pytest.fixture(scope="module", params=[("none", "immediate"), ("all", "immediate"), ("all", "deferred")], ids="-".join)
def llama(request):
    mode, execution = request.param
    mesh = ns.open_mesh_device(ns.MeshShape(1, 1), trace_region_size=200_000_000, execution=execution)
    options = LlamaOptions(max_batch_size=4, max_seq_len=512, max_prefill_chunk_size=128, trace_mode=mode)
    served = Llama.open(checkpoint(), mesh, options)
    served.warm_up()
    yield served
    served.cleanup()
    ns.close_mesh_device(mesh)


def prompts(lengths, *, seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(0, VOCABULARY, (len(lengths), max(lengths)))


def prefill(llama, tokens, lengths, *, table=None, **options):
    rows = len(lengths)
    if table is None:
        blocks = -(-max(lengths) // 32)
        table = np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks)
    return llama.executor.prefill_forward(
        tokens=tokens, page_table=table, prompt_lens=np.array(lengths), kv_cache=llama.kv_cache, **options
    )


def check_logits(logits, tokens, lengths):
    for row, length in enumerate(lengths):
        wanted = reference().logits(tokens[row, :length].tolist())[-1]
        assert np.abs(logits[row, 0] - wanted).max() < 1e-3
        assert logits[row, 0].argmax() == wanted.argmax()


@pytest.mark.covers("W01", "P28", "P30")
def test_logits_equal_the_reference_and_serving_compiles_nothing(llama):
    mesh = llama.model.config.mesh_device
    programs, captures = mesh.num_program_cache_entries(), mesh.counters.captures
    alive = len(mesh.live_tensors())
    for seed, lengths in enumerate(([1], [31], [128], [5, 100, 70], [17, 128], [129], [300, 40], [512])):
        tokens = prompts(lengths, seed=seed)
        check_logits(prefill(llama, tokens, lengths), tokens, lengths)
        assert len(mesh.live_tensors()) == alive
    assert mesh.num_program_cache_entries() == programs
    assert mesh.counters.captures == captures


class RowByRow(LlamaOptions):
    """A model that cannot extract a wave at once."""

    @property
    def runtime_config(self):
        return dataclasses.replace(super().runtime_config, batched_prefill_batched_extract=False)


@pytest.mark.covers("PLAN-51", "PLAN-52", "W01", "T10")
@pytest.mark.parametrize("mode", ["none", "all"])
def test_a_wave_extracted_row_by_row_equals_the_reference_and_compiles_nothing(mode):
    mesh = ns.open_mesh_device(ns.MeshShape(1, 1), trace_region_size=200_000_000)
    options = RowByRow(max_batch_size=4, max_seq_len=128, max_prefill_chunk_size=128, trace_mode=mode)
    served = Llama.open(checkpoint(), mesh, options)
    try:
        served.warm_up()
        programs, alive = mesh.num_program_cache_entries(), len(mesh.live_tensors())
        for seed, lengths in enumerate(([5, 100, 70], [17, 128], [128, 32, 33, 1], [96, 97, 65])):
            tokens = prompts(lengths, seed=seed)
            check_logits(prefill(served, tokens, lengths), tokens, lengths)
            assert len(mesh.live_tensors()) == alive
            assert max(served.executor.prefill_runtime.recent_padded_batch_sizes) > 1
            greedy, _ = prefill(served, tokens, lengths, sampling_params=SamplingParams(0.0, 1, 1.0))
            wanted = [reference().logits(tokens[row, :n].tolist())[-1].argmax() for row, n in enumerate(lengths)]
            assert greedy.tolist() == wanted
            assert max(served.executor.prefill_runtime.recent_padded_batch_sizes) == 1
        assert mesh.num_program_cache_entries() == programs
    finally:
        served.cleanup()
        ns.close_mesh_device(mesh)


@pytest.mark.covers("P03", "P22")
@pytest.mark.parametrize("start", [32, 96, 160])
def test_a_cached_prefix_is_read_from_its_blocks(llama, start):
    tokens = prompts([160])
    table = np.array([[9, 4, 7, 2, 11]], np.int32)
    prefill(llama, tokens, [160], table=table)
    for length in {min(start + 20, 160), 160}:
        logits = prefill(llama, tokens, [length], table=table, start_pos=np.array([start]))
        check_logits(logits, tokens, [length])


@pytest.mark.covers("D15", "D16")
def test_a_seeded_first_token_depends_on_seed_and_prompt_alone(llama):
    tokens = np.repeat(prompts([90]), 4, axis=0)

    def sample(rows, seeds, **options):
        params = SamplingParams([20.0] * rows, 32, 1.0, seed=seeds)
        return prefill(llama, tokens[:rows], [90] * rows, sampling_params=params, **options)[0].tolist()

    alone = [sample(1, [seed])[0] for seed in range(4)]
    assert len(set(alone)) > 1
    assert sample(4, [0, 1, 2, 3]) == alone
    assert sample(4, [3, 3, None, 0])[:2] == [alone[3]] * 2
    assert sample(2, [2, 1], empty_slots=[3, 0]) == [alone[2], alone[1]]
    assert len({sample(1, None)[0] for _ in range(8)}) > 1


def test_greedy_sampling_takes_the_largest_logit(llama):
    for lengths in ([40], [128], [7, 60, 90], [200]):
        tokens = prompts(lengths, seed=3)
        logits = prefill(llama, tokens, lengths)
        ids, log_probs = prefill(llama, tokens, lengths, sampling_params=SamplingParams(0.0, 1, 1.0))
        assert ids.tolist() == logits[:, 0].argmax(-1).tolist()
        assert log_probs is None


@pytest.mark.covers("PRE-05", "T22")
def test_a_positive_trace_query_permits_nothing():
    mesh = ns.open_mesh_device(ns.MeshShape(1, 1), trace_region_size=200_000_000)
    served = Llama.open(checkpoint(), mesh, LlamaOptions(max_batch_size=2, max_seq_len=256, max_prefill_chunk_size=128))
    try:
        tokens = prompts([40])
        assert served.executor.prefill_runtime.can_trace(tokens=tokens, prompt_lens=np.array([40]))
        with pytest.raises(TraceCoverageError, match="prefill"):
            prefill(served, tokens, [40])
        assert list(mesh.ledger.writes) == []
        assert served.executor.eager_executor.eager_prefill_count == 0
    finally:
        served.cleanup()
        ns.close_mesh_device(mesh)
