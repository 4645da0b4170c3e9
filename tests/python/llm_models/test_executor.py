# SPDX-License-Identifier: Apache-2.0
"""Construction of model executors, call shapes and routing. Follows chapter 40, sections A.1 to A.3, A.6 and A.7."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import llm_models.lane as lane_module
import ttnn_twin
from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig
from support.executors import Bench, decode_call, greedy, prefill_call
from support.recording_controller import RecordingController

ROOT = Path(__file__).resolve().parents[3]
OWNERS = [
    "PagedKVCacheManager",
    "OutputReader",
    "PrefillRuntime",
    "DecodeRuntime",
    "ProgramCompiler",
    "EagerExecutor",
    "TraceCompiler",
    "TracedExecutor",
    "WarmupCoordinator",
]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes that a lane constructs, in order; the layout counts where it is resolved."""
    log: list[str] = []
    for name in OWNERS:
        original = getattr(lane_module, name)

        def record(*args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            log.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(lane_module, name, record)
    resolve = lane_module.resolve_layout

    def layout(*args: Any) -> Any:
        log.append("PageTableLayout")
        return resolve(*args)

    monkeypatch.setattr(lane_module, "resolve_layout", layout)
    return log


@pytest.mark.covers("INT-01", "INT-02", "INT-03", "MEX-09")
@pytest.mark.parametrize("mode", ["none", "decode_only", "all"])
def test_each_owner_is_built_once_and_in_order(bench: Bench, built: list[str], mode: str) -> None:
    executor = bench.executor(mode=mode)
    traced = [] if mode == "none" else ["TraceCompiler", "TracedExecutor"]
    assert built == [
        "PagedKVCacheManager",
        "PageTableLayout",
        "OutputReader",
        "PrefillRuntime",
        "DecodeRuntime",
        "ProgramCompiler",
        "EagerExecutor",
        *traced,
        "WarmupCoordinator",
    ]
    assert (executor.trace_compiler is None) == (executor.traced_executor is None) == (mode == "none")
    assert executor.traced_decode_execution is executor.traced_executor
    assert executor.traced_prefill_execution is (executor.traced_executor if mode == "all" else None)
    assert executor.warmup.execution is (executor.traced_executor or executor.eager_executor)


@pytest.mark.covers("INT-04")
def test_owners_are_wired_by_identity(bench: Bench) -> None:
    executor = bench.executor(mode="all")
    eager, traced = executor.eager_executor, executor.traced_executor
    assert eager.program_compiler is executor.program_compiler
    assert eager.prefill is executor.prefill_runtime and eager.decode is executor.decode_runtime
    assert executor.warmup.eager is eager and executor.eager_execution is eager
    assert traced is not None and traced.eager_executor is eager
    assert traced.trace_compiler is executor.trace_compiler
    assert executor.trace_compiler is not None
    assert executor.trace_compiler.program_compiler is executor.program_compiler
    assert executor.model_args is executor.runtime_config and executor.model_config is executor.model.config
    assert executor.mesh_device is bench.mesh and executor.cluster_shape == [1, 1]
    assert executor.requires_prefill_trace_warmup is True and ModelExecutor.requires_prefill_trace_warmup is True


class _Trace(TraceConfig):
    pass


@pytest.mark.covers("MEX-03")
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"trace": _Trace("none")}, "trace must be exactly TraceConfig, got _Trace"),
        ({"warmup": None}, "warmup must be exactly WarmupConfig, got NoneType"),
        ({"paged_kv_cache": {}}, "paged_kv_cache must be exactly PagedKVCacheConfig, got dict"),
        ({"device_sampling_enabled": 1}, "device_sampling_enabled must be a bool, got 1"),
    ],
)
def test_the_policy_is_frozen_and_exact(change: dict[str, Any], match: str) -> None:
    fields: dict[str, Any] = {
        "trace": TraceConfig("none"),
        "warmup": WarmupConfig(),
        "paged_kv_cache": PagedKVCacheConfig(block_size=32, max_num_blocks=8, dtype=ttnn_twin.bfloat16),
        "device_sampling_enabled": True,
    }
    config = ModelExecutorConfig(**fields)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.device_sampling_enabled = False  # type: ignore[misc]
    with pytest.raises(TypeError, match=match):
        ModelExecutorConfig(**{**fields, **change})


