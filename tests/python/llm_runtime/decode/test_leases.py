# SPDX-License-Identifier: Apache-2.0
"""External reads: who owns an output between a step and its processing, in any order and on any thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ttnn_twin
from llm_runtime.decode import InvocationResult
from support.tiny_decode_model import TinyDecodeModel, decode_runtime, expected_logits


def eager(runtime, call):
    """Run a step and leave its output to an external reader."""
    return runtime.consume(runtime.invoke(runtime.prepare(**call)), read_from_device=False)


def live(mesh):
    return len(mesh.live_tensors())


@pytest.mark.covers("DEC-51")
def test_a_raw_output_keeps_its_identity_and_is_released_after_the_read(mesh, runtime, request_for):
    before = live(mesh)
    result = runtime.invoke(runtime.prepare(**request_for((3, 5), (4, 9))))
    raw = runtime.consume(result, read_from_device=False)
    assert raw is result.value
    owned = result.owned
    del result
    host = runtime.read_decode_output(raw)
    assert not any(tensor.is_allocated() for tensor in (raw[0], *owned[1][0].values()))
    assert host[0].storage_type() == ttnn_twin.StorageType.HOST
    logits, _ = runtime.process_decode_output_host(host)
    np.testing.assert_array_equal(logits[1, 0], expected_logits(5, 9))
    assert live(mesh) == before


@pytest.mark.covers("DEC-52")
def test_an_async_read_is_released_once_when_it_is_processed(mesh, runtime, request_for, greedy):
    before = live(mesh)
    raw = eager(runtime, request_for((3, 5), (2, 3), sampling_params=greedy(), reset_batch=True))
    host, events = runtime.read_decode_output(raw, async_read=True)
    assert len(events) == 1
    assert isinstance(host, tuple)
    assert raw[0].is_allocated()
    freed = mesh.counters.deallocations
    tokens, log_probs = runtime.process_decode_output_host(host, is_tokens=True)
    assert (tokens.tolist(), tokens.dtype, log_probs) == ([5, 8], np.int64, None)
    assert mesh.counters.deallocations == freed + 5
    again, _ = runtime.process_decode_output_host(host, is_tokens=True)
    assert again.tolist() == [5, 8]
    assert mesh.counters.deallocations == freed + 5
    runtime.drain_external_outputs()
    del raw, host
    assert live(mesh) == before


def test_events_may_be_synchronised_by_the_scheduler_first(deferred_lane, request_for):
    runtime = deferred_lane.decode
    raw = eager(runtime, request_for((3, 5), (2, 3)))
    host, events = runtime.read_decode_output(raw, async_read=True)
    with pytest.raises(RuntimeError, match="not complete"):
        host[0].to_numpy()
    for event in events:
        ttnn_twin.event_synchronize(event)
    logits, _ = runtime.process_decode_output_host(host)
    assert int(logits[0, 0].argmax()) == 5


def test_a_raw_output_that_was_never_submitted_is_read_by_processing(mesh, runtime, request_for, greedy):
    before = live(mesh)
    raw = eager(runtime, request_for((3, 5), (2, 3), sampling_params=greedy(), reset_batch=True))
    tokens, _ = runtime.process_decode_output_host(raw, is_tokens=True)
    assert tokens.tolist() == [5, 8]
    assert not raw[0].is_allocated()
    runtime.ensure_trace_safe()
    del raw
    assert live(mesh) == before


def test_processing_takes_host_values_without_a_lease(runtime):
    tokens, log_probs = runtime.process_decode_output_host(
        (np.array([4, 9, 1]), np.array([-1.0, -2.0, -3.0])), is_tokens=True
    )
    assert (tokens.tolist(), log_probs.tolist()) == ([4, 9], [-1.0, -2.0])


def test_reading_without_a_lease_works(mesh, runtime):
    value = ttnn_twin.to_device(ttnn_twin.Tensor(np.zeros((1, 1, 32, 64), np.float32), ttnn_twin.bfloat16), device=mesh)
    host, events = runtime.read_decode_output(value, async_read=True)
    assert len(events) == 1
    assert runtime.process_decode_output_host(host)[0].shape == (2, 1, 64)
    assert value.is_allocated()


def test_an_unread_or_owning_output_blocks_the_next_step(runtime, request_for):
    raw = eager(runtime, request_for())
    with pytest.raises(RuntimeError, match="1 decode output"):
        runtime.ensure_trace_safe()
    host, _ = runtime.read_decode_output(raw, async_read=True)
    with pytest.raises(RuntimeError, match=r"have not been read|own device tensors"):
        runtime.ensure_trace_safe()
    runtime.process_decode_output_host(host)
    runtime.ensure_trace_safe()


def test_one_raw_value_is_leased_once(runtime, request_for):
    result = runtime.invoke(runtime.prepare(**request_for()))
    runtime.consume(result, read_from_device=False)
    with pytest.raises(RuntimeError, match="already leased"):
        runtime.consume(result, read_from_device=False)
    runtime.drain_external_outputs()


@pytest.mark.covers("O05")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_reads_complete_in_any_order_with_their_own_values(deferred_lane, request_for, greedy, order):
    lane = deferred_lane
    call = request_for((1, 2), (0, 0), sampling_params=greedy())
    lane.capture(call)
    first = lane.traced.decode_forward(**call, reset_batch=True, read_from_device=False)
    reads = [lane.decode.read_decode_output(first, async_read=True)]
    second = lane.traced.decode_forward(
        **request_for((99, 99), (1, 1), sampling_params=greedy()), read_from_device=False
    )
    reads.append(lane.decode.read_decode_output(second, async_read=True))
    assert second is first
    expected = [[1, 2], [2, 3]]
    for index in order:
        tokens, _ = lane.decode.process_decode_output_host(reads[index][0], is_tokens=True)
        assert tokens.tolist() == expected[index]


def test_a_replay_may_follow_a_submitted_read_but_not_an_unread_output(lane, request_for, greedy):
    call = request_for((1, 2), (0, 0), sampling_params=greedy())
    lane.capture(call)
    raw = lane.traced.decode_forward(**call, reset_batch=True, read_from_device=False)
    replays = lane.mesh.counters.replays
    with pytest.raises(RuntimeError, match="have not been read"):
        lane.traced.decode_forward(**call)
    assert lane.mesh.counters.replays == replays
    host, _ = lane.decode.read_decode_output(raw, async_read=True)
    tokens, _ = lane.traced.decode_forward(**request_for((0, 0), (1, 1), sampling_params=greedy()))
    assert tokens.tolist() == [2, 3]
    assert lane.decode.process_decode_output_host(host, is_tokens=True)[0].tolist() == [1, 2]
    assert raw[0].is_allocated()


@pytest.mark.covers("O07")
def test_a_read_is_queued_and_its_event_recorded_before_the_next_replay(lane, request_for, greedy, monkeypatch):
    call = request_for((1, 2), (0, 0), sampling_params=greedy())
    lane.capture(call)
    order = []

    def log(owner, name):
        call = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: (order.append(name), call(*args, **kwargs))[1])

    log(ttnn_twin, "execute_trace")
    log(ttnn_twin, "record_event")
    log(ttnn_twin.Tensor, "cpu")
    for step in range(2):
        raw = lane.traced.decode_forward(
            **request_for((1, 2), (step, step), sampling_params=greedy()),
            reset_batch=step == 0,
            read_from_device=False,
        )
        lane.decode.read_decode_output(raw, async_read=True)
    assert order == ["execute_trace", "cpu", "record_event"] * 2
    monkeypatch.undo()
    lane.decode.drain_external_outputs()


@pytest.mark.covers("O03", "D13")
@pytest.mark.parametrize("path", ["logits", "argmax", "topk"])
def test_a_lane_gets_its_own_rows_of_the_padded_vectors(mesh, request_for, greedy, topk, path):
    runtime = decode_runtime(TinyDecodeModel(mesh, lane_capacity=5))
    params = {"logits": None, "argmax": greedy(5), "topk": topk(5)}[path]
    call = request_for(range(5), range(5), [[row] for row in range(5)], sampling_params=params, reset_batch=True)
    sampled = params is not None
    blocking, _ = runtime.consume(runtime.invoke(runtime.prepare(**call)))
    host, _ = runtime.read_decode_output(eager(runtime, call), async_read=True)
    late, _ = runtime.process_decode_output_host(host, is_tokens=sampled)
    assert (blocking.shape, blocking.dtype) == (late.shape, late.dtype) == ((5,) if sampled else (5, 1, 64), late.dtype)
    for rows in (blocking, late):
        assert (rows if sampled else rows[:, 0].argmax(-1)).tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(ValueError, match="33"):
        decode_runtime(TinyDecodeModel(mesh, lane_capacity=5), lane_capacity=33)


def test_processing_on_another_thread_while_steps_go_on(lane, request_for, greedy):
    call = request_for((1, 2), (0, 0), sampling_params=greedy())
    lane.capture(call)
    results, threads = {}, []
    for step in range(6):
        raw = lane.traced.decode_forward(
            **request_for((0, 0) if step else (1, 2), (step, step), sampling_params=greedy()),
            reset_batch=step == 0,
            read_from_device=False,
        )
        host, _ = lane.decode.read_decode_output(raw, async_read=True)

        def process(step=step, host=host):
            results[step] = lane.decode.process_decode_output_host(host, is_tokens=True)[0].tolist()

        threads.append(threading.Thread(target=process))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert [results[step] for step in range(6)] == [[1, 2], [2, 3], [4, 5], [7, 8], [11, 12], [16, 17]]
    lane.decode.ensure_trace_safe()


def test_two_threads_that_process_one_value_release_it_once(mesh, runtime, request_for):
    raw = eager(runtime, request_for((3, 5), (4, 9)))
    host, _ = runtime.read_decode_output(raw, async_read=True)
    freed, seen, barrier = mesh.counters.deallocations, [], threading.Barrier(2)

    def process():
        barrier.wait()
        seen.append(int(runtime.process_decode_output_host(host)[0][0, 0].argmax()))

    threads = [threading.Thread(target=process) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [7, 7]
    assert mesh.counters.deallocations == freed + 5


@pytest.mark.parametrize("submitted", [False, True])
def test_draining_releases_what_nobody_read(deferred_mesh, deferred_lane, request_for, submitted):
    runtime = deferred_lane.decode
    raw = eager(runtime, request_for())
    if submitted:
        runtime.read_decode_output(raw, async_read=True)
    calls = deferred_mesh.counters.calls["synchronize_device"]
    runtime.drain_external_outputs()
    assert not raw[0].is_allocated()
    assert deferred_mesh.counters.calls["synchronize_device"] == calls + (0 if submitted else 1)
    runtime.ensure_trace_safe()
    runtime.drain_external_outputs()


def test_a_failing_release_keeps_the_lease_for_a_retry(mesh, runtime, request_for):
    raws = [eager(runtime, request_for())]
    host, _ = runtime.read_decode_output(raws[0], async_read=True)
    freed = mesh.counters.deallocations
    mesh.faults.fail("deallocate", at=2)
    with pytest.raises(RuntimeError, match="injected fault: deallocate"):
        runtime.process_decode_output_host(host)
    assert mesh.counters.deallocations == freed + 4
    runtime.drain_external_outputs()
    assert mesh.counters.deallocations == freed + 5
    assert runtime.process_decode_output_host(host)[0].shape == (2, 1, 64)


def test_draining_attempts_every_lease_and_raises_the_first_failure(mesh, runtime, request_for):
    raws = [eager(runtime, request_for()) for _ in range(2)]
    for lease in (1, 7):
        mesh.faults.fail("deallocate", at=lease, times=2)
    with pytest.raises(RuntimeError, match="injected fault") as error:
        runtime.drain_external_outputs()
    assert len(error.value.cleanup_failures) == 2
    assert all(raw[0].is_allocated() for raw in raws)
    runtime.drain_external_outputs()
    assert not any(raw[0].is_allocated() for raw in raws)


def test_a_lease_of_a_traces_output_never_frees_it(lane, request_for, greedy):
    call = request_for(sampling_params=greedy())
    lane.capture(call)
    raw = lane.traced.decode_forward(**call, reset_batch=True, read_from_device=False)
    lane.decode.drain_external_outputs()
    assert raw[0].is_allocated()
    tokens, _ = lane.traced.decode_forward(**request_for((5, 6), (1, 1), sampling_params=greedy()), reset_batch=True)
    assert tokens.tolist() == [6, 7]


@pytest.mark.torch
def test_results_come_back_in_the_kind_of_the_tokens(runtime, request_for):
    torch = pytest.importorskip("torch")
    call = {name: torch.from_numpy(value) for name, value in request_for((3, 5), (4, 9)).items()}
    logits, _ = runtime.consume(runtime.invoke(runtime.prepare(**call)))
    assert isinstance(logits, torch.Tensor)
    raw = eager(runtime, call)
    host, _ = runtime.read_decode_output(raw, async_read=True)
    numpy_raw = runtime.consume(runtime.invoke(runtime.prepare(**request_for())))[0]
    assert isinstance(numpy_raw, np.ndarray)
    assert isinstance(runtime.process_decode_output_host(host)[0], torch.Tensor)


def test_an_output_of_three_parts_is_refused_and_released(mesh, runtime, request_for):
    result = runtime.invoke(runtime.prepare(**request_for()))
    odd = InvocationResult(value=(*result.value, None), owned=result.owned, is_tokens=False)
    before = mesh.counters.deallocations
    with pytest.raises(TypeError, match="3 elements"):
        runtime.consume(odd)
    assert mesh.counters.deallocations == before + 5
