# SPDX-License-Identifier: Apache-2.0
"""A prompt of 1,109 tokens gives one answer however its prefill is cut: one bucket, chunks, a cached prefix."""

from __future__ import annotations

import numpy as np
import pytest

from llm_models.llama.executor import Llama, LlamaOptions
from support.real_model import generate_ids, golden_cases, open_lane

pytestmark = pytest.mark.slow

CONTEXT = 2048
CACHED = 512


@pytest.mark.parametrize(
    ("chunk", "replays"), [(2048, 1), (1024, 2), (256, 5)], ids=["one-bucket", "chunks-of-1024", "chunks-of-256"]
)
def test_chunk_caps(chunk: int, replays: int) -> None:
    case = golden_cases()["long"]
    options = LlamaOptions(max_batch_size=1, max_seq_len=CONTEXT, max_prefill_chunk_size=chunk, device_sampling=False)
    with open_lane(options) as llama:
        ids, generator = generate_ids(llama, [case.request()], device_sampling=False)
        assert ids == [case.new_ids]
        assert generator.stats.prefill_requests == 1
        assert llama.executor.trace_compiler.replay_counts["prefill"] == replays


@pytest.mark.parametrize("trace_mode", ["none", "all"])
def test_first_tokens_already_in_the_cache(trace_mode: str) -> None:
    case = golden_cases()["long"]
    options = LlamaOptions(
        max_batch_size=1,
        max_seq_len=CONTEXT,
        max_prefill_chunk_size=256,
        device_sampling=False,
        trace_mode=trace_mode,  # type: ignore[arg-type]
    )
    with open_lane(options, warm=trace_mode == "all") as llama:
        table = np.arange(llama.executor.page_table_layout.raw_capacity_width, dtype=np.int32)[None]
        prompt = np.array([case.prompt_ids], np.int64)
        llama.executor.prefill_forward(prompt[:, :CACHED], table, prompt_lens=np.array([CACHED]))
        ledger = llama.model.config.mesh_device.ledger
        ledger.clear()
        logits = llama.executor.prefill_forward(
            prompt, table, prompt_lens=np.array([prompt.shape[1]]), start_pos=np.array([CACHED])
        )
        assert min(write.block for write in ledger.writes) == CACHED // options.block_size
        assert greedy_answer(llama, logits, table, len(case.prompt_ids), len(case.new_ids)) == case.new_ids


def greedy_answer(llama: Llama, logits: np.ndarray, table: np.ndarray, position: int, count: int) -> tuple[int, ...]:
    """Greedy ids by plain decode calls, after a prefill that gave `logits` [1, 1, vocab]."""
    ids = [int(logits[0, -1].argmax())]
    while len(ids) < count:
        logits, _ = llama.executor.decode_forward(np.array([ids[-1]]), np.array([position]), table, reset_batch=True)
        ids.append(int(logits[0, -1].argmax()))
        position += 1
    return tuple(ids)
