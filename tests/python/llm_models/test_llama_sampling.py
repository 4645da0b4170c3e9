# SPDX-License-Identifier: Apache-2.0
"""The device sampler on the twin: argmax, top-k, seeds, buffers, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ttnn_twin
from llm_models.llama.sampling import Sampling1D, Sampling1DConfig
from llm_runtime.seed_manager import SeedManager, device_seed

VOCABULARY = 256


@pytest.fixture
def mesh() -> Iterator[ttnn_twin.MeshDevice]:
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1))
    yield mesh
    ttnn_twin.close_mesh_device(mesh)


def sampler(mesh: ttnn_twin.MeshDevice, **changes: Any) -> Sampling1D:
    return Sampling1D(Sampling1DConfig(**{"mesh_device": mesh, "vocab_size": VOCABULARY, **changes}))


def upload(mesh: ttnn_twin.MeshDevice, values: Any, dtype: Any) -> Any:
    kind = np.uint32 if dtype is ttnn_twin.uint32 else np.float32
    return ttnn_twin.to_device(ttnn_twin.Tensor(np.array(values, kind), dtype), device=mesh)


def device_logits(mesh: ttnn_twin.MeshDevice, values: npt.NDArray[np.float32]) -> Any:
    host = ttnn_twin.to_layout(ttnn_twin.Tensor(values[None, None].copy(), ttnn_twin.bfloat16), ttnn_twin.TILE_LAYOUT)
    return ttnn_twin.to_device(host, device=mesh)


def kpt(mesh: ttnn_twin.MeshDevice, k: int, p: float, temperature: float) -> dict[str, Any]:
    return {
        "k": upload(mesh, [k] * 32, ttnn_twin.uint32),
        "p": upload(mesh, [p] * 32, ttnn_twin.bfloat16),
        "temp": upload(mesh, [1 / temperature] * 32, ttnn_twin.bfloat16),
    }


def ids(output: tuple[Any, None]) -> list[int]:
    assert output[1] is None
    assert output[0].shape == (1, 1, 1, 32)
    return [int(token) for token in output[0].cpu(blocking=True).to_numpy()[0, 0, 0]]


def random_logits(rows: int, width: int = VOCABULARY, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 5, 32])
@pytest.mark.parametrize("with_output", [False, True])
def test_argmax_takes_the_largest_logit_of_each_row(mesh: ttnn_twin.MeshDevice, rows: int, with_output: bool) -> None:
    values = random_logits(rows)
    output = upload(mesh, [[[[9] * 32]]], ttnn_twin.uint32) if with_output else None
    result = sampler(mesh).decode_forward(device_logits(mesh, values), tt_out_tok=output)
    assert ids(result) == values.argmax(-1).tolist() + [0] * (32 - rows)
    assert output is None or result[0] is output


@pytest.mark.parametrize("rows", [1, 7, 32])
@pytest.mark.parametrize("width", [256, 224, 32])
@pytest.mark.parametrize("with_output", [False, True])
def test_top_k_of_one_is_greedy_over_both_halves(
    mesh: ttnn_twin.MeshDevice, rows: int, width: int, with_output: bool
) -> None:
    values = random_logits(rows, width)
    output = upload(mesh, [[[[9] * 32]]], ttnn_twin.uint32) if with_output else None
    result = sampler(mesh, vocab_size=width).decode_forward(
        device_logits(mesh, values), tt_out_tok=output, **kpt(mesh, 1, 0.0, 1.0)
    )
    assert ids(result)[:rows] == values.argmax(-1).tolist()
    if output is not None:
        assert output.cpu(blocking=True).to_numpy()[0, 0, 0, :rows].tolist() == values.argmax(-1).tolist()


def draws(mesh: ttnn_twin.MeshDevice, values: npt.NDArray[np.float32], seeds: list[int], **options: Any) -> list[int]:
    sampling = sampler(mesh)
    sampling.config.seeds.update(np.array([*seeds, *[1] * (32 - len(seeds))], np.uint32))
    return ids(sampling.decode_forward(device_logits(mesh, values), **options))[: len(values)]


def test_draws_stay_among_the_k_largest_and_follow_their_probabilities(mesh: ttnn_twin.MeshDevice) -> None:
    values = np.full((32, VOCABULARY), -9.0, np.float32)
    values[:, [3, 130, 200]] = np.log([0.5, 0.3, 0.2])
    options = kpt(mesh, 2, 1.0, 1.0)
    found = [
        token
        for first in range(0, 1600, 32)
        for token in draws(mesh, values, [device_seed(seed, 5) for seed in range(first, first + 32)], **options)
    ]
    assert set(found) == {3, 130}
    assert found.count(3) / len(found) == pytest.approx(0.625, abs=0.04)


def test_a_draw_depends_on_its_seed_and_not_on_its_row_or_mates(mesh: ttnn_twin.MeshDevice) -> None:
    row = random_logits(1)[0]
    options = kpt(mesh, 32, 1.0, 1.0)
    alone = draws(mesh, row[None], [77], **options)[0]
    mates = random_logits(6, seed=3)
    mates[4] = row
    assert draws(mesh, mates, [5, 6, 7, 8, 77, 9], **options)[4] == alone
    seeds = list(range(100, 132))
    spread = draws(mesh, np.tile(row, (32, 1)), seeds, **options)
    assert len(set(spread)) > 5
    assert draws(mesh, np.tile(row, (32, 1)), seeds[::-1], **options) == spread[::-1]


def test_given_seeds_take_the_place_of_the_buffer(mesh: ttnn_twin.MeshDevice) -> None:
    row = np.tile(random_logits(1), (32, 1))
    options = kpt(mesh, 32, 1.0, 1.0)
    seeds = list(range(40, 72))
    sampling = sampler(mesh)
    given = ids(
        sampling.decode_forward(device_logits(mesh, row), seeds=upload(mesh, seeds, ttnn_twin.uint32), **options)
    )
    assert given == draws(mesh, row, seeds, **options)


@pytest.mark.covers("D10", "DEC-07")
def test_a_seeded_request_has_the_same_tokens_in_every_slot(mesh: ttnn_twin.MeshDevice) -> None:
    steps = random_logits(6, seed=8)

    def run(slot: int, mates: dict[int, int | None]) -> list[int]:
        sampling = sampler(mesh)
        sampling.load_device_buffers()
        manager = SeedManager(sampling.config.seeds)
        state = manager.create_state()
        seeds: list[int | None] = [None] * 32
        for other, seed in {**mates, slot: 7}.items():
            seeds[other] = seed
        active = sorted({*mates, slot})
        options = kpt(mesh, 32, 1.0, 1.0)
        tokens = []
        for step, row in enumerate(steps):
            positions = [40 + step if at in active else -1 for at in range(32)]
            manager.synchronize(state, seeds, active, reset_batch=step == 0)
            manager.refresh(state, active, positions=positions)
            values = random_logits(32, seed=100 + step)
            values[slot] = row
            tokens.append(ids(sampling.decode_forward(device_logits(mesh, values), **options))[slot])
        return tokens

    assert run(0, {}) == run(5, {0: None, 9: 33}) == run(31, {30: 8})


def test_buffers_load_once_and_are_released(mesh: ttnn_twin.MeshDevice) -> None:
    sampling = sampler(mesh)
    sampling.load_device_buffers()
    buffer, live = sampling.config.seeds.get_device_buffer(), len(mesh.live_tensors())
    sampling.load_device_buffers()
    assert sampling.config.seeds.get_device_buffer() is buffer
    assert len(mesh.live_tensors()) == live == 3
    sampling.config.seeds.update(np.arange(60, 92, dtype=np.uint32))
    for _ in range(2):
        sampling.release()
        assert mesh.live_tensors() == []
    sampling.load_device_buffers()
    reloaded = sampling.config.seeds.get_device_buffer().cpu(blocking=True).to_numpy()
    assert reloaded.tolist() == sampling.config.seeds.source.tolist()


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_failed_load_can_be_repeated(mesh: ttnn_twin.MeshDevice, at: int) -> None:
    sampling = sampler(mesh)
    mesh.faults.fail(op="to_device", at=at)
    with pytest.raises(Exception, match="to_device"):
        sampling.load_device_buffers()
    sampling.load_device_buffers()
    assert len(mesh.live_tensors()) == 3
    sampling.release()
    assert mesh.live_tensors() == []


def test_seeds_are_copied_only_when_they_change_and_again_after_a_failure(mesh: ttnn_twin.MeshDevice) -> None:
    seeds = sampler(mesh).config.seeds
    values = np.arange(7, 39, dtype=np.uint32)
    seeds.update(values)
    seeds.update(values)
    assert mesh.counters.calls["copy_host_to_device_tensor"] == 1
    mesh.faults.fail(op="copy_host_to_device_tensor", at=1)
    with pytest.raises(Exception, match="copy_host_to_device_tensor"):
        seeds.update(seeds.source)
    seeds.update(values)
    assert seeds.get_device_buffer().cpu(blocking=True).to_numpy().tolist() == values.tolist()
    assert mesh.counters.calls["copy_host_to_device_tensor"] == 3


def test_nothing_is_left_behind_and_logits_stay(mesh: ttnn_twin.MeshDevice) -> None:
    sampling = sampler(mesh)
    sampling.load_device_buffers()
    logits, options = device_logits(mesh, random_logits(3)), kpt(mesh, 4, 1.0, 1.0)
    before = len(mesh.live_tensors())
    for given in ({}, options):
        ttnn_twin.deallocate(sampling.decode_forward(logits, **given)[0])
        assert len(mesh.live_tensors()) == before
    assert logits.is_allocated()


@pytest.mark.parametrize(
    ("rows", "width", "config", "options", "words"),
    [
        (2, VOCABULARY, {}, {"k": object()}, "k, p and temp go together"),
        (2, VOCABULARY, {"allow_force_argmax": False}, {}, "argmax is not allowed"),
        (2, VOCABULARY, {}, {"enable_log_probs": True}, "log-probabilities"),
        (33, VOCABULARY, {}, {}, "33 rows of 256; the sampler takes at most 32"),
        (2, 64, {}, {}, "2 rows of 64"),
    ],
)
def test_calls_are_refused_before_device_work(
    mesh: ttnn_twin.MeshDevice,
    rows: int,
    width: int,
    config: dict[str, Any],
    options: dict[str, Any],
    words: str,
) -> None:
    logits = device_logits(mesh, random_logits(rows, width))
    allocations = mesh.counters.allocations
    with pytest.raises(ValueError, match=words):
        sampler(mesh, **config).decode_forward(logits, **options)
    assert mesh.counters.allocations == allocations


def test_a_vocabulary_smaller_than_top_k_is_refused(mesh: ttnn_twin.MeshDevice) -> None:
    with pytest.raises(ValueError, match="vocab_size 16 is below max_top_k 32"):
        sampler(mesh, vocab_size=16)
