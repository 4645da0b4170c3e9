# SPDX-License-Identifier: Apache-2.0
"""Faults at every device call of one step of a real lane's life, and the lane they are injected into."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.executor import Llama, LlamaOptions
from llm_runtime.prefill.sampling_params import SamplingParams
from support.llama import tiny_checkpoint, tiny_config

BLOCK = 32
ROWS = 2
CHUNK = 128


class Fault(Exception):
    """The injected error."""


class Interrupt(KeyboardInterrupt):
    """The injected error that no `except Exception` catches."""


@functools.cache
def one_layer() -> LlamaCheckpoint:
    """One layer of width 32 with 2 query heads and 1 key head, vocabulary 256."""
    config = tiny_config(dim=32, n_layers=1, n_heads=2, n_kv_heads=1, ffn_dim=32, tied_embeddings=False)
    return tiny_checkpoint(config, seed=3)


class FaultLane:
    """A one-layer Llama of two rows of `length` tokens with its executor on a mesh of its own. Owns everything."""

    def __init__(
        self,
        *,
        trace_mode: Any = "all",
        execution: Any = "immediate",
        sampling: bool = False,
        length: int = CHUNK,
        **changes: Any,
    ) -> None:
        self.mesh = ttnn_twin.open_mesh_device(
            ttnn_twin.MeshShape(1, 1), trace_region_size=50_000_000, execution=execution
        )
        self.sampling = sampling
        self.width = length // BLOCK
        options: dict[str, Any] = {
            "max_batch_size": ROWS,
            "max_seq_len": length,
            "block_size": BLOCK,
            "max_prefill_chunk_size": CHUNK,
            "trace_mode": trace_mode,
            "device_sampling": sampling,
        }
        self.llama = Llama.open(one_layer(), self.mesh, LlamaOptions(**{**options, **changes}))
        self.executor = self.llama.executor
        self._materialise()
        self.programs = self.executor.program_compiler
        self.traces = self.executor.trace_compiler

    def _materialise(self) -> None:
        """What lives as long as the model is made by its first calls; nothing is registered."""
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
            "tokens": np.arange(1, ROWS + 1),
            "start_pos": np.full(ROWS, position),
            "page_table": self.table(),
            "sampling_params": sampling_params(path, ROWS),
            **commands,
        }

    def table(self) -> Any:
        """Page tables `[rows, width]`, row after row."""
        return np.arange(ROWS * self.width, dtype=np.int32).reshape(ROWS, self.width)

    def check_serving(self) -> None:
        """A replayed prefill and decode step give what the eager programs give."""
        executor, path = self.executor, "argmax" if self.sampling else "logits"
        for call, run in ((self.prefill_call(path=path), executor.prefill_forward),):
            eager = run(**call, execution=executor.eager_execution)
            check_equal(run(**call), eager)
        call = self.decode_call(path=path, reset_batch=True)
        eager = executor.decode_forward(**call, execution=executor.eager_execution)
        check_equal(executor.decode_forward(**call), eager)

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


def calls_of(mesh: Any, run: Callable[[], Any]) -> dict[str, int]:
    """How often `run` calls each device function."""
    before = mesh.counters.calls.copy()
    run()
    return dict(mesh.counters.calls - before)


def points(calls: dict[str, int], *, every: bool = True) -> list[tuple[str, int]]:
    """Every (function, n-th call); or only the first, the middle and the last call of each function."""
    found = []
    for op, count in sorted(calls.items()):
        chosen = range(1, count + 1) if every else sorted({1, (count + 1) // 2, count})
        found += [(op, at) for at in chosen]
    return found


class Sweep:
    """Injects one fault after the other and collects what went wrong at each; `finish` tells it all at once."""

    def __init__(self) -> None:
        self.done = 0
        self._problems: list[str] = []

    @contextmanager
    def at(self, mesh: Any, op: str, at: int, *, times: int | None = 1) -> Iterator[BaseException]:
        """The n-th call of `op` fails inside the block; faults are gone behind it."""
        kind = Fault if at % 2 else Interrupt
        error = kind(f"{op} call {at}")
        mesh.faults.fail(op, at=at, times=times, error=error)
        try:
            with self.after(op, at):
                yield error
        finally:
            mesh.faults.clear()
            self.done += 1

    @contextmanager
    def after(self, op: str, at: int) -> Iterator[None]:
        """Checks after that fault; a failing one is collected."""
        try:
            yield
        except (AssertionError, Exception, pytest.fail.Exception) as problem:
            self._problems.append(f"{op} call {at}: {type(problem).__name__}: {str(problem)[:300]}")

    def finish(self, *, at_least: int) -> None:
        """Fail with every problem; also when fewer faults than expected were injected."""
        assert not self._problems, f"{len(self._problems)} of {self.done}:\n" + "\n".join(self._problems)
        assert self.done >= at_least, f"only {self.done} faults"


def failure_of(run: Callable[[], Any], error: BaseException) -> BaseException:
    """Run and return what it raises: `error` itself, or a RuntimeError that is chained from it.

    Every attached cleanup failure must come from it too: a tensor that is freed twice would add another.
    """
    try:
        run()
    except BaseException as raised:
        assert raised is error or raised.__cause__ is error, f"{error!r} was replaced by {raised!r}"
        attached = [*getattr(raised, "cleanup_failures", ()), *getattr(error, "cleanup_failures", ())]
        foreign = [failure for failure in attached if failure is not error and failure.__cause__ is not error]
        assert not foreign, f"more failed than was injected: {foreign}"
        raised.__traceback__ = error.__traceback__ = None  # the frames hold tensors
        return raised
    raise AssertionError("the fault was swallowed")
