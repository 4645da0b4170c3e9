# SPDX-License-Identifier: Apache-2.0
"""Draws: distribution, limits, seeds as data, and independence of rows."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import numbers, read, rows, tiles

USERS, WIDTH = 32, 64


class Batch:
    """Device inputs of one sampling call."""

    def __init__(self, mesh, values, *, k=WIDTH, p=1.0, temp=1.0):
        count = values.shape[0]
        self.mesh = mesh
        self.values = tiles(mesh, values[None, None])
        indices = 1000 + np.tile(np.arange(values.shape[1], dtype=np.int32), (count, 1))
        self.indices = rows(mesh, indices[None, None])
        self.k = rows(mesh, np.broadcast_to(np.asarray(k, np.uint32), (count,)))
        self.p = rows(mesh, np.broadcast_to(np.asarray(p, np.float32), (count,)))
        self.temp = rows(mesh, np.broadcast_to(np.asarray(temp, np.float32), (count,)))

    def seed(self, seeds, users=None):
        values = np.asarray(seeds, np.uint32)
        ids = np.arange(len(values), dtype=np.uint32) if users is None else np.asarray(users, np.uint32)
        ttnn.manual_seed(rows(self.mesh, values), user_ids=rows(self.mesh, ids))

    def draw(self, **options):
        result = ttnn.sampling(self.values, self.indices, k=self.k, p=self.p, temp=self.temp, **options)
        return read(result).reshape(-1) - 1000


def flat(values):
    return np.tile(np.asarray(values, np.float32), (USERS, 1))


def frequencies(batch, draws=60):
    counted = np.zeros(WIDTH)
    for step in range(draws):
        batch.seed(np.arange(USERS) + USERS * step)
        counted += np.bincount(batch.draw(), minlength=WIDTH)
    return counted / counted.sum()


def test_result_is_a_row_of_tokens(mesh):
    batch = Batch(mesh, numbers(USERS, WIDTH))
    result = ttnn.sampling(batch.values, batch.indices, k=batch.k, p=batch.p, temp=batch.temp)
    assert (result.shape, result.dtype) == ((1, 1, 1, USERS), ttnn.uint32)


def test_frequencies_follow_the_softmax_at_the_inverse_temperature(mesh):
    values = np.full(WIDTH, -np.inf, np.float32)
    values[[3, 10, 60]] = [0.0, 1.0, 2.0]
    weights = np.exp(np.array([0.0, 0.5, 1.0]))
    seen = frequencies(Batch(mesh, flat(values), temp=0.5))
    np.testing.assert_allclose(seen[[3, 10, 60]], weights / weights.sum(), atol=0.04)
    assert seen[[3, 10, 60]].sum() == pytest.approx(1.0)


def test_only_the_k_largest_are_drawn_wherever_they_stand(mesh):
    values = np.linspace(-1, 0, WIDTH, dtype=np.float32)
    values[[40, 7]] = [0.5, 0.25]
    assert set(np.flatnonzero(frequencies(Batch(mesh, flat(values), k=3), 10))) == {40, 7, 63}


@pytest.mark.parametrize(
    ("p", "kept"), [(0.0, {0}), (0.39, {0}), (0.41, {0, 1}), (0.75, {0, 1, 2}), (1.0, {0, 1, 2, 3})]
)
def test_nucleus_is_the_smallest_prefix_that_reaches_p(mesh, p, kept):
    values = np.full(WIDTH, -np.inf, np.float32)
    values[:4] = np.log([0.4, 0.3, 0.2, 0.1])
    assert set(np.flatnonzero(frequencies(Batch(mesh, flat(values), p=p), 12))) == kept


def test_k_of_one_is_greedy_and_k_is_clamped(mesh):
    values = numbers(USERS, WIDTH)
    assert (Batch(mesh, values, k=1).draw() == values.argmax(axis=1)).all()
    assert (Batch(mesh, values, k=0).draw() == values.argmax(axis=1)).all()
    assert (Batch(mesh, values, k=500).draw() < WIDTH).all()


def test_first_candidate_wins_among_equals(mesh):
    assert (Batch(mesh, flat(np.zeros(WIDTH)), k=1).draw() == 0).all()


def test_rows_without_a_distribution_give_a_candidate(mesh):
    values = numbers(USERS, WIDTH)
    values[3], values[4] = np.nan, -np.inf
    drawn = Batch(mesh, values).draw()
    assert ((drawn >= 0) & (drawn < WIDTH)).all()


def test_a_draw_depends_on_seed_and_values_of_its_row_only(mesh):
    values = numbers(USERS, WIDTH)
    batch = Batch(mesh, values)
    batch.seed(np.full(USERS, 42))
    alone = batch.draw()
    moved = Batch(mesh, np.roll(values, 5, axis=0), k=np.where(np.arange(USERS) == 3, 1, WIDTH))
    moved.seed(np.where(np.arange(USERS) == 4, 7, 42))
    drawn = np.roll(moved.draw(), -5)
    others = ~np.isin(np.roll(np.arange(USERS), -5), (3, 4))
    assert (drawn[others] == alone[others]).all()
    same = Batch(mesh, flat(values[0]))
    same.seed(np.full(USERS, 42))
    assert len(set(same.draw())) == 1


def test_a_row_continues_its_own_stream_until_it_is_seeded_again(mesh):
    batch = Batch(mesh, flat(np.zeros(WIDTH)))
    batch.seed(np.arange(USERS))
    first, second = batch.draw(), batch.draw()
    assert (first != second).sum() > USERS // 2
    batch.seed([0xFFFFFFFF] * USERS)
    third = batch.draw()
    batch.seed(np.arange(USERS))
    assert (batch.draw() == first).all()
    assert (batch.draw() == second).all()
    assert (batch.draw() == third).all()


def test_user_ids_choose_the_rows(mesh):
    batch = Batch(mesh, flat(np.zeros(WIDTH)))
    batch.seed(np.full(USERS, 9))
    reference = batch.draw()
    batch.seed(np.arange(USERS))
    batch.seed([9], users=[17])
    drawn = batch.draw()
    assert drawn[17] == reference[17]
    assert (drawn == reference).sum() < USERS


def test_seeds_without_user_ids_and_the_seed_argument(mesh):
    batch = Batch(mesh, numbers(USERS, WIDTH))
    batch.seed(np.full(USERS, 5))
    reference = batch.draw()
    ttnn.manual_seed(rows(mesh, np.full(USERS, 5, np.uint32)))
    assert (batch.draw() == reference).all()
    assert (batch.draw(seed=5) == reference).all()


def test_a_replay_draws_from_the_refreshed_seeds(mesh):
    batch = Batch(mesh, flat(np.zeros(WIDTH)))
    seeds, users = rows(mesh, np.zeros(USERS, np.uint32)), rows(mesh, np.arange(USERS, dtype=np.uint32))
    target = rows(mesh, np.zeros((1, 1, 1, USERS), np.int32))

    def body():
        ttnn.manual_seed(seeds, user_ids=users)
        ttnn.sampling(batch.values, batch.indices, k=batch.k, p=batch.p, temp=batch.temp, output_tensor=target)

    body()
    trace = ttnn.begin_trace_capture(mesh)
    body()
    ttnn.end_trace_capture(mesh, trace)
    for value in (11, 12, 11):
        host = ttnn.Tensor(np.full(USERS, value, np.uint32), ttnn.uint32)
        ttnn.copy_host_to_device_tensor(host, seeds)
        ttnn.execute_trace(mesh, trace)
        replayed = read(target).reshape(-1) - 1000
        batch.seed(np.full(USERS, value))
        assert (batch.draw() == replayed).all()


def test_meshes_have_generators_of_their_own(mesh, open_mesh):
    batch, other = Batch(mesh, flat(np.zeros(WIDTH))), Batch(open_mesh(), flat(np.zeros(WIDTH)))
    batch.seed(np.arange(USERS))
    other.seed(np.arange(USERS) + 77)
    first = batch.draw()
    other.draw()
    batch.seed(np.arange(USERS))
    assert (batch.draw() == first).all()


def test_fewer_rows(mesh):
    values = numbers(5, WIDTH)
    assert (Batch(mesh, values, k=1).draw() == values.argmax(axis=1)).all()


def test_refusals(mesh):
    batch = Batch(mesh, numbers(USERS, WIDTH))

    def call(**changes):
        arguments = {"k": batch.k, "p": batch.p, "temp": batch.temp, **changes}
        values = arguments.pop("values", batch.values)
        ttnn.sampling(values, arguments.pop("indices", batch.indices), **arguments)

    for changes, words in (
        ({"values": tiles(mesh, numbers(1, 1, USERS, WIDTH), ttnn.float32)}, "values_tensor has dtype FLOAT32"),
        ({"indices": tiles(mesh, np.zeros((1, 1, USERS, WIDTH), np.int32))}, "indices_tensor has layout TILE"),
        ({"indices": rows(mesh, np.zeros((1, 1, USERS, 32), np.int32))}, "for values"),
        ({"k": rows(mesh, np.zeros(16, np.uint32))}, r"k has shape \[16\]; \[32\]"),
        ({"p": rows(mesh, np.zeros(USERS, np.float32), ttnn.float32)}, "p has dtype FLOAT32"),
        ({"temp": rows(mesh, np.zeros((1, USERS), np.float32))}, r"temp has shape \[1, 32\]"),
        ({"output_tensor": rows(mesh, np.zeros(USERS, np.uint32))}, r"\[1, 1, 1, 32\] is needed"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call(**changes)
    with pytest.raises(RuntimeError, match="96 candidates; a power of two"):
        Batch(mesh, numbers(USERS, 96)).draw()
    with pytest.raises(RuntimeError, match="1 to 32 rows"):
        Batch(mesh, numbers(33, WIDTH)).draw()
    with pytest.raises(RuntimeError, match="8 user_ids for 32 seeds"):
        ttnn.manual_seed(rows(mesh, np.zeros(32, np.uint32)), user_ids=rows(mesh, np.zeros(8, np.uint32)))
    with pytest.raises(RuntimeError, match="INT32"):
        ttnn.manual_seed(rows(mesh, np.zeros(32, np.int32)))
    with pytest.raises(RuntimeError, match="user id 32"):
        batch.seed([1], users=[32])
        ttnn.synchronize_device(mesh)
