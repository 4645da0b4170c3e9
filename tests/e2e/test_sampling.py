# SPDX-License-Identifier: Apache-2.0
"""Seeded stochastic text belongs to its request: batch mates, row, sampling side and trace mode do not matter to it."""

from __future__ import annotations

import pytest

from llm_models.generation import GenerationRequest
from llm_models.llama.executor import LlamaOptions
from support.real_model import generate_ids, golden_cases, open_lane

pytestmark = pytest.mark.slow


def seeded(name: str, seed: int) -> GenerationRequest:
    case = golden_cases()[name]
    return GenerationRequest(
        prompt_ids=case.prompt_ids, max_new_tokens=24, temperature=0.9, top_k=20, top_p=0.95, seed=seed
    )


@pytest.mark.parametrize("device_sampling", [True, False], ids=["device", "host"])
def test_seeded_text_does_not_depend_on_batch_mates(device_sampling: bool) -> None:
    options = LlamaOptions(max_batch_size=4, max_seq_len=128, device_sampling=device_sampling)
    wanted = seeded("story", 7)
    with open_lane(options) as llama:

        def run(*requests: GenerationRequest) -> list[tuple[int, ...]]:
            return generate_ids(llama, requests, device_sampling=device_sampling)[0]

        alone = run(wanted)[0]
        assert run(seeded("sea", 7), wanted, seeded("hash", 3), seeded("capital", 9))[1] == alone
        greedy_mate = golden_cases()["capital"]
        mixed = run(greedy_mate.request(), seeded("colors", 7), wanted)
        assert mixed[0] == greedy_mate.new_ids
        assert mixed[2] == alone
        assert run(seeded("story", 8))[0] != alone
