# SPDX-License-Identifier: Apache-2.0
"""The Llama body on the twin against the NumPy reference: decode, positions, capture and replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from oracle.numpy_llama import NumpyLlama
from support.llama import tiny_checkpoint, tiny_config
from support.llama_lane import BLOCK, TwinLane

CONFIGS = {
    "gqa_4_2": tiny_config(),
    "gqa_9_3_head_64": tiny_config(n_heads=9, n_kv_heads=3, head_dim=64, dim=96),
}


@pytest.fixture(params=sorted(CONFIGS))
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[TwinLane, NumpyLlama]]:
    checkpoint = tiny_checkpoint(CONFIGS[request.param])
    lane = TwinLane(checkpoint, batch=3, trace_region_size=1 << 20)
    yield lane, NumpyLlama(checkpoint.config, checkpoint.tensor)
    lane.close()


def prompt(length: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-4)


def test_ragged_rows_cross_block_borders(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, reference = pair
    rows = [prompt(30, seed=1), prompt(64, seed=2), prompt(1, seed=3)]
    tables = [[1, 2, 3, 0], [4, 5, 6, 0], [7, 8, 0, 0]]
    for row, tokens in enumerate(rows):
        blocks = tables[row][: -(-len(tokens) // BLOCK)]
        ttnn_twin.deallocate(lane.prefill([tokens], [blocks], length=128))
    for step in range(4):
        new = [17 * step + row for row in range(3)]
        lane.mesh.ledger.clear()
        positions = [len(tokens) for tokens in rows]
        logits = lane.decode(new, positions, tables)
        rows = [[*tokens, token] for tokens, token in zip(rows, new, strict=True)]
        for row, tokens in enumerate(rows):
            close(logits[row], reference.logits(tokens)[-1])
        expected = {(tables[row][position // BLOCK], position % BLOCK) for row, position in enumerate(positions)}
        assert lane.written() == expected
        # Two tensors in each layer, one write per row.
        assert len(lane.mesh.ledger.writes) == 3 * 2 * lane.model.n_layers


def test_idle_slots_write_nothing_and_change_nobody(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, reference = pair
    tokens = prompt(40)
    ttnn_twin.deallocate(lane.prefill([tokens], [[1, 2]], length=128))
    lane.mesh.ledger.clear()
    lane.mesh.ledger.poison([0, 3])
    logits = lane.decode([0, 9, 0], [-1, 40, -1], [[0, 0], [1, 2], [3, 3]])
    close(logits[1], reference.logits([*tokens, 9])[-1])
    assert lane.written() == {(2, 8)}
    lane.mesh.ledger.clear()
    lane.decode([0, 0, 0], [-1, -1, -1], [[0, 0]] * 3)
    assert lane.written() == set()


def test_a_step_leaves_no_device_memory_behind(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, _ = pair
    before = lane.mesh.live_tensors()
    lane.decode([1, 2, 3], [0, 0, 0], [[1], [2], [3]])
    assert lane.mesh.live_tensors() == before


def test_every_layer_frees_what_it_makes_at_once() -> None:
    # Device memory would otherwise only come back when Python drops the last name of a tensor.
    kept = []
    for n_layers in (1, 2):
        lane = TwinLane(tiny_checkpoint(), batch=32, n_layers=n_layers)
        counters = lane.mesh.counters
        before = counters.allocations - counters.deallocations
        ttnn_twin.deallocate(lane.prefill([prompt(40)], [[1, 2]], length=128))
        lane.decode([1] * 32, [0] * 32, [[row] for row in range(32)])
        kept.append(counters.allocations - counters.deallocations - before)
        lane.close()
    assert kept[0] == kept[1]


def test_positions_advance_in_place(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, _ = pair
    positions = lane.upload([5, -1, 0], ttnn_twin.int32)
    rotary = lane.upload([[5, 0, 0, *[0] * 29]], ttnn_twin.uint32)
    lane.model.increment_positions(positions, rotary)
    assert lane.read(positions).tolist() == [6, -1, 1]
    assert lane.read(rotary)[0, :4].tolist() == [6, 1, 1, 1]


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
def test_a_captured_step_with_feedback_replays_greedily(execution: str) -> None:
    checkpoint = tiny_checkpoint()
    reference = NumpyLlama(checkpoint.config, checkpoint.tensor)
    lane = TwinLane(checkpoint, batch=2, trace_region_size=1 << 20, execution=execution)
    model, rows = lane.model, [prompt(30, seed=4), prompt(9, seed=5)]
    tables = [[1, 2], [3, 4]]
    new = []
    for tokens, table in zip(rows, tables, strict=True):
        logits = lane.read(
            lane.prefill([tokens], [table[: -(-len(tokens) // BLOCK)]], length=128, get_last_token=len(tokens) - 1)
        )
        new.append([int(logits[0, 0, (len(tokens) - 1) % 32].argmax())])
    model.sampling.load_device_buffers()
    inputs = (
        lane.upload([[[[new[0][0], new[1][0], *[0] * 30]]]], ttnn_twin.uint32),
        lane.upload([30, 9], ttnn_twin.int32),
        lane.upload([[30, 9, *[0] * 30]], ttnn_twin.uint32),
        lane.upload(tables, ttnn_twin.int32),
    )

    def body() -> Any:
        tokens, positions, rotary, table = inputs
        rotation = model.rope_setup.decode_forward(rotary)
        logits = model.decode_forward(model.embed_decode(tokens), positions, rotation, page_table=table)
        ids, _ = model.sampling.decode_forward(logits)
        ttnn_twin.copy(input_a=ttnn_twin.reshape(ids, tokens.shape), input_b=tokens)
        model.increment_positions(positions, rotary)
        return ids

    # The first run compiles; its writes and feedback are the first step.
    first = lane.read(body())[0, 0, 0, :2]
    for row in range(2):
        new[row].append(int(first[row]))
    trace = ttnn_twin.begin_trace_capture(lane.mesh, cq_id=0)
    output = body()
    ttnn_twin.end_trace_capture(lane.mesh, trace, cq_id=0)
    for _ in range(5):
        ttnn_twin.execute_trace(lane.mesh, trace, cq_id=0, blocking=True)
        for row, token in enumerate(output.cpu(blocking=True).to_numpy()[0, 0, 0, :2]):
            new[row].append(int(token))
    for row, tokens in enumerate(rows):
        assert new[row] == reference.greedy(tokens, max_new_tokens=7)
    ttnn_twin.release_trace(lane.mesh, trace)
    lane.close()


def test_bfloat16_precision_stays_near_the_reference() -> None:
    checkpoint = tiny_checkpoint()
    reference = NumpyLlama(checkpoint.config, checkpoint.tensor)
    lane = TwinLane(checkpoint, batch=1, precision="bfloat16")
    tokens = prompt(40)
    ttnn_twin.deallocate(lane.prefill([tokens], [[1, 2]], length=128))
    logits = lane.decode([9], [40], [[1, 2]])[0]
    expected = reference.logits([*tokens, 9])[-1]
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    assert 1e-5 < error < 0.05
    lane.close()


def test_decode_without_a_table_or_cache_is_refused(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, _ = pair
    with pytest.raises(ValueError, match="page table"):
        lane.model.decode_forward(None, None, [None, None])
    lane.model.set_kv_cache(None)
    with pytest.raises(RuntimeError, match="no KV cache is bound"):
        lane.decode([1, 2, 3], [0, 0, 0], [[1], [2], [3]])
