# SPDX-License-Identifier: Apache-2.0
"""The real small model on the twin: golden greedy tokens of two prompts decoded together."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin
from support.llama import golden, smollm2
from support.llama_lane import TwinLane


@pytest.mark.slow
def test_two_prompts_decoded_together_give_the_golden_tokens() -> None:
    cases = [golden()[0], golden()[2]]
    lane = TwinLane(smollm2(), batch=2, max_seq_len=128, num_blocks=8)
    prompts = [case["prompt_ids"] for case in cases]
    tables = [[5, 1, 0], [2, 7, 4]]
    hidden = lane.prefill(prompts, [[*row, -1] for row in tables], length=128)
    last = [len(prompt) - 1 for prompt in prompts]
    logits = lane.read(lane.model.post_process_batched_prefill_output(hidden, last, 2, 128))
    ttnn_twin.deallocate(hidden)
    new = [[int(token)] for token in logits[0, 0, :2].argmax(-1)]
    for step in range(7):
        positions = [len(prompt) + step for prompt in prompts]
        chosen = lane.decode([row[-1] for row in new], positions, tables)
        for row, token in zip(new, np.argmax(chosen, -1), strict=True):
            row.append(int(token))
    lane.close()
    assert new == [case["new_ids"][:8] for case in cases]
