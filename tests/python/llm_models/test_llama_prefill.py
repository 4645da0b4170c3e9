# SPDX-License-Identifier: Apache-2.0
"""The Llama body on the twin against the NumPy reference: prefill in every call form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ttnn_twin
from oracle.numpy_llama import NumpyLlama
from support.llama import tiny_checkpoint, tiny_config
from support.llama_lane import BLOCK, TILE, TwinLane

CONFIGS = {
    "gqa_4_2": tiny_config(),
    "gqa_9_3_head_64": tiny_config(n_heads=9, n_kv_heads=3, head_dim=64, dim=96),
    "untied_scaled": tiny_config(tied_embeddings=False, rope_factors=tuple(np.linspace(1, 4, 16).tolist())),
}
UNUSED = 31


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[TwinLane, NumpyLlama]]:
    checkpoint = tiny_checkpoint(CONFIGS[request.param])
    lane = TwinLane(checkpoint)
    yield lane, NumpyLlama(checkpoint.config, checkpoint.tensor)
    lane.close()


@pytest.fixture(autouse=True)
def nothing_left_behind(pair: tuple[TwinLane, NumpyLlama]) -> Iterator[None]:
    lane, _ = pair
    lane.mesh.ledger.clear()
    before = {tensor.buffer_id for tensor in lane.mesh.live_tensors()}
    yield
    left = [tensor for tensor in lane.mesh.live_tensors() if tensor.buffer_id not in before]
    assert not left


def prompt(length: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


def close(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-4)


def stored_as(lane: TwinLane, reference: NumpyLlama, tokens: list[int], table: list[int]) -> None:
    """Compare the cache of every layer with the reference's keys and values."""
    for layer, expected in enumerate(reference.keys_and_values(tokens)):
        for cache, wanted in zip(lane.cache[layer], expected, strict=True):
            stored = cache.cpu(blocking=True).to_numpy()
            found = np.concatenate([stored[block] for block in table], axis=1)[:, : len(tokens)]
            np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 127, 128])
def test_last_token_logits_at_every_tile_edge(pair: tuple[TwinLane, NumpyLlama], length: int) -> None:
    lane, reference = pair
    tokens = prompt(length)
    last = length - 1
    hidden = lane.prefill([tokens], [[5, 2, 9, 3]], length=128)
    expected = reference.logits(tokens)[last]
    model = lane.model
    static = lane.read(model.post_process_prefill_output(hidden, last))
    assert static.shape == (1, 1, TILE, 256)
    close(static[0, 0, last % TILE], expected)
    bounds, row = lane.bounds(last), lane.upload([[last % TILE]], ttnn_twin.uint32)
    tile = lane.read(model.post_process_prefill_output(hidden, last, last_token_slice=bounds))
    np.testing.assert_allclose(tile, static, atol=1e-5)
    one = lane.read(model.post_process_prefill_output(hidden, last, last_token_slice=bounds, last_token_index=row))
    assert one.shape == (1, 1, 1, 256)
    close(one[0, 0, 0], expected)
    for tensor in (hidden, *bounds, row):
        ttnn_twin.deallocate(tensor)


