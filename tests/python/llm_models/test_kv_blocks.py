# SPDX-License-Identifier: Apache-2.0
"""The pool of free KV blocks."""

from __future__ import annotations

import pytest

from llm_models.kv_blocks import BlockPool


def test_allocates_lowest_ids_first_and_skips_reserved() -> None:
    pool = BlockPool(6, reserved=[1, 3])
    assert pool.allocate(3) == (0, 2, 4)
    assert pool.free == 1


def test_refuses_more_than_is_free_and_takes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(ValueError, match=r"2 KV blocks are needed, 1 of 4 are free"):
        pool.allocate(2)
    assert pool.allocate(1) == (3,)


def test_released_blocks_serve_again_and_the_peak_is_remembered() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    pool.release(blocks)
    assert pool.free == 4
    assert pool.allocate(2) == (0, 1)
    assert pool.peak_used == 3


@pytest.mark.parametrize("blocks", [[0], [2], [1, 1]], ids=["already-free", "never-taken", "twice"])
def test_refuses_blocks_that_are_not_in_use(blocks: list[int]) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    pool.release([0])
    with pytest.raises(ValueError, match="not in use"):
        pool.release(blocks)
    assert pool.free == 3


def test_refuses_a_reserved_block_outside_the_cache() -> None:
    with pytest.raises(ValueError, match="reserved block 4 is outside a cache of 4"):
        BlockPool(4, reserved=[4])
