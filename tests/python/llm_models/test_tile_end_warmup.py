# SPDX-License-Identifier: Apache-2.0
"""The warmup hook for sampled prompts that end in one of the first three tiles of the 128-token bucket."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import pytest

from llm_models.executor import ModelExecutor
from llm_models.llama.executor import Llama, LlamaOptions
from llm_models.llama.sampling import Sampling1D, Sampling1DConfig
from llm_models.llama.tile_end_warmup import TileEndWarmup
from llm_models.llama.vllm import LlamaForCausalLM
from llm_runtime.prefill.sampling_helpers import SamplingParams
from support.executors import Bench, prefill_call
from support.llama import tiny_checkpoint
from support.serving.deployment import write_tiny_model


def nothing() -> None:
    """Stands for a default warmup that has nothing to do."""


def recorded(executor: ModelExecutor) -> list[dict[str, Any]]:
    """The arguments of every compile call from now on; the calls still go through."""
    calls: list[dict[str, Any]] = []
    compile_prefill = executor.compile_prefill

    def record(**arguments: Any) -> Any:
        calls.append(arguments)
        return compile_prefill(**arguments)

    executor.compile_prefill = record  # type: ignore[method-assign]
    return calls


def lane(bench: Bench, *, mode: str = "all", model: Any = None, **options: Any) -> tuple[ModelExecutor, Any]:
    """An executor with an allocated cache, and the handle."""
    executor = bench.executor(mode=mode, model=model, num_blocks=64, options=options)
    return executor, executor.allocate_kv_cache()


def tile_starts(executor: ModelExecutor) -> list[int | None]:
    """The tiles of the compiled top-k programs, in the order of compilation."""
    return [
        program.signature.last_token_tile_start
        for program in executor.program_compiler.compiled_programs
        if program.signature.sampling_path == "topk"
    ]


def stochastic(rows: int = 1) -> SamplingParams:
    return SamplingParams(temperature=[0.7] * rows, top_k=[5] * rows, top_p=[0.9] * rows)


def call(hook: TileEndWarmup, executor: ModelExecutor, kv_cache: Any, *, traced: bool, sampled: bool = True) -> None:
    hook(executor, nothing, kv_cache=kv_cache, can_sample_on_device=sampled, enable_trace=traced)


@pytest.mark.covers("INT-10")
def test_eager_and_traced_tile_ends_compile_once_each(bench: Bench) -> None:
    executor, kv_cache = lane(bench)
    calls, hook = recorded(executor), TileEndWarmup()
    for traced in (False, False, True, True):
        call(hook, executor, kv_cache, traced=traced)
    assert [made["tokens"].shape for made in calls] == [(1, 32), (1, 64), (1, 96)] * 2
    assert [made["prompt_lens"].tolist() for made in calls] == [[32], [64], [96]] * 2
    assert [made["page_table"].shape for made in calls] == [(1, 1), (1, 2), (1, 3)] * 2
    targets = [executor.eager_execution] * 3 + [executor.traced_prefill_execution] * 3
    assert all(made["execution"] is target for made, target in zip(calls, targets, strict=True))
    for made in calls:
        params = made["sampling_params"]
        assert (params.temperature, params.top_k, params.top_p) == ([1.0], [32], [0.08])
        assert made["empty_slots"] == [0]
    # Both targets share the programs; the traced calls have registered each for capture.
    assert tile_starts(executor) == [0, 32, 64]
    traces = executor.trace_compiler
    assert traces is not None
    for program in executor.program_compiler.compiled_programs:
        assert traces.trace_key_for_program(program.key) is not None


def test_one_object_serves_many_executors(bench: Bench) -> None:
    hook, lanes = TileEndWarmup(), [lane(bench), lane(bench)]
    for executor, kv_cache in lanes:
        call(hook, executor, kv_cache, traced=False)
        assert tile_starts(executor) == [0, 32, 64]


@pytest.mark.covers("INT-10")
@pytest.mark.parametrize("length", [32, 64, 96, 7, 50])
def test_short_sampled_prompts_then_compile_nothing(bench: Bench, length: int) -> None:
    executor, kv_cache = lane(bench, mode="none")
    call(TileEndWarmup(), executor, kv_cache, traced=False)
    programs, compiles = executor.program_compiler.compiled_programs, bench.mesh.counters.compiles
    request = {**prefill_call(length=length), "sampling_params": stochastic()}
    (prepared,) = executor.prefill_runtime.prepare(**request)
    assert prepared.program_signatures[0] in [program.signature for program in programs]
    tokens, _ = executor.prefill_forward(**request)
    assert tokens.shape == (1,)
    assert executor.program_compiler.compiled_programs == programs
    assert bench.mesh.counters.compiles == compiles
    # The fourth tile is the default warmup's: here it would have to compile.
    executor.prefill_forward(**{**prefill_call(length=97), "sampling_params": stochastic()})
    assert bench.mesh.counters.compiles > compiles


@pytest.mark.covers("INT-10")
def test_the_default_warmup_compiles_none_of_them_again(bench: Bench) -> None:
    compiles = {}
    for name, options in (("plain", {}), ("primed", {"prefill_warmup": TileEndWarmup()})):
        executor, kv_cache = lane(bench, **options)
        hints = {"kv_cache": kv_cache, "can_sample_on_device": True, "enable_trace": True}
        executor.warmup_model_prefill(**hints)
        executor.warmup_model_decode(**hints, max_batch_size=2, num_blocks=16)
        assert executor.warmup.trace_activated
        compiles[name] = {program.signature for program in executor.program_compiler.compiled_programs}
        assert len(compiles[name]) == len(executor.program_compiler.compiled_programs)
        for length in (32, 64, 96, 128):
            tokens, _ = executor.prefill_forward(**{**prefill_call(length=length), "sampling_params": stochastic()})
            assert 0 <= tokens[0] < 256
        assert executor.program_compiler.post_activation_compile_rejections == 0
        executor.cleanup()
    assert compiles["plain"] == compiles["primed"]


@pytest.mark.parametrize(("order", "traced"), [("before", False), ("before", True), ("after", False), ("after", True)])
def test_the_policy_orders_eager_warmups_only(bench: Bench, order: Any, traced: bool) -> None:
    executor, kv_cache = lane(bench)
    seen: list[int] = []
    hints = {"kv_cache": kv_cache, "can_sample_on_device": True, "enable_trace": traced}
    TileEndWarmup(eager_order=order)(executor, lambda: seen.append(len(tile_starts(executor))), **hints)
    assert seen == [0 if order == "after" and not traced else 3]
    assert tile_starts(executor) == [0, 32, 64]


def test_another_order_is_refused() -> None:
    with pytest.raises(ValueError, match="eager_order must be 'before' or 'after', got 'never'"):
        TileEndWarmup(eager_order="never")  # type: ignore[arg-type]


@pytest.mark.covers("INT-10")
@pytest.mark.parametrize("reason", ["wide lane", "narrow sampler", "no 128 bucket", "not sampled", "not traced"])
def test_it_does_nothing_where_it_has_nothing_to_do(bench: Bench, reason: str) -> None:
    model = bench.model(capacity=32 if reason == "wide lane" else 2)
    if reason == "narrow sampler":
        narrow = Sampling1DConfig(mesh_device=bench.mesh, vocab_size=model.vocab_size, max_batch_size=2)
        model.sampling = Sampling1D(narrow)
    options = {"prefill_sequence_lengths": (256,)} if reason == "no 128 bucket" else {}
    mode = "none" if reason == "no 128 bucket" else "decode_only"
    executor, kv_cache = lane(bench, mode=mode, model=model, **options)
    ran: list[bool] = []
    TileEndWarmup()(
        executor,
        lambda: ran.append(True),
        kv_cache=kv_cache,
        can_sample_on_device=reason != "not sampled",
        enable_trace=reason == "not traced",
    )
    assert ran == [True]
    assert executor.program_compiler.compiled_programs == ()


def test_a_skip_is_not_remembered_as_done(bench: Bench) -> None:
    executor, kv_cache = lane(bench)
    hook = TileEndWarmup()
    call(hook, executor, kv_cache, traced=False, sampled=False)
    call(hook, executor, kv_cache, traced=False)
    assert tile_starts(executor) == [0, 32, 64]


def test_a_failed_compile_is_tried_again(bench: Bench) -> None:
    executor, kv_cache = lane(bench)
    hook = TileEndWarmup()
    bench.mesh.faults.fail(op="embedding", at=4)
    with pytest.raises(Exception, match="embedding"):
        call(hook, executor, kv_cache, traced=False)
    done = tile_starts(executor)
    bench.mesh.faults.clear()
    call(hook, executor, kv_cache, traced=False)
    assert len(done) < 3 and tile_starts(executor) == [0, 32, 64]


def test_a_short_context_has_fewer_tile_ends(bench: Bench) -> None:
    executor, kv_cache = lane(bench, mode="none", model=bench.model(max_seq_len=64))
    call(TileEndWarmup(), executor, kv_cache, traced=False)
    assert tile_starts(executor) == [0, 32]


def test_the_family_primes_before_anything_else(bench: Bench, tmp_path: Path) -> None:
    llama = Llama.open(
        tiny_checkpoint(), bench.mesh, LlamaOptions(max_batch_size=2, max_seq_len=256, trace_mode="none")
    )
    llama.warm_up()
    hf_config = SimpleNamespace(_name_or_path=str(write_tiny_model(tmp_path)))
    server = LlamaForCausalLM.initialize_vllm_model(hf_config, bench.mesh, 2, 256)
    kv_cache = server.allocate_kv_cache((16, 2, 32, 32), ml_dtypes.bfloat16, 2)
    server.warmup_model_prefill(kv_cache=kv_cache, can_sample_on_device=True, enable_trace=True)
    for executor in (llama.executor, server.target):
        first = executor.program_compiler.compiled_programs[:3]
        assert [(item.signature.sampling_path, item.signature.last_token_tile_start) for item in first] == [
            ("topk", 0),
            ("topk", 32),
            ("topk", 64),
        ]
    llama.cleanup()
    server.cleanup()
