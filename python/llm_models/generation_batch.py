# SPDX-License-Identifier: Apache-2.0
"""The host state of one group of requests that generate together, a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.generation_request import FinishReason, GenerationRequest, GenerationResult
from llm_models.host_sampling import select_token
from llm_models.kv_blocks import BlockPool
from llm_runtime.prefill.sampling_helpers import SamplingParams

GREEDY = GenerationRequest(prompt_ids=(), max_new_tokens=1, top_k=1)


class Batch:
    """Row i serves request i in slot i; `capacity` rows go to the device, the last ones inactive.

    Owns its blocks until `release_blocks`.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        seeds: Sequence[int | None],
        *,
        capacity: int,
        block_pool: BlockPool,
        block_size: int,
        width: int,
        eos_ids: frozenset[int],
        on_token: Callable[[int, int, FinishReason | None], None] | None,
    ) -> None:
        self.size = len(requests)
        self._requests = list(requests)
        self._seeds = list(seeds)
        self._capacity = capacity
        self._pool = block_pool
        self._eos_ids = eos_ids
        self._on_token = on_token
        self._new_ids: list[list[int]] = [[] for _ in requests]
        self._finish: list[FinishReason | None] = [None] * self.size
        self._reset = True
        self._decode_params: SamplingParams | None = None

        lengths = [len(request.prompt_ids) for request in requests]
        self.prompt_lens = np.array(lengths, np.int64)
        self.prompt_tokens = np.zeros((self.size, max(lengths)), np.int64)
        self.page_table = np.zeros((capacity, width), np.int32)
        self.tokens: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.positions: npt.NDArray[np.int64] = np.full(capacity, -1, np.int64)
        counts = [
            -(-(length + request.max_new_tokens) // block_size)
            for length, request in zip(lengths, requests, strict=True)
        ]
        self._blocks = list(block_pool.allocate(sum(counts)))
        taken = 0
        for row, (request, count) in enumerate(zip(requests, counts, strict=True)):
            self.prompt_tokens[row, : lengths[row]] = request.prompt_ids
            self.page_table[row, :count] = self._blocks[taken : taken + count]
            taken += count

    @property
    def prefill_page_table(self) -> npt.NDArray[np.int32]:
        """The table rows of the requests."""
        return self.page_table[: self.size]

    @property
    def active_rows(self) -> list[int]:
        """Rows that still generate."""
        return [row for row, finish in enumerate(self._finish) if finish is None]

    def prefill_sampling_params(self) -> SamplingParams:
        """One entry a request."""
        return self._sampling_params(range(self.size))

    def decode_sampling_params(self) -> SamplingParams:
        """One entry a slot, kept until a row finishes so that the device sees no change between steps."""
        if self._decode_params is None:
            active = set(self.active_rows)
            self._decode_params = self._sampling_params(
                [row if row in active else None for row in range(self._capacity)]
            )
        return self._decode_params

    def take_reset(self) -> bool:
        """Whether rows changed since the last step, so that the device must take all inputs anew."""
        reset, self._reset = self._reset, False
        return reset

    def select(self, row: int, logits: npt.NDArray[np.float32]) -> int:
        """Pick the next token of `row` on the host from its logits [vocab]."""
        request = self._requests[row]
        return select_token(
            logits,
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            seed=self._seeds[row],
            position=int(self.prompt_lens[row]) + len(self._new_ids[row]),
        )

    def push(self, row: int, token: int) -> None:
        """Take the next token of `row`: report it, and either finish the row or make it the next input."""
        new_ids, request = self._new_ids[row], self._requests[row]
        new_ids.append(token)
        if token in self._eos_ids:
            self._end(row, "stop")
        elif len(new_ids) == request.max_new_tokens:
            self._end(row, "length")
        else:
            self.tokens[row] = token
            self.positions[row] = self.prompt_lens[row] + len(new_ids) - 1
        if self._on_token is not None:
            self._on_token(row, token, self._finish[row])

    def results(self) -> list[GenerationResult]:
        """The finished requests; every row must have ended."""
        results = []
        for request, new_ids, finish in zip(self._requests, self._new_ids, self._finish, strict=True):
            if finish is None:
                raise RuntimeError("results were asked for while a row still generates")
            results.append(
                GenerationResult(prompt_ids=request.prompt_ids, new_ids=tuple(new_ids), finish_reason=finish)
            )
        return results

    def release_blocks(self) -> None:
        """Give the KV blocks back; idempotent."""
        blocks, self._blocks = self._blocks, []
        self._pool.release(blocks)

    def _end(self, row: int, reason: FinishReason) -> None:
        self._finish[row] = reason
        self.tokens[row], self.positions[row] = 0, -1
        self.page_table[row] = 0
        self._reset, self._decode_params = True, None

    def _sampling_params(self, rows: Sequence[int | None] | range) -> SamplingParams:
        picked: list[tuple[GenerationRequest, int | None]] = [
            (GREEDY, None) if row is None or row >= self.size else (self._requests[row], self._seeds[row])
            for row in rows
        ]
        fields: dict[str, Any] = {
            name: tuple(getattr(request, name) for request, _ in picked) for name in ("temperature", "top_k", "top_p")
        }
        return SamplingParams(**fields, seed=tuple(seed for _, seed in picked))
