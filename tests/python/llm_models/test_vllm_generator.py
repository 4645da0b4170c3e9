# SPDX-License-Identifier: Apache-2.0
"""The vLLM facade over a recorded target: what reaches the executors, in which order, and what never does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ttnn_twin
from llm_models.vllm_generator import VLLMGenerator
from llm_runtime.config import PagedKVCacheConfig, TraceConfig
from llm_runtime.vllm_adapter import VLLMAdapter, VLLMAdapterConfig

COMMANDS = ("reload_inputs", "reload_page_table", "reload_sampling_params", "reset_sampling_state")
STATE = {"prompt_tokens": object(), "output_tokens": object(), "slot_remap": [1, 0]}


class RecordedTarget:
    """An executor's surface that writes down calls and answers each with its own name."""

    def __init__(self, **attributes: Any) -> None:
        self.log: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.eager_execution, self.traced_prefill_execution, self.traced_decode_execution = object(), object(), object()
        self.model = self.model_args = self.mesh_device = self.cache_path = None
        self.already_warmed_up_prefill = False
        self.traced_executor = None
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name == "lanes":
            raise AttributeError(name)

        def record(*args: Any, **kwargs: Any) -> str:
            self.log.append((name, args, kwargs))
            return f"result of {name}"

        return record


def adapter(mode: str = "all", fields: tuple[str, ...] = ()) -> VLLMAdapter:
    return VLLMAdapter(
        VLLMAdapterConfig.resolve(
            trace=TraceConfig(mode),  # type: ignore[arg-type]
            paged_kv_cache=PagedKVCacheConfig(block_size=32, max_num_blocks=132, dtype=ttnn_twin.bfloat16),
            expected_num_layers=32,
            expected_kv_heads_per_device=8,
            expected_head_dim=128,
            model_kv_cache_dtype=ttnn_twin.bfloat16,
            request_state_fields=fields,
        )
    )


@pytest.fixture
def target() -> RecordedTarget:
    return RecordedTarget()


@pytest.fixture
def generator(target: RecordedTarget) -> VLLMGenerator:
    return VLLMGenerator(target, adapter())


PREFILL = {"tokens": np.ones((1, 4), np.int32), "page_table": np.zeros((1, 2), np.int32)}
DECODE = {
    "tokens": np.ones((2, 1), np.int32),
    "start_pos": np.array([3, -1], np.int32),
    "page_table": np.zeros((2, 2), np.int32),
}


@pytest.mark.covers("VLA-19")
def test_only_the_forwards_take_arbitrary_keywords() -> None:
    open_methods = [
        name
        for name, method in inspect.getmembers(VLLMGenerator, inspect.isfunction)
        if not name.startswith("_")
        and any(p.kind is p.VAR_KEYWORD for p in inspect.signature(method).parameters.values())
    ]
    assert open_methods == ["decode_forward", "prefill_forward"]


def test_what_a_server_reads_from_the_class() -> None:
    assert VLLMGenerator.decode_input_update_contract == 1
    assert VLLMGenerator.requires_prefill_trace_warmup is True
    capabilities = VLLMGenerator.model_capabilities
    assert capabilities["supports_async_decode"] and capabilities["supports_prefix_caching"]
    assert capabilities["supports_sample_on_device"] and capabilities["max_device_top_k"] == 32
    assert capabilities["supports_device_penalties"] is False
    assert {"vllm_config", "prefix"} <= set(inspect.signature(VLLMGenerator.__init__).parameters)


def test_optional_hooks_are_not_advertised_by_accident(generator: VLLMGenerator) -> None:
    for hook in ("allocate_kv_cache_per_layer", "release_request", "propose_draft_tokens", "get_kv_cache_spec"):
        assert not hasattr(generator, hook) and not hasattr(VLLMGenerator, hook)
    assert generator.model_capabilities is VLLMGenerator.model_capabilities
    assert hasattr(generator, "already_warmed_up_prefill")


