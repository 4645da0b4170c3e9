# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 on the twin answers token by token as the independent reference does, in every mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llm_models.generation import GenerationStats
from llm_models.kv_blocks import BlockPool
from llm_models.llama.executor import Llama, LlamaOptions
from support.real_model import generate_ids, golden_cases, open_lane

pytestmark = pytest.mark.slow

POISON = frozenset(range(1, 24, 3))
"""Blocks of the 24-block caches below that belong to nobody."""

PUBLISHED = ("capital", "sea", "colors", "hash")
OTHERS = ("arithmetic", "accents", "code", "story", "one-token")

# Every value of every switch, and every pair of trace mode with each other switch.
MODES = [
    # trace, execution, device sampling, block size
    ("none", "immediate", False, 32),
    ("none", "deferred", True, 64),
    ("decode_only", "immediate", True, 32),
    ("decode_only", "deferred", False, 64),
    ("all", "immediate", True, 64),
    ("all", "immediate", False, 32),
    ("all", "deferred", True, 32),
    ("all", "deferred", False, 64),
]


@pytest.mark.parametrize(("trace_mode", "execution", "device_sampling", "block_size"), MODES)
def test_published_prompts_in_one_call(
    trace_mode: str, execution: str, device_sampling: bool, block_size: int
) -> None:
    cases = [golden_cases()[name] for name in PUBLISHED]
    options = LlamaOptions(
        max_batch_size=4,
        max_seq_len=128,
        block_size=block_size,
        trace_mode=trace_mode,  # type: ignore[arg-type]
        device_sampling=device_sampling,
        device_stochastic_sampling=block_size == 64,
        num_blocks=24,
    )
    with open_lane(options, execution=execution) as llama:
        ledger = llama.model.config.mesh_device.ledger
        ledger.clear()
        ledger.poison(POISON)
        compiled = llama.executor.program_compiler.compiled_programs
        ids, generator = generate_ids(
            llama,
            [case.request() for case in cases],
            device_sampling=device_sampling,
            block_pool=BlockPool(24, reserved=POISON),
        )
        assert ids == [case.new_ids for case in cases]
        written = {write.block for write in ledger.writes}
        assert written and written.isdisjoint(POISON)
        assert ledger.poisoned_writes() == []
        assert llama.executor.program_compiler.compiled_programs == compiled
        assert generator.stats.waves == [4]
        assert_replays(llama, generator.stats, trace_mode)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
def test_prompts_of_every_kind_in_groups_of_two(asynchronous: bool) -> None:
    """Chat and raw prompts, accents, code, one token; more prompts than rows; decode over block borders."""
    cases = [golden_cases()[name] for name in OTHERS]
    options = LlamaOptions(max_batch_size=2, max_seq_len=128, trace_mode="decode_only")
    with open_lane(options) as llama:
        ids, generator = generate_ids(
            llama, [case.request() for case in cases], device_sampling=True, asynchronous=asynchronous
        )
        assert ids == [case.new_ids for case in cases]
        assert generator.stats.waves == [2, 2, 1]
        assert generator.block_pool.free == generator.block_pool.total


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_prompts_one_by_one(single_row_lane: Llama, name: str) -> None:
    case = golden_cases()[name]
    ids, generator = generate_ids(single_row_lane, [case.request()], device_sampling=True)
    assert ids == [case.new_ids]
    assert generator.stats.waves == [1]


@pytest.fixture(scope="module")
def single_row_lane() -> Iterator[Llama]:
    with open_lane(LlamaOptions(max_batch_size=1, max_seq_len=128)) as llama:
        yield llama


def assert_replays(llama: Llama, stats: GenerationStats, trace_mode: str) -> None:
    """Every selected operation of the run was a replay, and nothing else was."""
    if trace_mode == "none":
        assert llama.executor.trace_compiler is None
        return
    prefill = stats.prefill_requests if trace_mode == "all" else 0
    replays = llama.executor.trace_compiler.replay_counts
    assert replays == {"prefill": prefill, "decode": stats.decode_steps}
