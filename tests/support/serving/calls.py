# SPDX-License-Identifier: Apache-2.0
"""Single calls of the protocol, for tests that want one situation instead of random traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from support.serving.deployment import Deployment
from support.serving.sampling import ServerSamplingParams, sampling_params
from support.serving.traffic import Request, Sampling

Logits = npt.NDArray[np.float32]


class Calls:
    """Calls of one deployment; rows are given as (tokens, blocks). Prompts are checked against the reference."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.options = deployment.options
        self.llama = deployment.reference().llama

    def table(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
        """Page tables whose unused tail names block 0."""
        table = np.zeros((len(rows), self.options.table_width), np.int32)
        for row, blocks in enumerate(rows):
            table[row, : len(blocks)] = blocks
        return table

    def prefill(
        self,
        rows: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        slots: Sequence[int],
        start: Sequence[int] | None = None,
        sampling: Sequence[Sampling] | None = None,
        **options: Any,
    ) -> Any:
        """A prefill whose prompts end where their tokens end."""
        lengths = [len(tokens) for tokens, _ in rows]
        tokens = np.full((len(rows), max(lengths)), 77, np.int32)
        for row, (ids, _) in enumerate(rows):
            tokens[row, : lengths[row]] = ids
        return self.deployment.model.prefill_forward(
            tokens=tokens,
            page_table=self.table([blocks for _, blocks in rows]),
            kv_cache=self.deployment.kv_cache,
            prompt_lens=np.array(lengths, np.int64),
            start_pos=np.array(start or [0] * len(rows), np.int32),
            empty_slots=list(slots),
            **{"enable_trace": self.options.trace_mode == "all", **options},
            **({} if sampling is None else {"sampling_params": self.params(sampling)}),
        )

    def decode(
        self,
        rows: Sequence[tuple[Sequence[int], Sequence[int]] | None],
        *,
        sampling: Sequence[Sampling | None] | None = None,
        **options: Any,
    ) -> Any:
        """A decode step: each row consumes its last token; `None` is a padding row, as are rows beyond those given."""
        capacity = self.options.rows
        tokens, positions = np.zeros((capacity, 1), np.int32), np.full(capacity, -1, np.int32)
        blocks: list[Sequence[int]] = [[]] * capacity
        for index, row in enumerate(rows):
            if row is not None:
                tokens[index], positions[index], blocks[index] = row[0][-1], len(row[0]) - 1, row[1]
        device = sampling is not None
        commands = {
            "reload_inputs": True,
            "reload_sampling_params": device,
            "reset_sampling_state": device,
            "read_from_device": True,
            "enable_trace": self.options.trace_mode != "none",
        }
        if sampling is not None:
            commands["sampling_params"] = self.params([*sampling, *[None] * (capacity - len(sampling))])
        return self.deployment.model.decode_forward(
            tokens=tokens,
            start_pos=positions,
            page_table=self.table(blocks),
            kv_cache=self.deployment.kv_cache,
            **{**commands, **options},
        )

    def decode_rows(self, count: int) -> Any:
        """A decode step of `count` rows instead of the capacity."""
        return self.deployment.model.decode_forward(
            tokens=np.ones((count, 1), np.int32),
            start_pos=np.zeros(count, np.int32),
            page_table=self.table([[0]] * count),
            kv_cache=self.deployment.kv_cache,
            enable_trace=self.options.trace_mode != "none",
        )

    def params(self, rows: Sequence[Sampling | None]) -> ServerSamplingParams:
        """The server's parameter object for these rows."""
        return sampling_params([None if row is None else Request(0, 0, [], 1, row) for row in rows])

    def assert_logits(self, row: Any, tokens: Sequence[int]) -> None:
        """`row` [1, vocab] is what the model says behind `tokens`."""
        expected: Logits = self.llama.logits(list(tokens))[-1]
        np.testing.assert_allclose(np.asarray(row).reshape(-1), expected, rtol=1e-3, atol=1e-3)

    def greedy(self, tokens: Sequence[int]) -> int:
        """The largest logit behind `tokens`."""
        return int(self.llama.logits(list(tokens))[-1].argmax())