FAULTS: list[tuple[str, Any, type[Exception], str]] = [
    ("config", object(), TypeError, "config must be a ModelExecutorConfig, got object"),
    ("owner_name", "", ValueError, "owner_name must be a non-empty str"),
    ("sampling_type", "Sampling1D", TypeError, "sampling_type must be a class"),
    ("prefill_warmup", 1, TypeError, "prefill_warmup must be callable, got int"),
    ("disable_batched_prefill", 0, TypeError, "disable_batched_prefill must be a bool, got 0"),
    ("sampling_state_controller", object(), ValueError, "must be supplied together"),
    ("controller and state", None, ValueError, "requires device sampling"),
    ("request_state_fields", ("output_tokens", "output_tokens"), ValueError, "repeats"),
    ("request_state_fields", ("unknown",), ValueError, "got 'unknown'"),
    ("request_state_fields", ("slot_remap", "prompt_tokens"), ValueError, "order"),
    ("iter_executor_named_modules", None, TypeError, "no callable iter_executor_named_modules"),
    ("can_enable_trace", None, TypeError, "no callable can_enable_trace"),
    ("mesh_device", None, ValueError, "no config.mesh_device"),
]


def build(faults: list[str]) -> ModelExecutor:
    """Construct over fakes that are wrong in each of `faults`; nothing of them is a device."""
    values = {name: value for name, value, _, _ in FAULTS}
    model = SimpleNamespace(
        config=SimpleNamespace(mesh_device=None if "mesh_device" in faults else object()),
        iter_executor_named_modules=None if "iter_executor_named_modules" in faults else lambda: iter(()),
    )
    runtime = SimpleNamespace(can_enable_trace=None if "can_enable_trace" in faults else lambda *_: True)
    sampling = "controller and state" not in faults
    config = ModelExecutorConfig(
        trace=TraceConfig("none"),
        warmup=WarmupConfig(),
        paged_kv_cache=PagedKVCacheConfig(block_size=32, max_num_blocks=8, dtype=ttnn_twin.bfloat16),
        device_sampling_enabled=sampling,
    )
    options: dict[str, Any] = {
        name: values[name]
        for name in ("owner_name", "sampling_type", "prefill_warmup", "disable_batched_prefill")
        if name in faults
    }
    if "sampling_state_controller" in faults:
        options["sampling_state_controller"] = object()
    elif not sampling:
        options.update(sampling_state_controller=object(), sampling_state=object())
    if "request_state_fields" in faults:
        options["request_state_fields"] = values["request_state_fields"]
    return ModelExecutor(model, runtime, object() if "config" in faults else config, **options)  # type: ignore[arg-type]


@pytest.mark.covers("MEX-04", "MEX-05")
def test_construction_faults_are_found_in_order() -> None:
    names = list(dict.fromkeys(name for name, *_ in FAULTS))
    expected = {name: (error, match) for name, _, error, match in FAULTS}
    for first in range(len(names)):
        present = [name for name in names[first:] if name != "controller and state" or names[first] == name]
        error, match = expected[names[first]]
        with pytest.raises(error, match=match):
            build(present)
    for _, fields, error, match in (fault for fault in FAULTS if fault[0] == "request_state_fields"):
        with pytest.raises(error, match=match):
            ModelExecutor(SimpleNamespace(), SimpleNamespace(), build_config(), request_state_fields=fields)


def build_config() -> ModelExecutorConfig:
    return ModelExecutorConfig(
        TraceConfig("none"),
        WarmupConfig(),
        PagedKVCacheConfig(block_size=32, max_num_blocks=8, dtype=ttnn_twin.bfloat16),
        True,
    )


