# SPDX-License-Identifier: Apache-2.0
"""Terminal state, order and retries of an executor's cleanup. Follows chapter 40, sections A.3 and A.8."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from llm_models.executor import ModelExecutor
from support.executors import Bench, decode_call, prefill_call
from support.recording_controller import RecordingController

STEPS = [
    ("decode_runtime", "drain_external_outputs"),
    ("output_reader", "drain"),
    ("prefill_runtime", "cleanup"),
    ("decode_runtime", "cleanup_transients"),
    ("trace_compiler", "cleanup"),
    ("program_compiler", "cleanup"),
    ("sampling_state_controller", "release"),
    ("model.sampling", "release"),
    ("kv_cache_manager", "release"),
]


@pytest.fixture
def executor(bench: Bench) -> ModelExecutor:
    """An executor with everything that can be cleaned up: traces, device sampling, sampling state, a bound cache."""
    model = bench.model()
    controller = RecordingController(model.sampling)
    controller.release = lambda state: None  # type: ignore[attr-defined]
    executor = ModelExecutor(
        model,
        bench.runtime_config(model),
        bench.config(mode="all", num_blocks=64),
        sampling_state_controller=controller,
        sampling_state=controller.create_state(),
    )
    bench.executors.append(executor)
    executor.allocate_kv_cache()
    return executor


def watch(
    executor: ModelExecutor, monkeypatch: pytest.MonkeyPatch, failing: dict[str, list[BaseException]]
) -> list[str]:
    """Log the cleanup steps; `failing` names steps with the errors of their first calls."""
    log: list[str] = []
    for owner_name, method in STEPS:
        owner: Any = executor
        for part in owner_name.split("."):
            owner = getattr(owner, part)
        name, original = f"{owner_name}.{method}", getattr(owner, method)

        def step(*args: Any, _name: str = name, _original: Any = original) -> None:
            log.append(_name)
            errors = failing.get(_name)
            if errors:
                raise errors.pop(0)
            _original(*args)

        monkeypatch.setattr(owner, method, step)
    return log


def names() -> list[str]:
    return [f"{owner}.{method}" for owner, method in STEPS]


def test_cleanup_runs_every_owner_in_order(executor: ModelExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    log = watch(executor, monkeypatch, {})
    executor.cleanup()
    executor.cleanup()
    assert log == names()


@pytest.mark.covers("R05")
def test_every_step_is_tried_and_a_retry_repeats_them(executor: ModelExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = RuntimeError("first"), KeyboardInterrupt(), ValueError("third")
    failing: dict[str, list[BaseException]] = {
        "decode_runtime.drain_external_outputs": [first],
        "trace_compiler.cleanup": [second],
        "kv_cache_manager.release": [third],
    }
    log = watch(executor, monkeypatch, failing)
    with pytest.raises(RuntimeError, match="first") as caught:
        executor.cleanup()
    # The program registry has to outlive the traces that could not be released.
    assert caught.value is first and log == [name for name in names() if name != "program_compiler.cleanup"]
    assert first.cleanup_failures == (second, third)  # type: ignore[attr-defined]
    assert any("ModelExecutor cleanup: 2 further failures" in note for note in first.__notes__)
    assert executor.terminal
    log.clear()
    executor.cleanup()
    assert log == names()
    log.clear()
    executor.cleanup()
    assert log == []


@pytest.mark.covers("MEX-10")
def test_a_terminal_executor_refuses_everything_but_cleanup(executor: ModelExecutor) -> None:
    assert not executor.terminal
    executor.cleanup()
    assert executor.terminal
    warm: dict[str, Any] = {"kv_cache": None, "can_sample_on_device": False, "enable_trace": False}
    calls: list[Any] = [
        lambda: executor.configure_paged_kv_cache(executor.paged_kv_cache_config),
        lambda: executor.allocate_kv_cache(),
        lambda: executor.compile_prefill(**prefill_call()),
        lambda: executor.compile_decode(**decode_call([0, 0])),
        lambda: executor.prefill_forward(**prefill_call()),
        lambda: executor.decode_forward(**decode_call([0, 0])),
        lambda: executor.read_decode_output(object()),
        lambda: executor.process_decode_output_host(object()),
        lambda: executor.warmup_model_prefill(**warm),
        lambda: executor.warmup_model_decode(**warm, max_batch_size=2, num_blocks=16),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="ModelExecutor was cleaned up: build a new one"):
            call()
    executor.cleanup()
    assert executor.can_trace_prefill(tokens=np.ones((1, 8), np.int64), prompt_lens=np.array([8]))


def test_cleanup_before_allocation_and_with_unread_outputs(bench: Bench) -> None:
    bench.executor().cleanup()
    executor = bench.executor(num_blocks=64)
    executor.allocate_kv_cache()
    executor.decode_forward(**decode_call([0, 0]))  # loads the rotary tables, which belong to the model
    baseline = bench.mesh.counters.live_tensors
    raw = executor.decode_forward(**decode_call([0, 0]), read_from_device=False)
    assert bench.mesh.counters.live_tensors > baseline
    _value, events = executor.read_decode_output(raw, async_read=True)
    assert len(events) == 1
    del raw
    executor.cleanup()
    assert bench.mesh.counters.live_tensors == baseline - 4
    assert len(executor.decode_runtime._readout.leases) == 0


def test_orphans_block_work_but_not_cleanup(bench: Bench) -> None:
    executor = bench.executor(num_blocks=64)
    executor.allocate_kv_cache()
    calls = bench.mesh.counters.calls
    for _ in range(2):  # the first one loads tables as well
        before = calls["deallocate"]
        executor.prefill_forward(**prefill_call())
    bench.mesh.faults.fail("deallocate", at=calls["deallocate"] - before)
    with pytest.raises(RuntimeError):
        executor.prefill_forward(**prefill_call())
    bench.mesh.faults.clear()
    assert executor.prefill_runtime.transient_orphan_count
    for call in (
        lambda: executor.prefill_forward(**prefill_call()),
        lambda: executor.decode_forward(**decode_call([0, 0])),
    ):
        with pytest.raises(RuntimeError, match=r"could not be released: call cleanup\(\)"):
            call()
    executor.cleanup()
    assert executor.prefill_runtime.transient_orphan_count == 0


@pytest.mark.covers("R05")
@pytest.mark.parametrize("operation", ["deallocate", "release_trace", "synchronize_device"])
def test_device_failures_during_cleanup_are_retried_and_leave_nothing(bench: Bench, operation: str) -> None:
    executor = bench.executor(mode="decode_only", num_blocks=64)
    baseline = bench.mesh.counters.live_tensors
    hints = {"kv_cache": executor.allocate_kv_cache(), "can_sample_on_device": True}
    executor.warmup_model_prefill(**hints, enable_trace=False)
    executor.warmup_model_decode(**hints, max_batch_size=2, num_blocks=16, enable_trace=True)
    executor.decode_forward(**decode_call([0, 0], sampled=True), read_from_device=False)
    bench.mesh.faults.fail(operation, times=2)
    with pytest.raises(RuntimeError, match=f"{operation}"):
        executor.cleanup()
    for _ in range(3):
        try:
            executor.cleanup()
            break
        except RuntimeError as error:
            assert operation in str(error)
    # The rotary tables were loaded on first use; they belong to the model.
    executor.model.rope_setup.release()
    assert bench.mesh.counters.live_tensors == baseline
    assert bench.mesh.trace_region_used == 0


def test_a_second_executor_of_one_model_serves_after_the_first_was_cleaned_up(bench: Bench) -> None:
    model = bench.model()
    logits = []
    for _ in range(2):
        executor = bench.executor(model=model, num_blocks=64)
        executor.allocate_kv_cache()
        logits.append(executor.prefill_forward(**prefill_call(2)))
        executor.cleanup()
    assert np.array_equal(logits[0], logits[1])


def test_the_mesh_stays_open(bench: Bench, executor: ModelExecutor) -> None:
    executor.cleanup()
    assert not bench.mesh.closed
    assert (
        ttnn_twin.to_device(ttnn_twin.Tensor(np.zeros(4, np.uint32), ttnn_twin.uint32), device=bench.mesh) is not None
    )
    assert isinstance(executor.sampling_state, SimpleNamespace)
