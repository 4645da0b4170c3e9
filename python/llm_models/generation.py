# SPDX-License-Identifier: Apache-2.0
"""Token generation over a model executor: many prompts at once, greedy or seeded, sampled on device or host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_models.generation_batch import Batch
from llm_models.generation_request import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    check_requests,
    stream_seeds,
)
from llm_models.kv_blocks import BlockPool

__all__ = ["GenerationRequest", "GenerationResult", "GenerationStats", "Generator"]

TokenCallback = Callable[[int, int, FinishReason | None], None]
"""Called with (request index, new token id, why the request ended or `None`) when the token is on the host."""


@dataclass
class GenerationStats:
    """What one `Generator` has done so far. Seconds are wall time of this process."""

    prefill_requests: int = 0
    waves: list[int] = field(default_factory=list)
    decode_steps: int = 0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    runtime_seconds: float = 0.0
    first_token_seconds: float | None = None


class Generator:
    """Generates from one executor. Borrows the executor; owns the pool of its KV blocks.

    More requests than the lane has rows run in groups. Rows that finish become inactive (position -1) and cost only
    their padding. With `device_sampling` tokens are sampled in the device program and fed back there, else logits are
    read and sampled here. `asynchronous` reads each step through the executor's split read protocol.
    """

    def __init__(
        self,
        executor: Any,
        *,
        eos_ids: Sequence[int] = (),
        device_sampling: bool,
        asynchronous: bool = False,
        block_pool: BlockPool | None = None,
    ) -> None:
        kv_cache = executor.paged_kv_cache_config
        if not kv_cache.is_resolved():
            raise ValueError("the executor does not know its number of KV blocks: configure and allocate it first")
        if device_sampling and not executor.config.device_sampling_enabled:
            raise ValueError("device sampling was asked for, but the executor was built without it")
        self._executor = executor  # borrowed
        self._eos_ids = frozenset(eos_ids)
        self._device_sampling = device_sampling
        self._asynchronous = asynchronous
        self.block_pool = block_pool or BlockPool(kv_cache.num_blocks)
        self.stats = GenerationStats()

    def generate(
        self, requests: Sequence[GenerationRequest], *, on_token: TokenCallback | None = None
    ) -> list[GenerationResult]:
        """Run every request; results come back in the order of `requests`.

        All requests are checked before any device work: `ValueError` names the request and the limit for an empty
        prompt, an id outside the vocabulary, a prompt plus budget longer than the context, or sampling that the device
        cannot do.
        """
        config = self._executor.model.config
        check_requests(
            requests,
            vocab_size=self._executor.model.vocab_size,
            max_seq_len=config.max_seq_len,
            max_top_k=self._executor.decode_runtime.config.max_device_top_k if self._device_sampling else None,
        )
        seeds = stream_seeds(requests)
        results: list[GenerationResult] = []
        for start in range(0, len(requests), config.max_batch_size):
            group = range(start, min(start + config.max_batch_size, len(requests)))
            batch = Batch(
                [requests[index] for index in group],
                [seeds[index] for index in group],
                capacity=config.max_batch_size,
                block_pool=self.block_pool,
                block_size=self._executor.paged_kv_cache_config.block_size,
                width=self._executor.page_table_layout.raw_capacity_width,
                eos_ids=self._eos_ids,
                on_token=None if on_token is None else _shifted(on_token, start),
            )
            try:
                self._prefill(batch)
                self._decode(batch)
            finally:
                batch.release_blocks()
            results += batch.results()
        return results

    def _prefill(self, batch: Batch) -> None:
        started = time.perf_counter()
        output = self._executor.prefill_forward(
            batch.prompt_tokens,
            batch.prefill_page_table,
            prompt_lens=batch.prompt_lens,
            empty_slots=list(range(batch.size)),
            sampling_params=batch.prefill_sampling_params() if self._device_sampling else None,
        )
        waves = self._executor.prefill_runtime.recent_padded_batch_sizes
        self.stats.prefill_requests += len(waves)
        self.stats.waves += waves
        self._accept(batch, output if self._device_sampling else (output, None))
        if self.stats.first_token_seconds is None:
            self.stats.first_token_seconds = time.perf_counter() - started

    def _decode(self, batch: Batch) -> None:
        device = self._executor.mesh_device
        while batch.active_rows:
            self.stats.decode_tokens += len(batch.active_rows)
            started, device_before = time.perf_counter(), _device_seconds(device)
            output = self._step(batch)
            elapsed = time.perf_counter() - started
            self.stats.decode_steps += 1
            self.stats.decode_seconds += elapsed
            self.stats.runtime_seconds += elapsed - (_device_seconds(device) - device_before)
            self._accept(batch, output)

    def _step(self, batch: Batch) -> Any:
        output = self._executor.decode_forward(
            batch.tokens.copy(),
            batch.positions.copy(),
            batch.page_table,
            sampling_params=batch.decode_sampling_params() if self._device_sampling else None,
            reset_batch=batch.take_reset(),
            read_from_device=not self._asynchronous,
        )
        if self._asynchronous:
            host_value, _events = self._executor.read_decode_output(output, async_read=True)
            return self._executor.process_decode_output_host(host_value, is_tokens=self._device_sampling)
        return output

    def _accept(self, batch: Batch, output: tuple[Any, Any]) -> None:
        values, _log_probs = output
        for row in batch.active_rows:
            token = int(values[row]) if self._device_sampling else batch.select(row, np.asarray(values[row, -1]))
            batch.push(row, token)


def _shifted(on_token: TokenCallback, start: int) -> TokenCallback:
    return lambda row, token, finish: on_token(start + row, token, finish)


def _device_seconds(mesh_device: Any) -> float:
    """Time spent inside device calls, where the device counts it; 0 elsewhere, so that all time counts as ours."""
    return float(getattr(mesh_device, "busy_seconds", 0.0))