@pytest.mark.parametrize(
    ("sampling", "error", "match"),
    [
        (None, TypeError, "needs a sampler as model.sampling, got NoneType"),
        (SimpleNamespace(config=SimpleNamespace(is_resolved=lambda: False)), ValueError, "resolved model.sampling"),
        (SimpleNamespace(config=None), ValueError, "resolved model.sampling.config"),
    ],
)
def test_device_sampling_needs_a_resolved_sampler(sampling: Any, error: type[Exception], match: str) -> None:
    model = SimpleNamespace(
        config=SimpleNamespace(mesh_device=object()), iter_executor_named_modules=lambda: (), sampling=sampling
    )
    runtime = SimpleNamespace(can_enable_trace=lambda *_: True)
    with pytest.raises(error, match=match):
        ModelExecutor(model, runtime, build_config())
    if sampling is not None:
        with pytest.raises(TypeError, match="needs a dict as model"):
            ModelExecutor(model, runtime, build_config(), sampling_type=dict)


@pytest.mark.covers("MEX-01")
def test_the_shared_executor_knows_no_model() -> None:
    for path in (ROOT / "python/llm_models").glob("executor*.py"):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not any("llama" in name or "qwen" in name or "checkpoints" in name for name in imported), path
        assert not imported & {"numpy", "torch", "ttnn"}, path
        strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        named = [text for text in strings if isinstance(text, str) and ("llama" in text.lower() or "/" in text)]
        assert not named, f"{path} names a model: {named}"


@pytest.mark.covers("MEX-02")
def test_a_lane_composed_by_hand_needs_no_model_layer() -> None:
    script = (
        "import sys; sys.path[:0] = ['python', 'tests']\n"
        "import ttnn_twin\n"
        "from support.warm_lane import WarmLane\n"
        "mesh = ttnn_twin.open_mesh_device(trace_region_size=50_000_000)\n"
        "lane = WarmLane(mesh, mode='all')\n"
        "lane.warm_prefill(trace=True); lane.warm_decode(trace=True)\n"
        "assert lane.coordinator.trace_activated\n"
        "assert not [name for name in sys.modules if name.startswith('llm_models')], 'the model layer was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.covers("INT-12")
def test_call_shapes() -> None:
    positional = {
        "compile_prefill": [],
        "compile_decode": [],
        "prefill_forward": ["tokens", "page_table"],
        "decode_forward": ["tokens", "start_pos", "page_table"],
        "read_decode_output": ["tt_out"],
        "process_decode_output_host": ["tt_out"],
    }
    defaults = {"reset_batch": False, "read_from_device": True, "async_read": False, "is_tokens": False}
    seen = set()
    for name, leading in positional.items():
        signature = inspect.signature(getattr(ModelExecutor, name))
        parameters = list(signature.parameters.values())[1:]
        assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == leading
        assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)
        assert all(p.annotation is not p.empty for p in parameters)
        assert signature.return_annotation is not signature.empty
        for parameter in parameters:
            if parameter.name in defaults:
                assert parameter.default is defaults[parameter.name]
                seen.add(parameter.name)
    assert seen == set(defaults)


