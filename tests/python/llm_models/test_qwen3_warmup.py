# SPDX-License-Identifier: Apache-2.0
"""What Qwen3 executors warm beside the default: tile ends in their order, and waves primed before their capture."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.llama.parts import ModelSizes, model_config
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_models.qwen3.vllm import Qwen3ForCausalLM, capture_prime_lengths
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig
from llm_runtime.prefill.sampling_helpers import SamplingParams
from support.llama import tiny_config
from support.qwen3 import load_llm, write_qwen3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen3(tmp_path_factory.mktemp("tiny-qwen3"))


@pytest.mark.covers("INT-26")
@pytest.mark.parametrize(
    ("shape", "traced", "primed"),
    [((1, 8), (128, 1024), (128, 1024)), ((1, 4), (128, 1024), ()), ((1, 8), (128,), (128,))],
)
def test_capture_prime_lengths_follow_the_mesh(
    shape: tuple[int, int], traced: tuple[int, ...], primed: tuple[int, ...]
) -> None:
    assert capture_prime_lengths(shape, traced) == primed


def stochastic(length: int, *, block: int = 32) -> dict[str, Any]:
    """A sampled prefill of one prompt."""
    return {
        "tokens": np.ones((1, length), np.int64),
        "page_table": np.arange(-(-length // block), dtype=np.int32)[None],
        "prompt_lens": np.array([length]),
        "empty_slots": [0],
        "sampling_params": SamplingParams(temperature=[0.7], top_k=[5], top_p=[0.9]),
    }


@pytest.mark.covers("INT-11")
@pytest.mark.parametrize(("traced", "order"), [(False, [96, 0, 32, 64]), (True, [0, 32, 64, 96])])
def test_tile_ends_stand_around_the_default_warmup(folder: Path, mesh: Any, traced: bool, order: list[int]) -> None:
    llm = load_llm(folder, mesh, mode="all", sampling=True)
    executor, kv_cache = llm.executor, llm.executor.allocate_kv_cache()
    hook = Qwen3ForCausalLM.executor_options(llm.model)["prefill_warmup"]
    target = executor.traced_prefill_execution if traced else executor.eager_execution

    def default() -> None:
        """The whole bucket, as a default warmup compiles it where it knows of no tile ends."""
        executor.compile_prefill(**stochastic(128), execution=target)

    for _ in range(2):
        hook(executor, default, kv_cache=kv_cache, can_sample_on_device=True, enable_trace=traced)
        programs = executor.program_compiler.compiled_programs
        assert [program.signature.last_token_tile_start for program in programs] == order
    serving = [
        executor.program_compiler.key_for(
            executor.prefill_runtime.prepare(**stochastic(length))[0].program_signatures[0]
        )
        for length in (32, 64, 96, 128)
    ]
    assert {program.key for program in programs} == set(serving)
    assert len(set(serving)) == 4
    registered = [executor.trace_compiler.trace_key_for_program(key) is not None for key in serving]
    assert registered == [traced] * 4
    llm.cleanup()


@pytest.mark.covers("INT-11")
@pytest.mark.parametrize("traced", [False, True])
def test_a_second_warmup_adds_nothing(folder: Path, mesh: Any, traced: bool) -> None:
    llm = load_llm(folder, mesh, mode="all", sampling=True)
    executor = llm.executor
    hints = {"kv_cache": executor.allocate_kv_cache(), "can_sample_on_device": True, "enable_trace": traced}
    executor.warmup_model_prefill(**hints)
    programs, compiles = executor.program_compiler.compiled_programs, mesh.counters.compiles
    known = {program.key for program in programs}
    assert len(known) == len(programs)
    for length in (32, 64, 96, 128):
        (prepared,) = executor.prefill_runtime.prepare(**stochastic(length))
        assert executor.program_compiler.key_for(prepared.program_signatures[0]) in known
    executor.warmup_model_prefill(**hints)
    assert executor.program_compiler.compiled_programs == programs
    assert mesh.counters.compiles == compiles
    llm.cleanup()


@pytest.mark.covers("INT-26")
@pytest.mark.parametrize(
    ("columns", "max_seq_len", "primed"), [(8, 1024, (128, 1024)), (8, 128, (128,)), (4, 1024, ()), (1, 1024, ())]
)
def test_executors_prime_the_waves_of_their_mesh(columns: int, max_seq_len: int, primed: tuple[int, ...]) -> None:
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, columns))
    sizes = ModelSizes(
        max_batch_size=2,
        max_seq_len=max_seq_len,
        block_size=32,
        max_num_blocks=64,
        n_layers=2,
        dtype=ttnn_twin.bfloat16,
        kv_cache_dtype=ttnn_twin.bfloat16,
    )
    # What an executor is built on before its first call: no body of several devices is needed for that.
    model: Any = SimpleNamespace(
        config=model_config(tiny_config(n_heads=8, n_kv_heads=8), mesh, sizes),
        vocab_size=256,
        sampling=None,
        iter_executor_named_modules=lambda: iter(()),
        model_args=LlamaRuntimeConfig(max_seq_len=max_seq_len),
    )
    policy = ModelExecutorConfig(
        TraceConfig("all"),
        WarmupConfig(),
        PagedKVCacheConfig(block_size=32, max_num_blocks=64, dtype=ttnn_twin.bfloat16),
        False,
    )
    executor = ModelExecutor(model, model.model_args, policy, **Qwen3ForCausalLM.executor_options(model))
    assert executor.prefill_runtime.config.trace_capture_prime_sequence_lengths == primed
    executor.cleanup()
    ttnn_twin.close_mesh_device(mesh)
