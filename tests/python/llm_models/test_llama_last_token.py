# SPDX-License-Identifier: Apache-2.0
"""Last tokens of a folded wave that are named on the device: by an index of rows, by a tile, or by both."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from support.llama import tiny_checkpoint
from support.llama_lane import TILE, TwinLane

WAVE, LENGTH = 4, 128
LAST = [127, 0, 45, 64]


@pytest.fixture(scope="module")
def lane() -> Iterator[TwinLane]:
    lane = TwinLane(tiny_checkpoint(), batch=4)
    yield lane
    lane.close()


@pytest.fixture
def hidden(lane: TwinLane) -> Iterator[Any]:
    """Hidden states of a folded wave of four rows; afterwards nothing but them was left."""
    before = len(lane.mesh.live_tensors())
    values = np.random.default_rng(3).standard_normal((1, 1, WAVE * LENGTH, lane.model.config.dim))
    host = ttnn_twin.Tensor(values.astype(np.float32), ttnn_twin.bfloat16, layout=ttnn_twin.TILE_LAYOUT)
    tensor = ttnn_twin.to_device(host, device=lane.mesh)
    yield tensor
    ttnn_twin.deallocate(tensor)
    assert len(lane.mesh.live_tensors()) == before


def rows_of(lane: TwinLane, rows: list[int]) -> Any:
    """A device index [1, 32] of `rows`."""
    return lane.upload([[*rows, *[0] * (TILE - len(rows))]], ttnn_twin.uint32)


def post_process(lane: TwinLane, *arguments: Any, **options: Any) -> Any:
    return lane.read(lane.model.post_process_batched_prefill_output(*arguments, **options))


def alive(*tensors: Any) -> bool:
    return all(tensor.is_allocated() for tensor in tensors)


@pytest.mark.covers("MDC-03")
def test_a_device_index_stands_for_the_list(lane: TwinLane, hidden: Any) -> None:
    expected = post_process(lane, hidden, LAST, WAVE, LENGTH)
    index = rows_of(lane, [row * LENGTH + last for row, last in enumerate(LAST)])
    uploads = lane.mesh.counters.bytes_to_device
    found = post_process(lane, hidden, LAST, WAVE, LENGTH, last_token_index=index)
    assert lane.mesh.counters.bytes_to_device == uploads
    np.testing.assert_array_equal(found, expected)
    assert found.shape == (1, 1, TILE, 256)
    assert np.abs(found[0, 0, 0] - found[0, 0, 1]).max() > 0.1
    # The device decides: another index gives other rows, whatever the list says.
    other = rows_of(lane, [1])
    moved = post_process(lane, hidden, LAST, WAVE, LENGTH, last_token_index=other)
    one = post_process(lane, hidden, [1, 0, 0, 0], WAVE, LENGTH)
    np.testing.assert_array_equal(moved[0, 0, 0], one[0, 0, 0])
    assert alive(hidden, index, other)
    for tensor in (index, other):
        ttnn_twin.deallocate(tensor)


@pytest.mark.covers("MDC-03")
@pytest.mark.parametrize("length", [16, 512])
@pytest.mark.parametrize("indexed", [False, True])
def test_rows_come_out_of_the_tile(lane: TwinLane, hidden: Any, length: int, indexed: bool) -> None:
    # Two rows of 16 share the first tile of the fold; one row of 512 ends in its last tile.
    last = [5, 15] if length == 16 else [500]
    folded = [row * length + token for row, token in enumerate(last)]
    expected = post_process(lane, hidden, last, len(last), length)
    bounds = lane.bounds(folded[-1])
    index = rows_of(lane, [row % TILE for row in folded]) if indexed else None
    options = {"last_token_slice": bounds, "last_token_index": index}
    found = post_process(lane, hidden, last, len(last), length, **options)
    np.testing.assert_array_equal(found[0, 0, : len(last)], expected[0, 0, : len(last)])
    borrowed = [hidden, *bounds, *([index] if indexed else [])]
    assert alive(*borrowed)
    for tensor in borrowed[1:]:
        ttnn_twin.deallocate(tensor)


@pytest.mark.covers("MDC-03")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"last_token_slice": (object(), object())}, r"one tile of 32 rows, .* are in tiles \[3, 4, 9, 14\]"),
        ({"last_token_index": SimpleNamespace(shape=(1, 1))}, r"must be \[1, 32\], got \[1, 1\]"),
    ],
)
def test_what_means_nothing_is_refused_before_device_work(
    lane: TwinLane, hidden: Any, options: dict[str, Any], words: str
) -> None:
    allocations = lane.mesh.counters.allocations
    with pytest.raises(ValueError, match=words):
        lane.model.post_process_batched_prefill_output(hidden, LAST, WAVE, LENGTH, **options)
    assert lane.mesh.counters.allocations == allocations