class Target:
    """An execution target that writes down what reaches it."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Any:
        def record(**fields: Any) -> tuple[Any, ...]:
            self.log.append((name, fields))
            return ()

        return record


def call(executor: ModelExecutor, operation: str, **extra: Any) -> None:
    fields = {**(prefill_call() if "prefill" in operation else decode_call([0, 0])), **extra}
    fields["sampling_params"] = greedy(len(fields["tokens"]))
    getattr(executor, operation)(**fields)


OPERATIONS = ["compile_prefill", "compile_decode", "prefill_forward", "decode_forward"]


@pytest.mark.covers("INT-13")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_cache_then_sampling_then_dispatch(bench: Bench, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    executor = bench.executor(num_blocks=64)
    kv_cache = executor.allocate_kv_cache()
    log: list[Any] = []
    validate = executor.kv_cache_manager.validate_borrowed_handle
    monkeypatch.setattr(
        executor.kv_cache_manager, "validate_borrowed_handle", lambda cache: (log.append("cache"), validate(cache))
    )
    load = executor.model.sampling.load_device_buffers
    monkeypatch.setattr(executor.model.sampling, "load_device_buffers", lambda: (log.append("sampling"), load()))
    call(executor, operation, kv_cache=kv_cache, execution=Target(log))
    assert log[:2] == ["cache", "sampling"]
    (name, fields) = log[2]
    assert name == operation and "kv_cache" not in fields and "execution" not in fields
    with pytest.raises(ValueError, match="not a copy"):
        call(executor, operation, kv_cache=list(kv_cache), execution=Target(log))
    assert len(log) == 4  # the copy was looked at, nothing else happened


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_needs_a_cache_and_sampling_needs_its_policy(bench: Bench, operation: str) -> None:
    executor = bench.executor(sampling=False, num_blocks=64)
    with pytest.raises(RuntimeError, match="has no KV cache"):
        call(executor, operation)
    executor.allocate_kv_cache()
    with pytest.raises(ValueError, match="sampling_params were given but device sampling is disabled"):
        call(executor, operation)


@pytest.mark.covers("MEX-07")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_configured_request_state_arrives_by_identity(bench: Bench, operation: str) -> None:
    names = ("prompt_tokens", "output_tokens", "slot_remap")
    state = {name: np.zeros(2, np.int64) for name in names}
    for configured in (names, ("prompt_tokens",), ()):
        log: list[Any] = []
        executor = bench.executor(options={"request_state_fields": configured}, num_blocks=64)
        executor.allocate_kv_cache()
        fields = prefill_call() if "prefill" in operation else decode_call([0, 0])
        getattr(executor, operation)(**fields, **state, execution=Target(log))
        ((_, reached),) = log
        # A decode step always takes its remap: it is part of the reload contract.
        expected = set(configured) | ({"slot_remap"} if "decode" in operation else set())
        assert {name for name in names if name in reached} == expected
        assert all(reached[name] is state[name] for name in expected)
        assert reached["tokens"] is fields["tokens"] and reached["page_table"] is fields["page_table"]
        executor.cleanup()


def prepared(executor: ModelExecutor) -> Any:
    return executor.prefill_runtime.prepare(**prefill_call(2, length=128, sampled=True))


@pytest.mark.covers("INT-05", "INT-06", "INT-07")
def test_two_equal_rows_make_one_wave_unless_waves_are_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = bench.executor(num_blocks=64)
    (wave,) = prepared(executor)
    assert wave.request.source_rows == (0, 1) and not wave.request.uses_chunked_prefill
    assert wave.request.padded_batch_size == 2
    model = bench.model()
    disabled = ModelExecutor(
        model, bench.runtime_config(model, disable_batched_prefill=True), bench.config(num_blocks=64)
    )
    assert [item.request.source_rows for item in prepared(disabled)] == [(0,), (1,)]
    explicit = bench.executor(options={"disable_batched_prefill": True}, num_blocks=64)
    assert [item.request.source_rows for item in prepared(explicit)] == [(0,), (1,)]
    monkeypatch.setenv("DISABLE_BATCHED_PREFILL", "1")
    assert [item.request.source_rows for item in prepared(executor)] == [(0,), (1,)]


@pytest.mark.covers("INT-08")
def test_sampling_state_turns_waves_off(bench: Bench) -> None:
    model = bench.model()
    controller = RecordingController(model.sampling)
    state = {"sampling_state_controller": controller, "sampling_state": controller.create_state()}
    executor = ModelExecutor(model, bench.runtime_config(model), bench.config(num_blocks=64), **state)
    assert [item.request.source_rows for item in prepared(executor)] == [(0,), (1,)]


@pytest.mark.covers("INT-09")
@pytest.mark.parametrize(("sampling", "paths"), [(False, ["logits"]), (True, ["logits", "argmax", "topk"])])
def test_decode_paths_that_warmup_covers(bench: Bench, sampling: bool, paths: list[str]) -> None:
    config = bench.executor(sampling=sampling).warmup.config
    assert [case.sampling_path for case in config.plan(device_sampling=sampling).decode] == paths


@pytest.mark.covers("MEX-06")
@pytest.mark.parametrize("first", ["prime", "default"])
def test_a_warmup_hook_decides_the_order(bench: Bench, first: str) -> None:
    log: list[str] = []

    def hook(executor: ModelExecutor, default: Any, **hints: Any) -> None:
        assert hints == {"kv_cache": kv_cache, "can_sample_on_device": False, "enable_trace": False}
        steps = [lambda: log.append("prime"), lambda: (default(), log.append("default"))]
        for step in steps if first == "prime" else reversed(steps):
            step()
        assert executor.already_warmed_up_prefill

    executor = bench.executor(options={"prefill_warmup": hook}, num_blocks=64)
    kv_cache = executor.allocate_kv_cache()
    executor.warmup_model_prefill(kv_cache=kv_cache, can_sample_on_device=False, enable_trace=False)
    assert log == ["prime", "default"] if first == "prime" else log == ["default", "prime"]


def test_warm_prefill_is_a_fact_that_assignment_does_not_change(bench: Bench) -> None:
    executor = bench.executor(num_blocks=64)
    kv_cache = executor.allocate_kv_cache()
    assert not executor.already_warmed_up_prefill
    executor.already_warmed_up_prefill = True
    assert not executor.already_warmed_up_prefill
    executor.warmup_model_prefill(kv_cache=kv_cache, can_sample_on_device=True, enable_trace=False)
    executor.already_warmed_up_prefill = False
    assert executor.already_warmed_up_prefill
    with pytest.raises(TypeError, match="must be a bool, got 1"):
        executor.already_warmed_up_prefill = 1  # type: ignore[assignment]


def warm(executor: ModelExecutor, *, prefill_first: bool, sampled: bool) -> None:
    """Warm both operations of a lane that traces decode only."""
    hints = {"kv_cache": executor.allocate_kv_cache(), "can_sample_on_device": sampled}
    calls = [
        lambda: executor.warmup_model_prefill(**hints, enable_trace=False),
        lambda: executor.warmup_model_decode(**hints, max_batch_size=2, num_blocks=16, enable_trace=True),
    ]
    for warm_operation in calls if prefill_first else reversed(calls):
        warm_operation()
    assert executor.warmup.trace_activated


@pytest.mark.covers("T03")
@pytest.mark.parametrize("prefill_first", [True, False])
def test_sampler_buffers_exist_before_captures_and_never_come_later(bench: Bench, prefill_first: bool) -> None:
    warmed = bench.executor(mode="decode_only", num_blocks=64)
    warm(warmed, prefill_first=prefill_first, sampled=True)
    tokens, log_probs = warmed.decode_forward(**decode_call([3, 4], sampled=True))
    assert tokens.shape == (2,) and log_probs is None
    warmed.cleanup()
    without = bench.executor(mode="decode_only", num_blocks=64)
    warm(without, prefill_first=prefill_first, sampled=False)
    before = bench.mesh.counters.allocations
    with pytest.raises(RuntimeError, match="must be made before traces are active"):
        without.decode_forward(**decode_call([3, 4], sampled=True))
    assert bench.mesh.counters.allocations == before


def test_the_default_target_is_the_traced_one_and_execution_overrides_it(bench: Bench) -> None:
    log: list[Any] = []
    executor = bench.executor(mode="all", num_blocks=64)
    executor.allocate_kv_cache()
    executor.traced_prefill_execution = executor.traced_decode_execution = Target(log)  # type: ignore[assignment]
    executor.eager_execution = Target(eager := [])  # type: ignore[assignment]
    for operation in OPERATIONS:
        call(executor, operation)
    assert [name for name, _ in log] == OPERATIONS and not eager
    call(executor, "prefill_forward", execution=executor.eager_execution)
    assert [name for name, _ in eager] == ["prefill_forward"]
    executor.traced_prefill_execution = None
    call(executor, "prefill_forward")
    assert len(eager) == 2


def test_can_trace_is_only_a_query(bench: Bench) -> None:
    traced, decode_only = bench.executor(mode="all"), bench.executor(mode="decode_only")
    tokens = np.ones((1, 20), np.int64)
    assert traced.can_trace_prefill(tokens=tokens, prompt_lens=np.array([20]), empty_slots=[7])
    assert not traced.can_trace_prefill(tokens="nonsense")
    assert not decode_only.can_trace_prefill(tokens=tokens, prompt_lens=np.array([20]))
    traced.cleanup()
    assert traced.can_trace_prefill(tokens=tokens, prompt_lens=np.array([20]))
