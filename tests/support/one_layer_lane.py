# SPDX-License-Identifier: Apache-2.0
"""A one-layer Llama with its executor on a twin mesh of its own: the smallest lane that is real in every part."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np

import ttnn_twin
from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.executor import Llama, LlamaOptions
from llm_runtime.prefill.sampling_params import SamplingParams
from support.llama import tiny_checkpoint, tiny_config

BLOCK = 32
CHUNK = 128


@functools.cache
def one_layer() -> LlamaCheckpoint:
    """One layer of width 32 with 2 query heads and 1 key head, vocabulary 256."""
    config = tiny_config(dim=32, n_layers=1, n_heads=2, n_kv_heads=1, ffn_dim=32, tied_embeddings=False)
    return tiny_checkpoint(config, seed=3)


class OneLayerLane:
    """`rows` sequences of `length` tokens, traced as `trace_mode` says, not warmed. Owns everything.

    A `used` lane has run eagerly before, so that what the model keeps from its first calls on exists; nothing is
    registered.
    """

    def __init__(
        self,
        *,
        trace_mode: Any = "all",
        execution: Any = "immediate",
        sampling: bool = False,
        rows: int = 2,
        length: int = CHUNK,
        used: bool = True,
        **changes: Any,
    ) -> None:
        self.mesh = ttnn_twin.open_mesh_device(
            ttnn_twin.MeshShape(1, 1), trace_region_size=50_000_000, execution=execution
        )
        self.sampling = sampling
        self.rows = rows
        self.width = length // BLOCK
        options: dict[str, Any] = {
            "max_batch_size": rows,
            "max_seq_len": length,
            "block_size": BLOCK,
            "max_prefill_chunk_size": CHUNK,
            "trace_mode": trace_mode,
            "device_sampling": sampling,
        }
        self.llama = Llama.open(one_layer(), self.mesh, LlamaOptions(**{**options, **changes}))
        self.executor = self.llama.executor
        if used:
            self._run_eagerly()
        self.programs = self.executor.program_compiler
        self.traces = self.executor.trace_compiler

    def _run_eagerly(self) -> None:
        path = "argmax" if self.sampling else "logits"
        eager = self.executor.eager_execution
        self.executor.prefill_forward(**self.prefill_call(path=path), execution=eager)
        self.executor.decode_forward(**self.decode_call(path=path, reset_batch=True), execution=eager)

    def live(self) -> set[int]:
        """Buffer ids of the device tensors that are allocated."""
        return {tensor.buffer_id for tensor in self.mesh.live_tensors()}

    def check_live(self, wanted: set[int]) -> None:
        """Exactly the tensors of `wanted` are allocated, as soon as no frame of a failed call holds one."""
        if self.live() != wanted:
            gc.collect()
        made, lost = self.live() - wanted, wanted - self.live()
        assert not made and not lost, f"{len(made)} tensors leaked, {len(lost)} are gone"

    def holds_orphans(self) -> bool:
        """Whether a tensor could not be released, so that the executor asks for its cleanup."""
        runtimes = (self.executor.prefill_runtime, self.executor.decode_runtime)
        return any(runtime.transient_orphan_count for runtime in runtimes) or self.programs.compile_orphan_count > 0

    def prefill_call(self, length: int = 40, *, path: str = "logits", rows: int = 1, start: int = 0) -> dict[str, Any]:
        """Arguments of a prefill of `rows` rows of `length` tokens, `start` of them cached."""
        return {
            "tokens": np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 250 + 1,
            "page_table": self.table()[:rows],
            "prompt_lens": np.full(rows, length),
            "start_pos": np.full(rows, start) if start else None,
            "sampling_params": sampling_params(path, rows),
        }

    def decode_call(self, *, position: int = 40, path: str = "logits", **commands: Any) -> dict[str, Any]:
        """Arguments of a decode step of the whole lane."""
        return {
            "tokens": np.arange(1, self.rows + 1),
            "start_pos": np.full(self.rows, position),
            "page_table": self.table(),
            "sampling_params": sampling_params(path, self.rows),
            **commands,
        }

    def table(self) -> Any:
        """Page tables `[rows, width]`, row after row."""
        return np.arange(self.rows * self.width, dtype=np.int32).reshape(self.rows, self.width)

    def check_serving(self) -> None:
        """A replayed prefill and decode step give what the eager programs give."""
        executor, path = self.executor, "argmax" if self.sampling else "logits"
        prompt, step = self.prefill_call(path=path), self.decode_call(path=path, reset_batch=True)
        eager = executor.prefill_forward(**prompt, execution=executor.eager_execution)
        check_equal(executor.prefill_forward(**prompt), eager)
        eager = executor.decode_forward(**step, execution=executor.eager_execution)
        check_equal(executor.decode_forward(**step), eager)

    def close(self) -> None:
        """Release everything; nothing may be left on the device, and nothing was freed twice."""
        self.mesh.faults.clear()
        self.llama.cleanup()
        self.check_live(set())
        assert self.mesh.trace_region_used == 0
        ttnn_twin.close_mesh_device(self.mesh)


def sampling_params(path: str, rows: int) -> SamplingParams | None:
    """Parameters that take the path `logits`, `argmax` or `topk`."""
    if path == "logits":
        return None
    greedy = path == "argmax"
    return SamplingParams(
        temperature=[0.0 if greedy else 0.9] * rows,
        top_k=[1 if greedy else 5] * rows,
        top_p=[1.0] * rows,
        seed=None if greedy else [7] * rows,
    )


def check_equal(got: Any, wanted: Any) -> None:
    """Compare results: an array, or (array, log-probabilities or None)."""
    if isinstance(wanted, tuple):
        for one, other in zip(got, wanted, strict=True):
            check_equal(one, other)
    elif wanted is None:
        assert got is None
    else:
        np.testing.assert_array_equal(got, wanted)
