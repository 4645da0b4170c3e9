# SPDX-License-Identifier: Apache-2.0
"""Situations of serving, one by one, through the vLLM facade with the protocol's arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from llm_runtime.errors import TraceCoverageError
from support.serving.calls import Calls
from support.serving.deployment import Deployment
from support.serving.server import ServerOptions
from support.serving.traffic import Sampling

Start = Callable[..., Calls]
GREEDY = Sampling()
PROMPT = [(7 * index + 3) % 256 for index in range(250)]
OTHER = [(11 * index + 5) % 256 for index in range(60)]


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[Start]:
    """Warm deployments by their options, shared by the tests of this file."""
    running: dict[ServerOptions, Deployment] = {}

    def start(**changes: Any) -> Calls:
        options = ServerOptions(
            **{"trace_mode": "all", "sample_on_device_mode": "all", "rows": 4, "num_blocks": 40, **changes}
        )
        if options not in running:
            running[options] = Deployment(folder, options)
        for mesh in running[options].meshes:
            mesh.ledger.clear()
        return Calls(running[options])

    yield start
    for deployment in running.values():
        deployment.assert_idle()
        deployment.stop()


MODES = pytest.mark.parametrize("mode", ["none", "decode_only", "all"])


@MODES
@pytest.mark.covers("L05", "P26")
def test_a_decode_between_the_chunks_of_another_prompt(started: Start, mode: str) -> None:
    calls = started(trace_mode=mode)
    blocks, mate = list(range(8)), [20, 21, 22]
    tokens = OTHER[:33]
    calls.prefill([(tokens, mate)], slots=[1])
    start = 0
    for end in (64, 192, 224, 250):
        logits = calls.prefill([(PROMPT[:end], blocks)], slots=[0], start=[start])
        calls.assert_logits(logits[0], PROMPT[:end])
        tokens = [*tokens, calls.greedy(tokens)]
        step, _ = calls.decode([None, (tokens, mate)])
        calls.assert_logits(step[1], tokens)
        start = end - end % 32


@pytest.mark.covers("L03", "L04")
def test_a_prefix_belongs_to_its_lane(started: Start) -> None:
    calls = started(lanes=2)
    first, second = calls.deployment.meshes
    logits = calls.prefill([(PROMPT[:70], [4, 5, 6])], slots=[1])
    assert second.ledger.take_writes() == [] and first.ledger.take_writes()
    # The same prompt in the other lane computes everything there, with block numbers of its own.
    again = calls.prefill([(PROMPT[:70], [9, 2, 7])], slots=[3])
    assert first.ledger.take_writes() == []
    assert {write.block for write in second.ledger.take_writes()} == {9, 2, 7}
    np.testing.assert_array_equal(logits, again)
    # A cached prefix is taken in its own lane only.
    longer = PROMPT[:100]
    for slot, blocks in ((0, [4, 5, 11, 12]), (2, [9, 2, 13, 14])):
        calls.assert_logits(calls.prefill([(longer, blocks)], slots=[slot], start=[64])[0], longer)
    calls_before = second.counters.replays
    step, _ = calls.decode([(longer, [4, 5, 11, 12])], sampling=[GREEDY])
    assert step[0] == calls.greedy(longer)
    assert second.counters.replays == calls_before and second.ledger.take_writes()[-1].kind == "fill"


@MODES
def test_a_raw_step_goes_straight_into_processing(started: Start, mode: str) -> None:
    calls = started(trace_mode=mode)
    tokens, blocks = OTHER[:40], [3, 4]
    calls.prefill([(tokens, blocks)], slots=[0])
    for sampling in (None, [GREEDY]):
        before = calls.deployment.device_state()
        raw = calls.decode([(tokens, blocks)], sampling=sampling, read_from_device=False)
        output, log_probs = calls.deployment.model.process_decode_output_host(raw, is_tokens=sampling is not None)
        del raw
        assert log_probs is None
        if sampling is None:
            calls.assert_logits(output[0], tokens)
        else:
            assert output[0] == calls.greedy(tokens)
        calls.deployment.assert_idle()
        assert calls.deployment.device_state() == before


@MODES
def test_reads_complete_late_twice_and_on_another_thread(started: Start, mode: str) -> None:
    calls = started(trace_mode=mode)
    model = calls.deployment.model
    tokens, blocks = OTHER[:40], [3, 4]
    calls.prefill([(tokens, blocks)], slots=[0])
    raw = calls.decode([(tokens, blocks)], sampling=[GREEDY], read_from_device=False)
    host, events = model.read_decode_output(raw, async_read=True)
    seen: list[Any] = []

    def complete() -> None:
        for event in events:
            ttnn_twin.event_synchronize(event)
        seen.append(model.process_decode_output_host(host, is_tokens=True)[0])

    worker = threading.Thread(target=complete)
    worker.start()
    worker.join()
    complete()
    assert [int(values[0]) for values in seen] == [calls.greedy(tokens)] * 2
    calls.deployment.assert_idle()


@pytest.mark.covers("O05")
def test_two_steps_in_flight_are_read_in_either_order(started: Start) -> None:
    calls = started(trace_mode="all")
    model = calls.deployment.model
    for order in ((0, 1), (1, 0)):
        tokens, blocks = OTHER[:40], [3, 4]
        calls.prefill([(tokens, blocks)], slots=[0])
        first = calls.greedy(tokens)
        flights = []
        for commands in ({}, {"reload_inputs": False, "reload_sampling_params": False, "reset_sampling_state": False}):
            raw = calls.decode([(tokens, blocks)], sampling=[GREEDY], read_from_device=False, **commands)
            flights.append(model.read_decode_output(raw, async_read=True))
        found = {}
        for index in order:
            host, events = flights[index]
            for event in events:
                ttnn_twin.event_synchronize(event)
            found[index] = int(model.process_decode_output_host(host, is_tokens=True)[0][0])
        assert found == {0: first, 1: calls.greedy([*tokens, first])}
    calls.deployment.assert_idle()


@MODES
def test_rows_come_back_in_order_whatever_their_slots(started: Start, mode: str) -> None:
    calls = started(trace_mode=mode)
    rows = [(OTHER[:20], [30]), (PROMPT[:90], [1, 2, 3]), (OTHER[:33], [8, 9])]
    logits = calls.prefill(rows, slots=[3, 0, 2])
    for row, (tokens, _) in zip(logits, rows, strict=True):
        calls.assert_logits(row, tokens)
    tokens, _ = calls.prefill(rows, slots=[1, 3, 0], sampling=[GREEDY] * 3)
    assert tokens.tolist() == [calls.greedy(ids) for ids, _ in rows]


@MODES
def test_prefill_leaves_the_blocks_of_running_rows_alone(started: Start, mode: str) -> None:
    calls = started(trace_mode=mode)
    (mesh,) = calls.deployment.meshes
    calls.prefill([(OTHER[:50], [20, 21])], slots=[0])
    mesh.ledger.take_writes()
    calls.prefill([(PROMPT[:100], [5, 6, 7, 8])], slots=[1])
    assert {write.block for write in mesh.ledger.take_writes()} == {5, 6, 7, 8}
    step, _ = calls.decode([(OTHER[:50], [20, 21])])
    calls.assert_logits(step[0], OTHER[:50])
    assert {(write.block, write.offset) for write in mesh.ledger.take_writes()} == {(21, 17)}


@MODES
def test_an_idle_batch(started: Start, mode: str) -> None:
    calls = started(trace_mode=mode)
    (mesh,) = calls.deployment.meshes
    logits, _ = calls.decode([])
    assert logits.shape == (4, 1, 256) and mesh.ledger.take_writes() == []
    with pytest.raises(ValueError, match="at least one active slot"):
        calls.decode([], sampling=[])
    assert mesh.ledger.take_writes() == []


@MODES
@pytest.mark.covers("D17", "P06", "P22", "P28")
def test_what_is_refused_costs_nothing(started: Start, mode: str) -> None:
    calls = started(trace_mode=mode)
    (mesh,) = calls.deployment.meshes
    blocks = list(range(10))
    limit = calls.options.max_model_len
    wide = Sampling(temperature=1.0, top_k=256, seed=3)
    refused: list[tuple[str, Callable[[], Any]]] = [
        (r"(?s)top_k.*256.*32|256.*top_k", lambda: calls.decode([(OTHER[:9], [0])], sampling=[wide])),
        (r"(?s)top_k.*256.*32|256.*top_k", lambda: calls.prefill([(OTHER[:9], [0])], slots=[0], sampling=[wide])),
        (r"(?s)33.*32", lambda: calls.prefill([(PROMPT[:65], blocks)], slots=[0], start=[33])),
        (r"(?s)65.*65|start", lambda: calls.prefill([(PROMPT[:64], blocks)], slots=[0], start=[96])),
        (f"{limit + 1}|{limit}", lambda: calls.prefill([((PROMPT + PROMPT)[: limit + 1], blocks)], slots=[0])),
        (f"{limit}", lambda: calls.decode([((PROMPT + PROMPT)[: limit + 1], blocks)])),
        ("slot", lambda: calls.prefill([(OTHER[:9], [0])], slots=[4])),
        ("slot", lambda: calls.prefill([(OTHER[:9], [0]), (OTHER[:9], [1])], slots=[2, 2])),
        ("lane capacity 4", lambda: calls.decode_rows(3)),
    ]
    before = (mesh.counters.calls["execute_trace"], mesh.counters.bytes_to_device)
    for match, call in refused:
        with pytest.raises(ValueError, match=match):
            call()
    assert (mesh.counters.calls["execute_trace"], mesh.counters.bytes_to_device) == before
    assert mesh.ledger.take_writes() == []
    greedy_and_wide = Sampling(temperature=0.0, top_k=256)
    calls.prefill([(OTHER[:9], [0])], slots=[0])
    tokens, _ = calls.decode([(OTHER[:9], [0])], sampling=[greedy_and_wide])
    assert tokens[0] == calls.greedy(OTHER[:9])


@pytest.mark.covers("P29")
def test_a_request_that_ends_at_the_very_limit(started: Start) -> None:
    calls = started(max_model_len=128, rows=2, num_blocks=16)
    tokens, blocks = PROMPT[:126], [0, 1, 2, 3]
    (first,), _ = calls.prefill([(tokens, blocks)], slots=[0], sampling=[GREEDY])
    for _ in range(2):
        assert first == calls.greedy(tokens)
        tokens = [*tokens, int(first)]
        (first, _), _ = calls.decode([(tokens, blocks)], sampling=[GREEDY])
    assert len(tokens) == 128 and first == calls.greedy(tokens)


@pytest.mark.covers("T08")
def test_the_same_batch_three_times(started: Start) -> None:
    calls = started(trace_mode="all")
    rows = [(OTHER[:20], [30]), (PROMPT[:90], [1, 2, 3])]
    seeded = [Sampling(1.0, 20, 0.9, seed) for seed in (5, 6)]
    answers = []
    for _ in range(3):
        tokens, _ = calls.prefill(rows, slots=[0, 1], sampling=seeded)
        grown = [([*ids, int(token)], blocks) for (ids, blocks), token in zip(rows, tokens, strict=True)]
        step, _ = calls.decode(grown, sampling=seeded)
        answers.append((tokens.tolist(), step[:2].tolist()))
    assert answers[0] == answers[1] == answers[2]


def test_without_warmup(folder: Path) -> None:
    options = ServerOptions(trace_mode="all", sample_on_device_mode="all", rows=2, num_blocks=16)
    deployment = Deployment(folder, options, warm=False)
    calls = Calls(deployment)
    (mesh,) = deployment.meshes
    with pytest.raises(TraceCoverageError, match="never compiled for tracing"):
        calls.prefill([(OTHER[:20], [3])], slots=[0])
    with pytest.raises(TraceCoverageError, match="never compiled for tracing"):
        calls.decode([(OTHER[:20], [3])])
    assert mesh.ledger.take_writes() == []
    calls.assert_logits(calls.prefill([(OTHER[:20], [3])], slots=[0], enable_trace=False)[0], OTHER[:20])
    step, _ = calls.decode([(OTHER[:20], [3])], enable_trace=False)
    calls.assert_logits(step[0], OTHER[:20])
    deployment.stop()


@pytest.mark.covers("T20", "W03")
def test_shapes_that_warmup_left_out_are_refused_before_any_write(folder: Path) -> None:
    options = ServerOptions(trace_mode="decode_only", sample_on_device_mode=None, rows=2, num_blocks=16)
    deployment = Deployment(folder, options)
    calls = Calls(deployment)
    (mesh,) = deployment.meshes
    mesh.ledger.take_writes()
    with pytest.raises(RuntimeError, match=r"warm up sampling|cover it at warmup"):
        calls.prefill([(OTHER[:20], [3])], slots=[0], sampling=[GREEDY])
    assert mesh.ledger.take_writes() == []
    calls.assert_logits(calls.prefill([(OTHER[:20], [3])], slots=[0])[0], OTHER[:20])
    deployment.stop()


@MODES
def test_cleanup_with_unread_steps(folder: Path, mode: str) -> None:
    options = ServerOptions(trace_mode=mode, sample_on_device_mode="all", rows=2, num_blocks=16)
    deployment = Deployment(folder, options)
    calls = Calls(deployment)
    calls.prefill([(OTHER[:20], [3])], slots=[0])
    raw = calls.decode([(OTHER[:20], [3])], sampling=[GREEDY], read_from_device=False)
    host, _events = deployment.model.read_decode_output(raw, async_read=True)
    del raw, host
    deployment.stop()
