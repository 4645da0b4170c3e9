# SPDX-License-Identifier: Apache-2.0
"""The token loop of one `generate` call over an executor. Follows chapter 40, section E.2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.host_sampling import select_token
from llm_models.llama.facade_inputs import Prompts
from llm_models.llama.facade_options import GenerationOptions
from llm_runtime.prefill.sampling_helpers import SamplingParams
from llm_runtime.tensor_resources import attach_cleanup_failures

__all__ = ["GenerationRun", "ready_executor"]

Tokens = npt.NDArray[np.int64]


class GenerationRun:
    """One batch from prompts to ended rows. Borrows the executor; checks on construction, works in `steps`.

    Greedy tokens come from the device when the executor samples there; everything stochastic is picked on the host,
    one random stream per row, so that no limit of a device sampler applies.
    """

    def __init__(
        self, executor: Any, prompts: Prompts, options: GenerationOptions, *, context: int, random: np.random.Generator
    ) -> None:
        self._executor = executor
        self._options = options
        self._rows = len(prompts.rows)
        self._capacity = executor.model.config.max_batch_size
        self._vocab_size = executor.model.vocab_size
        self._on_device = executor.config.device_sampling_enabled and not options.do_sample
        self._seeds = random.integers(1 << 31, size=self._rows).tolist() if options.do_sample else [None] * self._rows
        self._lengths = prompts.lengths
        self._prompt_tokens = np.zeros((self._rows, int(self._lengths.max())), np.int64)
        for row, prompt in enumerate(prompts.rows):
            self._prompt_tokens[row, : len(prompt)] = prompt
        for row, length in enumerate(self._lengths.tolist()):
            if length + options.max_new_tokens > context:
                raise ValueError(
                    f"row {row} has {length} tokens and may add {options.max_new_tokens}, "
                    f"more than the context of {context}"
                )
        self._table = self._page_table()
        self._active = np.ones(self._rows, bool)

    def steps(self) -> Iterator[Tokens]:
        """The next token of every row, int64 [rows], until all rows ended or the budget is used up.

        Rows that ended before give the padding id. `ValueError` when the device's answer cannot be used.
        """
        options = self._options
        with _clean_sampling_state(self._executor):
            latest = self._select(self._prefill(), position=0)
            yield latest
            for count in range(1, options.max_new_tokens):
                if not self._active.any():
                    return
                latest = self._select(self._decode(latest, count), position=count)
                yield latest

    def _prefill(self) -> Any:
        return self._executor.prefill_forward(
            self._prompt_tokens,
            self._table[: self._rows],
            prompt_lens=self._lengths,
            empty_slots=list(range(self._rows)),
            sampling_params=_greedy(self._rows) if self._on_device else None,
        )

    def _decode(self, latest: Tokens, count: int) -> Any:
        tokens, positions = np.zeros(self._capacity, np.int64), np.full(self._capacity, -1, np.int64)
        running = np.flatnonzero(self._active)
        tokens[running], positions[running] = latest[running], self._lengths[running] + count - 1
        table = self._table.copy()
        table[positions < 0] = 0
        return self._executor.decode_forward(
            tokens,
            positions,
            table,
            sampling_params=_greedy(self._capacity) if self._on_device else None,
            reset_batch=True,
        )

    def _select(self, output: Any, *, position: int) -> Tokens:
        values = np.asarray(output[0] if isinstance(output, tuple) else output)
        chosen = np.full(self._rows, self._options.pad, np.int64)
        if not self._on_device:
            values = self._logits(values)
        elif len(values.reshape(-1)) < self._rows:
            raise ValueError(f"the device returned {values.size} tokens for {self._rows} rows")
        else:
            values = values.reshape(-1)
        for row in np.flatnonzero(self._active).tolist():
            token = int(values[row]) if self._on_device else self._pick(row, values[row], position)
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"row {row}: the device sampled {token}, outside the vocabulary of {self._vocab_size}")
            chosen[row] = token
            self._active[row] = token not in self._options.eos_ids
        return chosen

    def _logits(self, values: Any) -> Any:
        """Rows of logits [rows, vocab], whatever rank of the two possible ones they came in."""
        if values.ndim not in (2, 3) or values.shape[0] < self._rows or values.shape[-1] < self._vocab_size:
            raise ValueError(
                f"logits have shape {list(values.shape)}; {self._rows} rows and a vocabulary of {self._vocab_size} "
                "are needed"
            )
        last = values if values.ndim == 2 else values[:, -1]
        return last[:, : self._vocab_size]

    def _pick(self, row: int, logits: Any, count: int) -> int:
        options = self._options
        try:
            return select_token(
                logits,
                temperature=options.temperature if options.do_sample else 0.0,
                top_k=options.top_k,
                top_p=options.top_p,
                seed=self._seeds[row],
                position=int(self._lengths[row]) + count,
            )
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from error

    def _page_table(self) -> npt.NDArray[np.int32]:
        """Disjoint runs of blocks, one per row; entries behind them and rows beyond the batch are 0."""
        cache = self._executor.paged_kv_cache_config
        # The last new token is never written.
        counts = -(-(self._lengths + max(self._options.max_new_tokens - 1, 0)) // cache.block_size)
        if counts.sum() > cache.num_blocks:
            raise ValueError(f"{int(counts.sum())} KV blocks are needed, the cache has {cache.num_blocks}")
        table = np.zeros((self._capacity, self._executor.page_table_layout.raw_capacity_width), np.int32)
        first = 0
        for row, count in enumerate(counts.tolist()):
            table[row, :count] = np.arange(first, first + count)
            first += count
        return table


def ready_executor(executor: Any) -> None:
    """Allocate the KV cache when none is bound, and warm a traced executor in the two phases of a server, once."""
    if executor.kv_cache_manager.bound_context is None:
        executor.allocate_kv_cache()
    trace = executor.config.trace
    if trace.mode == "none" or executor.warmup.trace_activated:
        return
    hints = {"kv_cache": None, "can_sample_on_device": executor.config.device_sampling_enabled}
    decode = {
        "max_batch_size": executor.model.config.max_batch_size,
        "num_blocks": executor.page_table_layout.raw_capacity_width,
    }
    executor.warmup_model_prefill(**hints, enable_trace=False)
    executor.warmup_model_decode(**hints, **decode, enable_trace=False)
    if trace.prefill_enabled:
        executor.warmup_model_prefill(**hints, enable_trace=True)
    executor.warmup_model_decode(**hints, **decode, enable_trace=True)


@contextmanager
def _clean_sampling_state(executor: Any) -> Iterator[None]:
    """Reset request-owned sampling state before and after; a failed reset never hides the error that came first."""
    controller, state = executor.sampling_state_controller, executor.sampling_state
    if controller is None:
        yield
        return
    controller.reset(state)
    try:
        yield
    except BaseException as primary:
        try:
            controller.reset(state)
        except BaseException as failure:  # it travels with the error that counts
            attach_cleanup_failures(primary, [failure])
        raise
    controller.reset(state)


def _greedy(rows: int) -> SamplingParams:
    return SamplingParams(temperature=[0.0] * rows, top_k=[1] * rows, top_p=[1.0] * rows)
