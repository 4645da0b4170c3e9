# SPDX-License-Identifier: Apache-2.0
"""`LlamaLLM`: loading, generation with padding, stopping and sampling, guards, and cleanup."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from llm_models.checkpoints import CheckpointError, load_checkpoint
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.llama.executor import Llama, LlamaOptions
from llm_models.llama.facade import LlamaLLM
from llm_models.llama.facade_options import GenerationConfig
from llm_models.llama.model import LlamaModel
from llm_models.llama.vllm import LlamaForCausalLM
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig
from oracle.numpy_llama import NumpyLlama
from support.llama import tiny_checkpoint
from support.recording_controller import RecordingController
from support.serving.deployment import write_tiny_model

PROMPTS = [[5, 9, 200, 31, 77], [1, 2, 3], [60, 61, 62, 63, 64, 65, 66, 67]]
PAD = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"))


def policy(*, mode: str = "none", sampling: bool = False, blocks: int = 32) -> ModelExecutorConfig:
    return ModelExecutorConfig(
        trace=TraceConfig(mode),  # type: ignore[arg-type]
        warmup=WarmupConfig(),
        paged_kv_cache=PagedKVCacheConfig(block_size=32, max_num_blocks=blocks, dtype=ttnn_twin.bfloat16),
        device_sampling_enabled=sampling,
    )


def load(folder: Path, mesh: Any, **options: Any) -> LlamaLLM:
    options.setdefault("executor_config", policy())
    return LlamaLLM.from_pretrained(mesh, hf_model=str(folder), **{"max_batch_size": 4, "max_seq_len": 256, **options})


@pytest.fixture
def llm(folder: Path, mesh: Any) -> Iterator[LlamaLLM]:
    """Host sampling, eager, no stop ids."""
    llm = load(folder, mesh)
    llm.generation_config = GenerationConfig()
    yield llm
    llm.cleanup()


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[list[int], int], list[int]]:
    """Greedy continuation of one prompt by a NumPy Llama."""
    checkpoint = load_checkpoint(folder)
    llama = NumpyLlama(checkpoint.config, checkpoint.tensor)
    return lambda prompt, count: llama.greedy(prompt, max_new_tokens=count)


def padded(prompts: list[list[int]], *, side: str, pad: int = PAD) -> tuple[Any, Any]:
    width = max(map(len, prompts))
    ids, mask = np.full((len(prompts), width), pad, np.int64), np.zeros((len(prompts), width), np.int64)
    for row, prompt in enumerate(prompts):
        where = slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt))
        ids[row, where], mask[row, where] = prompt, 1
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("mode", "sampling"), [("none", False), ("none", True), ("decode_only", True), ("all", False)])
def test_greedy_rows_are_what_each_prompt_gives_alone(
    folder: Path, mesh: Any, alone: Any, side: str, mode: str, sampling: bool
) -> None:
    llm = load(folder, mesh, executor_config=policy(mode=mode, sampling=sampling))
    ids, mask = padded(PROMPTS, side=side)
    before = ids.copy()
    for _ in range(2):  # the second time over the same cache and traces
        grown = llm.generate(ids, mask, max_new_tokens=9, eos_token_id=None)
        assert grown.dtype == np.int64 and grown.shape == (3, 8 + 9)
        np.testing.assert_array_equal(grown[:, :8], before)
        for row, prompt in enumerate(PROMPTS):
            assert grown[row, 8:].tolist() == alone(prompt, 9)
    np.testing.assert_array_equal(ids, before)
    executor = llm.executor
    assert executor is not None and executor.warmup.trace_activated == (mode != "none")
    llm.cleanup()


def test_stopping_rows_get_padding_and_all_stopped_rows_end_the_call(llm: LlamaLLM, alone: Any) -> None:
    ids, mask = padded(PROMPTS, side="left")
    free = [alone(prompt, 12) for prompt in PROMPTS]
    stop = free[1][2]
    expected = [row[: row.index(stop) + 1] if stop in row else row for row in free]
    grown = llm.generate(ids, mask, max_new_tokens=12, eos_token_id=[stop, stop], pad_token_id=9)
    assert grown.shape[1] == 8 + max(map(len, expected))
    for row, tokens in enumerate(expected):
        assert grown[row, 8 : 8 + len(tokens)].tolist() == tokens
        assert (grown[row, 8 + len(tokens) :] == 9).all()
    all_first = [row[0] for row in free]
    assert llm.generate(ids, mask, max_new_tokens=12, eos_token_id=all_first).shape == (3, 9)
    # Without a configured padding id, rows that ended are filled with the first stop id.
    default = llm.generate(ids, mask, max_new_tokens=12, eos_token_id=[stop])
    assert set(default[1, 8 + len(expected[1]) :].tolist()) <= {stop}


def test_padding_is_inferred_only_from_a_configured_id_that_ends_nothing(llm: LlamaLLM, alone: Any) -> None:
    ids, _ = padded(PROMPTS, side="left", pad=7)
    inferred = llm.generate(ids, max_new_tokens=3, eos_token_id=None, pad_token_id=7)
    assert [row[8:].tolist() for row in inferred] == [alone(prompt, 3) for prompt in PROMPTS]
    for options in ({"eos_token_id": 7, "pad_token_id": 7}, {"eos_token_id": None}):
        literal = llm.generate(ids, max_new_tokens=1, **options)
        assert literal[1, 8:].tolist() == alone(ids[1].tolist(), 1)


def test_a_stream_gives_the_same_tokens_one_by_one(llm: LlamaLLM) -> None:
    ids, mask = padded(PROMPTS, side="right")
    whole = llm.generate(ids, mask, max_new_tokens=6)
    stream = llm.generate_stream(ids, mask, max_new_tokens=6)
    first = next(stream)
    with pytest.raises(RuntimeError, match="busy"):
        llm.generate(ids, mask, max_new_tokens=1)
    columns = [first, *stream]
    np.testing.assert_array_equal(np.stack(columns, axis=1), whole[:, 8:])
    closed = llm.generate_stream(ids, mask, max_new_tokens=6)
    next(closed)
    closed.close()
    np.testing.assert_array_equal(llm.generate(ids, mask, max_new_tokens=6), whole)
    with pytest.raises(TypeError, match="does not support num_beams"):
        llm.generate_stream(ids, mask, num_beams=2)


def test_sampling_depends_on_the_generator_alone_and_stays_in_the_candidates(llm: LlamaLLM, folder: Path) -> None:
    ids, mask = padded(PROMPTS, side="left")

    def text(seed: int, **options: Any) -> Any:
        llm.random = np.random.default_rng(seed)
        return llm.generate(ids, mask, **{"max_new_tokens": 8, "do_sample": True, "temperature": 1.5, **options})

    np.testing.assert_array_equal(text(3), text(3))
    assert (text(3) != text(4)).any()
    greedy = llm.generate(ids, mask, max_new_tokens=8)
    np.testing.assert_array_equal(text(3, top_k=1), greedy)
    np.testing.assert_array_equal(text(3, top_p=1e-9), greedy)
    checkpoint = load_checkpoint(folder)
    logits = NumpyLlama(checkpoint.config, checkpoint.tensor).logits(PROMPTS[0])[-1]
    allowed = set(np.argsort(-logits)[:5].tolist())
    drawn = {int(text(seed, top_k=5, max_new_tokens=1)[0, -1]) for seed in range(30)}
    assert len(drawn) > 1 and drawn <= allowed
    assert len({int(text(seed, top_k=0, temperature=50.0, max_new_tokens=1)[0, -1]) for seed in range(30)}) > 15


def test_a_zero_budget_touches_no_device(llm: LlamaLLM, mesh: Any) -> None:
    before = dict(mesh.counters.calls)
    ids = np.array([[4, 5]], np.int32)
    same = llm.generate(ids, max_new_tokens=0)
    assert same.dtype == np.int64 and same.tolist() == [[4, 5]] and same is not ids
    assert dict(mesh.counters.calls) == before


def test_the_budget_may_fill_the_context_and_the_cache_exactly(folder: Path, mesh: Any, alone: Any) -> None:
    llm = load(folder, mesh, max_batch_size=1, max_seq_len=128, executor_config=policy(blocks=8))
    prompt = [(3 * index) % 256 for index in range(120)]
    grown = llm.generate(np.array([prompt]), max_new_tokens=8, eos_token_id=None)
    assert grown[0, 120:].tolist() == alone(prompt, 8)
    with pytest.raises(ValueError, match="row 0 has 120 tokens and may add 9, more than the context of 128"):
        llm.generate(np.array([prompt]), max_new_tokens=9)
    llm.cleanup()
    small = load(folder, mesh, max_batch_size=4, max_seq_len=256, executor_config=policy(blocks=8))
    with pytest.raises(ValueError, match="12 KV blocks are needed, the cache has 8"):
        small.generate(np.full((4, 60), 3), max_new_tokens=8)
    small.cleanup()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        ({"input_ids": np.zeros(3, np.int64)}, ValueError, "input_ids must have rank 2"),
        ({"input_ids": np.zeros((0, 3), np.int64)}, ValueError, "must not be empty"),
        ({"input_ids": np.zeros((1, 0), np.int64)}, ValueError, "must not be empty"),
        ({"input_ids": np.zeros((5, 1), np.int64)}, ValueError, "5 rows, the model was built for 4"),
        ({"input_ids": np.zeros((1, 1), np.int16)}, TypeError, "must be int32 or int64, got int16"),
        ({"input_ids": [[1, 2]]}, TypeError, "input_ids must be a host array"),
        ({"input_ids": np.array([[1, 256]])}, ValueError, "row 0 of input_ids holds 256, outside the vocabulary"),
        ({"input_ids": np.array([[1], [-1]])}, ValueError, "row 1 of input_ids holds -1"),
        ({"attention_mask": np.ones((1, 2), np.int64)}, ValueError, r"shape \[1, 2\], input_ids \[1, 3\]"),
        ({"attention_mask": np.array([[0, 1, 2]])}, ValueError, "only 0 and 1"),
        ({"attention_mask": np.array([[0.0, 1.0, 1.0]])}, ValueError, "only 0 and 1"),
        ({"attention_mask": np.array([[1, 0, 1]])}, ValueError, "row 0 has padding between its tokens"),
        ({"attention_mask": np.array([[0, 1, 0]])}, ValueError, "padded on both sides"),
        ({"attention_mask": np.zeros((1, 3), np.int64)}, ValueError, "row 0 has no token"),
        ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be an int of at least 0"),
        ({"max_new_tokens": True}, ValueError, "max_new_tokens must be an int of at least 0"),
        ({"do_sample": 1}, TypeError, "do_sample must be a bool"),
        ({"temperature": float("nan")}, ValueError, "temperature must be a finite number"),
        ({"do_sample": True, "temperature": 0.0}, ValueError, "above 0 when sampling"),
        ({"top_k": -1}, ValueError, "top_k must be an int of at least 0"),
        ({"top_p": 0.0}, ValueError, r"top_p must lie in \(0, 1\]"),
        ({"top_p": 1.5}, ValueError, r"top_p must lie in \(0, 1\]"),
        ({"eos_token_id": 256}, ValueError, "eos_token_id 256 is no token id"),
        ({"eos_token_id": "2"}, ValueError, "eos_token_id must be an int, a list"),
        ({"eos_token_id": [2, True]}, ValueError, "eos_token_id True is no token id"),
        ({"pad_token_id": -1}, ValueError, "pad_token_id -1 is no token id"),
        ({"num_beams": 2, "early_stopping": True}, TypeError, "does not support early_stopping, num_beams"),
    ],
)
def test_bad_calls_are_refused_before_any_device_work(
    llm: LlamaLLM, mesh: Any, call: dict[str, Any], error: type[Exception], match: str
) -> None:
    before = dict(mesh.counters.calls)
    with pytest.raises(error, match=match):
        llm.generate(**{"input_ids": np.array([[1, 2, 3]]), "max_new_tokens": 2, **call})
    assert dict(mesh.counters.calls) == before


def test_defaults_come_from_the_checkpoint(folder: Path, tmp_path: Path, mesh: Any) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(folder / name)
    values = {"do_sample": True, "top_k": 7, "eos_token_id": [4, 5], "pad_token_id": 6, "num_beams": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps({**values, "transformers_version": "5", "min_p": None}))
    config = GenerationConfig.of(load_checkpoint(tmp_path))
    assert config == GenerationConfig(
        do_sample=True, temperature=1.0, top_k=7, top_p=1.0, eos_token_ids=(4, 5), pad_token_id=6
    )
    bare = GenerationConfig.of(load_checkpoint(folder))
    assert (bare.do_sample, bare.temperature, bare.max_new_tokens) == (False, 0.0, 128)
    unsupported = {"num_beams": 4, "repetition_penalty": 1.2, "min_p": 0.1, "forced_eos_token_id": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps({**values, **unsupported}))
    llm = load(tmp_path, mesh)
    with pytest.raises(
        ValueError, match="options forced_eos_token_id, min_p, num_beams, repetition_penalty cannot be honoured"
    ):
        llm.generate(np.array([[1, 2]]), max_new_tokens=1)
    llm.cleanup()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.full((1, 1, 256), np.nan, np.float32), "row 0.*NaN"),
        (np.full((1, 1, 256), np.inf, np.float32), r"row 0.*\+inf"),
        (np.full((1, 1, 256), -np.inf, np.float32), "row 0.*nothing but -inf"),
        (np.zeros((1, 1, 255), np.float32), r"logits have shape \[1, 1, 255\]"),
        (np.zeros(256, np.float32), r"logits have shape \[256\]"),
    ],
)
def test_logits_that_cannot_be_used(llm: LlamaLLM, monkeypatch: pytest.MonkeyPatch, values: Any, match: str) -> None:
    monkeypatch.setattr(llm.executor, "prefill_forward", lambda *_, **__: values)
    with pytest.raises(ValueError, match=match):
        llm.generate(np.array([[1, 2]]), max_new_tokens=1)


def test_device_tokens_that_cannot_be_used(folder: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = load(folder, mesh, executor_config=policy(sampling=True))
    for tokens, match in (([256, 3], "row 0: the device sampled 256"), ([1], "returned 1 tokens for 2 rows")):
        monkeypatch.setattr(llm.executor, "prefill_forward", lambda *_, t=tokens, **__: (np.array(t), None))
        with pytest.raises(ValueError, match=match):
            llm.generate(np.array([[1, 2], [3, 4]]), max_new_tokens=1)
    llm.cleanup()


def test_calls_are_exclusive(llm: LlamaLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave, results = threading.Event(), threading.Event(), []
    executor = llm.executor
    assert executor is not None
    prefill = executor.prefill_forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        entered.set()
        leave.wait(30)
        return prefill(*args, **kwargs)

    monkeypatch.setattr(executor, "prefill_forward", slow)
    ids = np.array([[1, 2]])
    worker = threading.Thread(target=lambda: results.append(llm.generate(ids, max_new_tokens=1)))
    worker.start()
    entered.wait(30)
    for call in (lambda: llm.generate(ids, max_new_tokens=1), llm.cleanup):
        with pytest.raises(RuntimeError, match="generate and cleanup are exclusive"):
            call()
    leave.set()
    worker.join()
    assert results[0].shape == (1, 3)
    assert llm.generate(ids, max_new_tokens=1).shape == (1, 3)


def test_a_failed_step_resets_sampling_state_and_keeps_its_error(folder: Path, mesh: Any) -> None:
    model = LlamaModel.from_checkpoint(
        load_checkpoint(folder), mesh, max_batch_size=2, max_seq_len=128, block_size=32, max_num_blocks=16
    )
    controller = RecordingController(model.sampling)
    controller.release = lambda state: None  # type: ignore[attr-defined]
    from llm_models.llama.runtime_config import LlamaRuntimeConfig

    runtime_config = LlamaRuntimeConfig(max_seq_len=128)
    config = ModelExecutorConfig(
        TraceConfig("none"),
        WarmupConfig(),
        PagedKVCacheConfig(block_size=32, max_num_blocks=16, num_blocks=16, dtype=ttnn_twin.bfloat16),
        True,
    )
    executor = ModelExecutor(
        model,
        runtime_config,
        config,
        sampling_state_controller=controller,
        sampling_state=controller.create_state(),
    )
    llm = LlamaLLM(model, runtime_config=runtime_config, executor=executor)
    ids = np.array([[1, 2, 3]])
    llm.random = np.random.default_rng(0)
    sampled = {"max_new_tokens": 3, "do_sample": True, "temperature": 1.0}
    llm.generate(ids, **sampled)
    assert [entry for entry in controller.log if entry[0] == "reset"] == [("reset", False)] * 2
    controller.log.clear()
    mesh.faults.fail("embedding", at=6)
    resets: list[int] = []

    def failing_reset(state: Any, sampling: Any = None) -> None:
        resets.append(1)
        if len(resets) == 2:
            raise OSError("no reset")

    controller.reset = failing_reset  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="injected fault: embedding") as caught:
        llm.generate(ids, **sampled)
    assert len(resets) == 2
    assert "no reset" in str(caught.value.cleanup_failures)  # type: ignore[attr-defined]
    mesh.faults.clear()
    with pytest.raises(RuntimeError, match="rebuild the executor"):
        llm.generate(ids, **sampled)
    llm.cleanup()


def test_cleanup_keeps_the_model_while_the_executor_cannot_be_cleaned(folder: Path, mesh: Any) -> None:
    llm = load(folder, mesh)
    llm.generate(np.array([[1, 2]]), max_new_tokens=2)
    mesh.faults.fail("deallocate")
    with pytest.raises(RuntimeError, match="deallocate"):
        llm.cleanup()
    assert llm.model.embedding.is_allocated()
    with pytest.raises(RuntimeError, match="was cleaned up"):
        llm.generate(np.array([[1, 2]]), max_new_tokens=2)
    llm.cleanup()
    llm.cleanup()
    assert not llm.model.embedding.is_allocated() and not mesh.closed


def test_a_model_without_a_usable_executor(folder: Path, mesh: Any) -> None:
    llm = load(folder, mesh)
    executor, llm.executor = llm.executor, None
    with pytest.raises(RuntimeError, match="no executor that could generate"):
        llm.generate(np.array([[1, 2]]), max_new_tokens=1)
    llm.executor = executor
    assert executor is not None
    executor.cleanup()
    with pytest.raises(RuntimeError, match="no executor that could generate"):
        llm.generate(np.array([[1, 2]]), max_new_tokens=1)
    llm.cleanup()


def test_a_bound_cache_is_used_as_it_is(folder: Path, mesh: Any, alone: Any) -> None:
    llm = load(folder, mesh)
    assert llm.executor is not None
    llm.executor.allocate_kv_cache()
    assert llm.generate(np.array([PROMPTS[0]]), max_new_tokens=4)[0, 5:].tolist() == alone(PROMPTS[0], 4)
    llm.cleanup()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"executor_config": object()}, TypeError, "executor_config must be a ModelExecutorConfig, got object"),
        ({"max_batch_size": 0}, ValueError, "max_batch_size must be a positive int"),
        ({"max_seq_len": True}, ValueError, "max_seq_len must be a positive int"),
        (
            {"paged_attention_config": SimpleNamespace(block_size=64, max_num_blocks=32)},
            ValueError,
            "paged_attention_config has block_size 64, executor_config 32",
        ),
        ({"hf_revision": "v1"}, CheckpointError, "is a path, which has no revision 'v1'"),
    ],
)
def test_loading_refuses_contradictions_before_the_device(
    folder: Path, mesh: Any, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        load(folder, mesh, **options)
    assert mesh.counters.allocations == 0


def test_cache_sizes(folder: Path, mesh: Any) -> None:
    for options, blocks in (
        ({"executor_config": None, "max_seq_len": 100}, 16),  # 4 rows of 4 blocks
        ({"executor_config": None, "max_seq_len": 100, "max_batch_size": 1}, 8),  # one decode table is 8 wide
        (
            {"executor_config": None, "paged_attention_config": SimpleNamespace(block_size=64, max_num_blocks=24)},
            24,
        ),
        ({"executor_config": policy(blocks=40)}, 40),
    ):
        llm = load(folder, mesh, **options)
        assert llm.executor is not None
        cache = llm.executor.paged_kv_cache_config
        assert (cache.num_blocks, cache.max_num_blocks) == (blocks, blocks)
        if options["executor_config"] is None:
            assert llm.executor.config.trace.mode == "none" and not llm.executor.config.device_sampling_enabled
        assert llm.tokenizer is None and llm.model.model_args is llm.runtime_config
        llm.cleanup()


def test_a_failure_behind_the_model_releases_it(folder: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *_: Any, **__: Any) -> None:
        raise RuntimeError("no product today")

    with monkeypatch.context() as patch:
        patch.setattr(LlamaLLM, "__init__", fail)
        mesh.faults.fail("deallocate", at=2)
        with pytest.raises(RuntimeError, match="no product today") as caught:
            load(folder, mesh)
    failures = caught.value.cleanup_failures  # type: ignore[attr-defined]
    assert ["injected fault" in str(error) for error in failures] == [True]
    # The one weight whose release failed stays with the errors' frames, and goes with them.
    assert len(mesh.live_tensors()) == 1
    for error in (caught.value, *failures):
        error.__traceback__ = None
    del caught, error
    gc.collect()


@pytest.mark.covers("D21")
def test_every_facade_keeps_feedback_and_refuses_unknown_options(folder: Path, mesh: Any) -> None:
    llm = load(folder, mesh, executor_config=policy(sampling=True))
    lane = Llama.open(tiny_checkpoint(), mesh, LlamaOptions(max_batch_size=2, max_seq_len=256))
    server = LlamaForCausalLM.initialize_vllm_model(SimpleNamespace(_name_or_path=str(folder)), mesh, 2, 256)
    server.allocate_kv_cache()
    for executor in (llm.executor, lane.executor, server.target):
        assert executor.decode_runtime.config.position_feedback_capable is True
        assert executor.decode_runtime.config.device_sampling_enabled is True
    for call in (
        lambda: load(folder, mesh, unknown_option=1),
        lambda: LlamaOptions(max_batch_size=2, max_seq_len=256, unknown_option=1),  # type: ignore[call-arg]
        lambda: server.prefill_forward(np.ones((1, 2)), np.zeros((1, 1)), enable_trace=False, unknown_option=1),
    ):
        with pytest.raises(TypeError, match="unknown_option"):
            call()
    for owner in (llm, lane, server):
        owner.cleanup()