@pytest.mark.covers("VLA-20")
def test_compile_goes_to_the_traced_targets(generator: VLLMGenerator, target: RecordedTarget) -> None:
    generator.compile_prefill(**PREFILL, enable_trace=True, prompt_lens=np.array([4]))
    generator.compile_decode(**DECODE, enable_trace=True)
    (prefill, decode) = target.log
    assert prefill[0] == "compile_prefill" and decode[0] == "compile_decode"
    assert prefill[2]["execution"] is target.traced_prefill_execution
    assert decode[2]["execution"] is target.traced_decode_execution
    normalised, _ = generator.adapter.normalize_prefill(**PREFILL, enable_trace=True)
    assert list(prefill[2]) == [*normalised, "execution"]
    assert set(decode[2]) == {*DECODE, "kv_cache", "sampling_params", *COMMANDS, "execution"}


@pytest.mark.covers("VLA-21", "INT-14")
def test_forwards_pass_exactly_the_normalised_arguments(generator: VLLMGenerator, target: RecordedTarget) -> None:
    target.can_trace_prefill = lambda **_: pytest.fail("traceability was asked for")
    assert generator.prefill_forward(**PREFILL, enable_trace=True, page_tables_per_layer=[1]) == (
        "result of prefill_forward"
    )
    generator.decode_forward(**DECODE, enable_trace=False, slot_remap=[1, 0], read_from_device=False)
    (_, prefill_args, prefill), (_, decode_args, decode) = target.log
    assert prefill_args == decode_args == ()
    assert list(prefill) == [
        "tokens",
        "page_table",
        "prompt_lens",
        "start_pos",
        "empty_slots",
        "kv_cache",
        "sampling_params",
        "execution",
    ]
    assert prefill["execution"] is target.traced_prefill_execution
    assert set(decode) == {
        *DECODE,
        "kv_cache",
        "sampling_params",
        *COMMANDS,
        "slot_remap",
        "read_from_device",
        "execution",
    }
    assert decode["tokens"].tolist() == [1, 1] and decode["read_from_device"] is False
    assert decode["execution"] is target.eager_execution
    assert [decode[name] for name in COMMANDS] == [True, False, False, False]


@pytest.mark.covers("VLA-22")
@pytest.mark.parametrize("keyword", ["unknown_plugin_field", "reset_batch"])
def test_unknown_keywords_stop_before_the_target(
    generator: VLLMGenerator, target: RecordedTarget, keyword: str
) -> None:
    for call in (
        lambda: generator.prefill_forward(**PREFILL, enable_trace=True, **{keyword: True}),
        lambda: generator.decode_forward(**DECODE, enable_trace=True, **{keyword: True}),
    ):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
            call()
    assert target.log == []


@pytest.mark.covers("VLA-23")
def test_reads_warmups_and_cleanup_are_forwarded_by_name(generator: VLLMGenerator, target: RecordedTarget) -> None:
    raw, warm = object(), {"kv_cache": object(), "can_sample_on_device": True, "enable_trace": False}
    assert generator.read_decode_output(raw, async_read=True) == "result of read_decode_output"
    assert generator.process_decode_output_host(raw, is_tokens=True) == "result of process_decode_output_host"
    generator.warmup_model_prefill(**warm)  # type: ignore[arg-type]
    generator.warmup_model_decode(**warm, max_batch_size=2, num_blocks=4)  # type: ignore[arg-type]
    generator.cleanup()
    assert target.log == [
        ("read_decode_output", (raw,), {"async_read": True}),
        ("process_decode_output_host", (raw,), {"is_tokens": True}),
        ("warmup_model_prefill", (), warm),
        ("warmup_model_decode", (), {**warm, "max_batch_size": 2, "num_blocks": 4}),
        ("cleanup", (), {}),
    ]
    generator.already_warmed_up_prefill = True
    assert target.already_warmed_up_prefill is True and generator.already_warmed_up_prefill is True


@pytest.mark.covers("VLA-24")
def test_request_state_reaches_only_a_target_that_takes_it() -> None:
    for configured in ((), ("prompt_tokens", "output_tokens", "slot_remap")):
        target = RecordedTarget()
        generator = VLLMGenerator(target, adapter(fields=configured))
        generator.prefill_forward(**PREFILL, enable_trace=False, **STATE)
        generator.decode_forward(**DECODE, enable_trace=False, **STATE)
        (_, _, prefill), (_, _, decode) = target.log
        assert {name for name in STATE if name in prefill} == set(configured)
        # The remap of a decode step is a part of the reload contract, not of a sampler's history (decision D12).
        assert {name for name in STATE if name in decode} == {*configured, "slot_remap"}


