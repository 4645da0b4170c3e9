# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 on the twin for end-to-end tests: golden cases, one checkpoint in memory, lanes that clean up."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ttnn_twin
from llm_models.checkpoints import LlamaCheckpoint, find_smollm2, load_checkpoint
from llm_models.generation import GenerationRequest, Generator
from llm_models.kv_blocks import BlockPool
from llm_models.llama.executor import Llama, LlamaOptions

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "smollm2-greedy.json"


@dataclass(frozen=True)
class GoldenCase:
    """A prompt and its greedy continuation by the independent reference."""

    name: str
    prompt_ids: tuple[int, ...]
    new_ids: tuple[int, ...]
    max_new_tokens: int

    def request(self, **changes: Any) -> GenerationRequest:
        """The case as a generation request."""
        return GenerationRequest(prompt_ids=self.prompt_ids, max_new_tokens=self.max_new_tokens, **changes)


@functools.cache
def golden_cases() -> dict[str, GoldenCase]:
    """Every golden case by name."""
    return {
        entry["name"]: GoldenCase(
            entry["name"], tuple(entry["prompt_ids"]), tuple(entry["new_ids"]), entry["max_new_tokens"]
        )
        for entry in json.loads(GOLDEN.read_text())
    }


@functools.cache
def smollm2() -> LlamaCheckpoint:
    """The demo checkpoint whose weights are dequantised once a process."""
    checkpoint = load_checkpoint(find_smollm2())
    return replace(checkpoint, read=functools.cache(checkpoint.read))


@contextmanager
def open_lane(options: LlamaOptions, *, execution: str = "immediate", warm: bool = True) -> Iterator[Llama]:
    """A lane with real weights on a mesh of its own; fails if cleanup leaves a device tensor behind."""
    mesh = ttnn_twin.open_mesh_device(
        ttnn_twin.MeshShape(1, 1), trace_region_size=50_000_000, execution=execution
    )
    llama = Llama.open(smollm2(), mesh, options)
    try:
        if warm:
            llama.warm_up()
        yield llama
    finally:
        llama.cleanup()
    left = mesh.live_tensors()
    ttnn_twin.close_mesh_device(mesh)
    assert not left, f"cleanup left device tensors behind: {left}"


def generate_ids(
    llama: Llama,
    requests: Sequence[GenerationRequest],
    *,
    device_sampling: bool,
    asynchronous: bool = False,
    block_pool: BlockPool | None = None,
) -> tuple[list[tuple[int, ...]], Generator]:
    """New ids of every request, and the generator that made them (for its stats)."""
    generator = Generator(
        llama.executor,
        eos_ids=smollm2().eos_ids,
        device_sampling=device_sampling,
        asynchronous=asynchronous,
        block_pool=block_pool,
    )
    return [result.new_ids for result in generator.generate(requests)], generator
