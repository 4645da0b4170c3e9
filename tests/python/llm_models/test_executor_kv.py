# SPDX-License-Identifier: Apache-2.0
"""Late KV capacity, sealing and allocation of model executors. Follows chapter 40, sections A.4 and A.5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ttnn_twin
from llm_models.executor import ModelExecutor
from support.executors import Bench, decode_call, prefill_call

SHAPE = (40, 2, 32, 32)
BF16 = ml_dtypes.bfloat16


def late(executor: ModelExecutor, **changes: Any) -> Any:
    return replace(executor.paged_kv_cache_config, **{"num_blocks": 40, **changes})


@pytest.mark.covers("INT-17", "MEX-08")
def test_a_late_capacity_changes_layouts_and_nothing_else(bench: Bench) -> None:
    model = bench.model()
    executor = ModelExecutor(
        model,
        bench.runtime_config(model),
        bench.config(mode="all", max_num_blocks=64),
        trace_capture_prime_sequence_lengths=(128,),
    )
    bench.executors.append(executor)
    owners = (executor.prefill_runtime, executor.decode_runtime, executor.warmup)
    before = [owner.config for owner in owners]
    resolved = late(executor)
    executor.configure_paged_kv_cache(resolved)
    assert (executor.prefill_runtime, executor.decode_runtime, executor.warmup) == owners
    layout = executor.page_table_layout
    assert layout.raw_capacity_width == 16  # the context of 512 tokens bounds it before the 40 blocks do
    assert all(owner.config.page_table_layout is layout for owner in owners)
    assert executor.paged_kv_cache_config is resolved and executor.config.paged_kv_cache is resolved
    assert executor.prefill_runtime.config.trace_capture_prime_sequence_lengths == (128,)
    for old, owner in zip(before, owners, strict=True):
        assert replace(owner.config, page_table_layout=layout) == owner.config
        assert owner.config.page_table_layout_ceiling is old.page_table_layout_ceiling
        assert owner.config.model is model
    kv_cache = executor.allocate_kv_cache()
    assert [tuple(tensor.shape) for layer in kv_cache for tensor in layer] == [SHAPE] * 4


@pytest.mark.covers("INT-17")
def test_a_smaller_capacity_shrinks_the_page_tables(bench: Bench) -> None:
    model = bench.model(max_seq_len=1024, max_blocks=132)
    executor = bench.executor(model=model, max_num_blocks=132)
    assert executor.page_table_layout.raw_capacity_width == 32
    executor.configure_paged_kv_cache(late(executor, num_blocks=64))
    assert executor.paged_kv_cache_config.num_blocks == 64
    assert executor.page_table_layout.raw_capacity_width == 32


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"block_size": 16}, ValueError, "cannot change block_size from 32 to 16"),
        ({"max_num_blocks": 128}, ValueError, "cannot change max_num_blocks from 64 to 128"),
        ({"dtype": ttnn_twin.bfloat8_b}, ValueError, "cannot change dtype"),
        ({"memory_config": ttnn_twin.L1_MEMORY_CONFIG}, ValueError, "cannot change memory_config"),
        ({"num_blocks": 7}, ValueError, r"7 .*8|8 .*7"),
    ],
)
def test_a_refused_capacity_changes_nothing(
    bench: Bench, change: dict[str, Any], error: type[Exception], match: str
) -> None:
    executor = bench.executor()
    layout, config = executor.page_table_layout, executor.config
    with pytest.raises(error, match=match):
        executor.configure_paged_kv_cache(late(executor, **change))
    assert executor.page_table_layout is layout and executor.config is config
    assert not executor.paged_kv_cache_config.is_resolved()
    executor.configure_paged_kv_cache(late(executor))
    executor.allocate_kv_cache()


def test_capacity_is_resolved_once_and_before_sealing(bench: Bench) -> None:
    executor = bench.executor()
    with pytest.raises(RuntimeError, match="does not know its number of KV blocks"):
        executor.allocate_kv_cache()
    with pytest.raises(TypeError, match="config must be a PagedKVCacheConfig, got dict"):
        executor.configure_paged_kv_cache({})  # type: ignore[arg-type]
    executor.configure_paged_kv_cache(late(executor))
    with pytest.raises(RuntimeError, match="already has 40 KV blocks"):
        executor.configure_paged_kv_cache(late(executor))
    executor.allocate_kv_cache()
    with pytest.raises(RuntimeError, match="is sealed"):
        executor.configure_paged_kv_cache(late(executor))


@pytest.mark.covers("INT-18")
def test_configuration_is_sealed_before_the_manager_allocates(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = bench.executor(num_blocks=40)
    log: list[str] = []
    seal, allocate = executor.warmup.seal_configuration, executor.kv_cache_manager.allocate
    handles: list[Any] = []

    def allocating() -> Any:
        log.append("allocate")
        with pytest.raises(RuntimeError, match="sealed"):
            executor.warmup.configure_page_table_layout(executor.page_table_layout)
        with pytest.raises(RuntimeError, match="sealed"):
            executor.configure_paged_kv_cache(executor.paged_kv_cache_config)
        handles.append(allocate())
        return handles[0]

    monkeypatch.setattr(executor.warmup, "seal_configuration", lambda: (log.append("seal"), seal()))
    monkeypatch.setattr(executor.kv_cache_manager, "allocate", allocating)
    assert executor.allocate_kv_cache() is handles[0]
    assert log == ["seal", "allocate"]


@pytest.mark.parametrize("given", [("shape",), ("dtype",), ("layers",), ("shape", "dtype"), ("dtype", "layers")])
def test_a_partial_server_shape_changes_nothing(bench: Bench, given: tuple[str, ...]) -> None:
    executor = bench.executor()
    values: tuple[Any, ...] = tuple(
        value if name in given else None for name, value in (("shape", SHAPE), ("dtype", BF16), ("layers", 2))
    )
    with pytest.raises(TypeError, match="must be supplied together"):
        executor.allocate_kv_cache(*values)
    assert not executor.paged_kv_cache_config.is_resolved() and executor.kv_cache_manager.bound_context is None


def test_a_server_shape_resolves_an_open_capacity(bench: Bench) -> None:
    executor = bench.executor()
    kv_cache = executor.allocate_kv_cache(SHAPE, BF16, 2)
    assert executor.paged_kv_cache_config.num_blocks == 40
    assert [tuple(tensor.shape) for layer in kv_cache for tensor in layer] == [SHAPE] * 4


@pytest.mark.parametrize(
    ("shape", "dtype", "layers", "error", "match"),
    [
        ((40, 2, 32), BF16, 2, ValueError, "must have 4 entries"),
        (SHAPE, BF16, 3, ValueError, "num_layers 3 does not match the model's 2 layers"),
        ((40, 2, 16, 32), BF16, 2, ValueError, "block_size 16"),
        (SHAPE, "bfloat16", 2, TypeError, "dtype must be a torch or NumPy dtype"),
        (SHAPE, np.float32, 2, ValueError, "float32 is incompatible with layer 0"),
        ((65, 2, 32, 32), BF16, 2, ValueError, "num_blocks 65 exceeds the configured maximum 64"),
        ((40, 4, 32, 32), BF16, 2, ValueError, "does not match layer 0, which needs"),
        ((40, 2, 32, 64), BF16, 2, ValueError, "does not match layer 0, which needs"),
    ],
)
def test_a_server_shape_that_does_not_fit_changes_nothing(
    bench: Bench, shape: Any, dtype: Any, layers: int, error: type[Exception], match: str
) -> None:
    executor = bench.executor()
    with pytest.raises(error, match=match):
        executor.allocate_kv_cache(shape, dtype, layers)
    assert not executor.paged_kv_cache_config.is_resolved()
    resolved = bench.executor(num_blocks=48)
    with pytest.raises(ValueError, match="has 40 blocks, the cache is configured for 48"):
        resolved.allocate_kv_cache(SHAPE, BF16, 2)


def test_a_failed_allocation_may_be_repeated(bench: Bench) -> None:
    executor = bench.executor(num_blocks=40)
    bench.mesh.faults.fail("to_device", at=3)
    with pytest.raises(RuntimeError, match="injected fault: to_device"):
        executor.allocate_kv_cache()
    with pytest.raises(RuntimeError, match="is sealed"):
        executor.configure_paged_kv_cache(late(executor))
    kv_cache = executor.allocate_kv_cache()
    assert executor.prefill_forward(**prefill_call(), kv_cache=kv_cache).shape == (1, 1, 256)


def test_a_failed_binding_frees_the_cache_or_keeps_owning_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = bench.executor(num_blocks=40)
    model, bind = executor.model, executor.model.set_kv_cache
    baseline = bench.mesh.counters.live_tensors
    calls: list[Any] = []

    def fail_to_bind(cache: Any) -> None:
        calls.append(cache)
        if cache is not None:
            raise RuntimeError("no binding today")
        bind(cache)

    monkeypatch.setattr(model, "set_kv_cache", fail_to_bind)
    with pytest.raises(RuntimeError, match="no binding today"):
        executor.allocate_kv_cache()
    assert calls[1:] == [None] and bench.mesh.counters.live_tensors == baseline

    def fail_both_ways(cache: Any) -> None:
        raise RuntimeError(f"no {'unbinding' if cache is None else 'binding'}")

    monkeypatch.setattr(model, "set_kv_cache", fail_both_ways)
    with pytest.raises(RuntimeError, match="no binding") as caught:
        executor.allocate_kv_cache()
    assert [str(failure) for failure in caught.value.cleanup_failures] == ["no unbinding"]  # type: ignore[attr-defined]
    assert bench.mesh.counters.live_tensors == baseline + 4
    with pytest.raises(RuntimeError, match="no unbinding"):
        executor.cleanup()
    monkeypatch.setattr(model, "set_kv_cache", bind)
    executor.cleanup()
    assert bench.mesh.counters.live_tensors == baseline


def test_calls_want_the_very_handle(bench: Bench) -> None:
    executor = bench.executor(num_blocks=64)
    kv_cache = executor.allocate_kv_cache()
    executor.decode_forward(**decode_call([0, -1]), kv_cache=kv_cache)
    executor.decode_forward(**decode_call([1, -1]), kv_cache=None)
    with pytest.raises(ValueError, match="not a copy"):
        executor.decode_forward(**decode_call([2, -1]), kv_cache=[list(layer) for layer in kv_cache])
    key = kv_cache[1][0]
    kv_cache[1][0] = kv_cache[0][0]
    with pytest.raises(ValueError, match="layer 1 K is not the manager-owned tensor"):
        executor.decode_forward(**decode_call([2, -1]), kv_cache=kv_cache)
    kv_cache[1][0] = key
    executor.decode_forward(**decode_call([2, -1]), kv_cache=kv_cache)