@pytest.mark.covers("INT-15")
def test_each_operation_takes_its_own_target(generator: VLLMGenerator, target: RecordedTarget) -> None:
    generator.prefill_forward(**PREFILL, enable_trace=False)
    generator.decode_forward(**DECODE, enable_trace=True)
    (_, _, prefill), (_, _, decode) = target.log
    assert prefill["execution"] is target.eager_execution
    assert decode["execution"] is target.traced_decode_execution


@pytest.mark.covers("INT-16")
@pytest.mark.parametrize("operation", ["prefill", "decode"])
def test_a_traced_call_without_a_traced_target(operation: str) -> None:
    target = RecordedTarget(traced_prefill_execution=None, traced_decode_execution=None)
    generator = VLLMGenerator(target, adapter())
    call: Any = getattr(generator, f"{operation}_forward")
    with pytest.raises(RuntimeError, match=f"unavailable traced {operation} execution"):
        call(**(PREFILL if operation == "prefill" else DECODE), enable_trace=True)
    assert target.log == []


@pytest.mark.covers("INT-19", "INT-20")
def test_a_server_shape_is_resolved_configured_and_allocated(
    generator: VLLMGenerator, target: RecordedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved, log = object(), target.log

    def resolve(self: Any, *args: Any) -> object:
        log.append(("resolve", args, {}))
        return resolved

    monkeypatch.setattr(VLLMAdapter, "resolve_legacy_kv_cache_config", resolve)
    shape = (129, 8, 64, 128)
    assert generator.allocate_kv_cache(shape, ml_dtypes.bfloat16, 32) == "result of allocate_kv_cache"
    assert log == [
        ("resolve", (shape, ml_dtypes.bfloat16, 32), {}),
        ("configure_paged_kv_cache", (resolved,), {}),
        ("allocate_kv_cache", (), {}),
    ]
    log.clear()
    generator.allocate_kv_cache()
    assert log == [("allocate_kv_cache", (), {})]


@pytest.mark.covers("INT-21", "INT-28")
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (((64, 8, 16, 128), ml_dtypes.bfloat16, 32), ValueError, "block size 16"),
        (((64, 8, 32, 128), None, None), TypeError, "must be supplied together"),
        ((None, ml_dtypes.bfloat16, None), TypeError, "must be supplied together"),
        ((None, None, 32), TypeError, "must be supplied together"),
        (((64, 8, 32, 128), ml_dtypes.bfloat16, None), TypeError, "must be supplied together"),
    ],
)
def test_a_refused_shape_reaches_nobody(
    generator: VLLMGenerator, target: RecordedTarget, arguments: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        generator.allocate_kv_cache(*arguments)
    assert target.log == []


@pytest.mark.covers("INT-27")
def test_each_summary_is_written_once_and_before_cleanup() -> None:
    log: list[Any] = []
    warmup = SimpleNamespace(trace_activated=False)
    traced = SimpleNamespace(log_runtime_summary=lambda *, phase: log.append(phase))
    target = RecordedTarget(traced_executor=traced, warmup=warmup, cleanup=lambda: log.append("cleanup"))
    generator = VLLMGenerator(target, adapter())
    warm = {"kv_cache": None, "can_sample_on_device": True, "enable_trace": True}
    generator.warmup_model_prefill(**warm)  # type: ignore[arg-type]
    assert log == []
    warmup.trace_activated = True
    generator.warmup_model_decode(**warm, max_batch_size=2, num_blocks=4)  # type: ignore[arg-type]
    generator.warmup_model_prefill(**warm)  # type: ignore[arg-type]
    generator.cleanup()
    generator.cleanup()
    assert log == ["serving_ready", "shutdown", "cleanup", "cleanup"]


def test_the_adapter_is_an_adapter(target: RecordedTarget) -> None:
    with pytest.raises(TypeError, match="adapter must be a VLLMAdapter, got NoneType"):
        VLLMGenerator(target, None)  # type: ignore[arg-type]