def test_logits_may_be_asked_for_in_the_call(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, reference = pair
    tokens = prompt(40)
    logits = lane.read(lane.prefill([tokens], [[5, 2]], length=128, get_last_token=39))
    close(logits[0, 0, 39 % TILE], reference.logits(tokens)[39])


def test_keys_and_values_land_in_the_blocks_of_the_table(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, reference = pair
    tokens, table = prompt(70), [7, 4, 11]
    ttnn_twin.deallocate(lane.prefill([tokens], [table], length=128))
    stored_as(lane, reference, tokens, table)


def test_unmapped_table_entries_write_nothing(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, _ = pair
    lane.mesh.ledger.poison([0, UNUSED])
    ttnn_twin.deallocate(lane.prefill([prompt(40)], [[6, 8, -1, -1]], length=128))
    assert lane.written() == {(block, offset) for block in (6, 8) for offset in range(BLOCK)}
    assert not lane.mesh.ledger.poisoned_writes()


def test_a_table_narrower_than_the_padded_row_cuts_the_fill(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, reference = pair
    tokens = prompt(40)
    hidden = lane.prefill([tokens], [[6, 8]], length=128)
    close(
        lane.read(lane.model.post_process_prefill_output(hidden, 39))[0, 0, 39 % TILE],
        reference.logits(tokens)[39],
    )
    ttnn_twin.deallocate(hidden)
    assert {block for block, _ in lane.written()} == {6, 8}


@pytest.mark.parametrize("lengths", [(128, 1), (40, 80, 128), (5, 6, 7)])
def test_a_wave_gives_what_singles_give(pair: tuple[TwinLane, NumpyLlama], lengths: tuple[int, ...]) -> None:
    lane, reference = pair
    prompts = [prompt(length, seed=length) for length in lengths]
    wave = 2 if len(lengths) == 2 else 4
    padding = [[0]] * (wave - len(lengths))
    tables = [[4 * row + 1, 4 * row + 2, 4 * row + 3, 4 * row + 4] for row in range(len(lengths))]
    hidden = lane.prefill(
        [*prompts, *padding],
        [*tables, *[[-1] * 4] * len(padding)],
        length=128,
        user_id=list(range(len(lengths))),
    )
    assert hidden.shape == (1, 1, wave * 128, lane.model.config.dim)
    last = [length - 1 for length in lengths] + [0] * len(padding)
    logits = lane.read(lane.model.post_process_batched_prefill_output(hidden, last, wave, 128))
    assert logits.shape == (1, 1, TILE, 256)
    for row, tokens in enumerate(prompts):
        close(logits[0, 0, row], reference.logits(tokens)[-1])
        part = ttnn_twin.slice(hidden, (0, 0, row * 128, 0), (1, 1, (row + 1) * 128, hidden.shape[3]))
        by_row = lane.read(lane.model.post_process_prefill_output(part, last[row]))
        close(by_row[0, 0, last[row] % TILE], reference.logits(tokens)[-1])
        ttnn_twin.deallocate(part)
    ttnn_twin.deallocate(hidden)
    assert {block for block, _ in lane.written()} == {block for table in tables for block in table}
    for tokens, table in zip(prompts, tables, strict=True):
        stored_as(lane, reference, tokens, table)


def test_padding_rows_of_a_wave_write_nothing_even_when_filled(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, _ = pair
    tables = [[1, 2, -1, -1], [-1] * 4]
    ttnn_twin.deallocate(lane.prefill([prompt(40), [0]], tables, length=128, user_id=[0, 1]))
    assert {block for block, _ in lane.written()} == {1, 2}


@pytest.mark.parametrize("as_tensor", [True, False])
def test_chunks_give_what_one_prefill_gives(pair: tuple[TwinLane, NumpyLlama], as_tensor: bool) -> None:
    lane, reference = pair
    tokens, table = prompt(300), list(range(10, 20))
    expected = reference.logits(tokens)[-1]
    for start in (0, 128):
        lane.chunk(tokens, table, start=start, length=128, last=43, as_tensor=as_tensor)
    tile = lane.chunk(tokens, table, start=256, length=128, last=43, as_tensor=as_tensor)
    close(tile[0, 0, 43 % TILE], expected)
    row = lane.chunk(tokens, table, start=256, length=128, last=43, as_tensor=as_tensor, row_only=True)
    close(row[0, 0, 0], expected)
    assert {block for block, _ in lane.written()} == set(table)


def test_a_cached_prefix_is_read_and_not_written(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, reference = pair
    tokens, table = prompt(150), [20, 21, 22, 23, 24]
    ttnn_twin.deallocate(lane.prefill([tokens[:96]], [table[:3]], length=128))
    lane.mesh.ledger.clear()
    row = lane.chunk(tokens, table, start=96, length=128, last=53, row_only=True)
    close(row[0, 0, 0], reference.logits(tokens)[-1])
    assert {block for block, _ in lane.written()} == {23, 24}


def test_the_tensor_start_wins_over_the_int(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, reference = pair
    tokens, table = prompt(200), list(range(10, 17))
    lane.chunk(tokens, table, start=0, length=128, last=0)
    start, blocks = lane.upload([128], ttnn_twin.int32), lane.upload([[14, 15, 16, -1]], ttnn_twin.int32)
    hidden = lane.prefill(
        [tokens[128:]],
        [[*table, 0]],
        length=128,
        start=128,
        chunk_start_idx=0,
        chunk_start_idx_tensor=start,
        chunk_page_table=blocks,
    )
    assert hidden.shape == (1, 1, 128, lane.model.config.dim)
    logits = lane.read(lane.model.post_process_prefill_output(hidden, 71))
    close(logits[0, 0, 71 % TILE], reference.logits(tokens)[-1])
    for tensor in (hidden, start, blocks):
        ttnn_twin.deallocate(tensor)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 2, "chunk_start_idx": 0}, "wave of 2"),
        ({"last_token_index": object()}, "last_token_slice"),
        ({"page_table": None}, "page table"),
        ({"user_id": 1}, r"\[1\]"),
        ({"batch_size": 3, "user_id": [0]}, "128 folded rows"),
    ],
)
def test_calls_that_mean_nothing_are_refused_before_device_work(
    pair: tuple[TwinLane, NumpyLlama], options: dict[str, Any], words: str
) -> None:
    lane, _ = pair
    x = ttnn_twin.zeros((1, 1, 128, lane.model.config.dim), layout=ttnn_twin.TILE_LAYOUT, device=lane.mesh)
    programs = lane.mesh.num_program_cache_entries()
    with pytest.raises(ValueError, match=words):
        lane.model.prefill_forward(x, [None, None], **{"page_table": x, **options})
    assert lane.mesh.num_program_cache_entries() == programs
    ttnn_twin.deallocate(x)


def test_last_tokens_outside_their_rows_are_named(pair: tuple[TwinLane, NumpyLlama]) -> None:
    lane, _ = pair
    hidden = ttnn_twin.zeros((1, 1, 256, lane.model.config.dim), layout=ttnn_twin.TILE_LAYOUT, device=lane.mesh)
    with pytest.raises(ValueError, match="256"):
        lane.model.post_process_prefill_output(hidden, 256)
    with pytest.raises(ValueError, match="row 1: last token 128"):
        lane.model.post_process_batched_prefill_output(hidden, [0, 128], 2, 128)
    with pytest.raises(ValueError, match="1 last tokens for a wave of 2"):
        lane.model.post_process_batched_prefill_output(hidden, [0], 2, 128)
    ttnn_twin.deallocate(hidden)
