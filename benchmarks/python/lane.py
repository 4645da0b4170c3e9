# SPDX-License-Identifier: Apache-2.0
"""One lane of 32 slots over the benchmark model, put together as a model executor would."""

from __future__ import annotations

from typing import Any

import numpy as np
from bench_model import ROWS, BenchModel

from llm_runtime.config import PageTableLayout
from llm_runtime.decode import DecodeRuntime, DecodeRuntimeConfig
from llm_runtime.execution import EagerExecutor, TracedExecutor
from llm_runtime.output_reader import OutputReader
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.runtime import PrefillRuntime
from llm_runtime.prefill.sampling_params import SamplingParams
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.trace_compiler import TraceCompiler

BLOCK = 32
DECODE_WIDTH = 64
RAW_WIDTH = 256
MAX_POSITION = BLOCK * DECODE_WIDTH


class BenchLane:
    """Prefill and decode runtimes with eager and traced execution; everything is traced once captured."""

    def __init__(self, mesh: Any, *, batched_prefill: bool = True) -> None:
        self.mesh = mesh
        self.model = BenchModel(mesh)
        reader = OutputReader(mesh)
        self.prefill = PrefillRuntime(
            PrefillRuntimeConfig.resolve(
                model=self.model,
                output_reader=reader,
                page_table_layout=PageTableLayout(
                    block_size=BLOCK,
                    raw_capacity_width=RAW_WIDTH,
                    prefill_width=RAW_WIDTH + DECODE_WIDTH,
                    decode_width=RAW_WIDTH,
                ),
                max_batch_size=ROWS,
                max_prefill_chunk_size=2048,
                device_sampling_enabled=True,
                can_enable_trace=lambda length, cached: True,
                supports_batched_prefill=batched_prefill,
                max_prefill_batch_size=ROWS,
            )
        )
        self.decode = DecodeRuntime(
            DecodeRuntimeConfig.resolve(
                model=self.model,
                output_reader=reader,
                lane_capacity=ROWS,
                page_table_layout=PageTableLayout(
                    block_size=BLOCK,
                    raw_capacity_width=DECODE_WIDTH,
                    prefill_width=RAW_WIDTH + DECODE_WIDTH,
                    decode_width=DECODE_WIDTH,
                ),
                device_sampling_enabled=True,
            )
        )
        programs = ProgramCompiler(mesh, lambda: self.model)
        self.eager = EagerExecutor(prefill=self.prefill, decode=self.decode, program_compiler=programs)
        self.traces = TraceCompiler(programs)
        self.traced = TracedExecutor(eager=self.eager, trace_compiler=self.traces)
        self._programs = programs

    def capture_prefill(self, *calls: dict[str, Any]) -> None:
        """Compile and register these prefill calls; :meth:`capture` records them."""
        for call in calls:
            self.traced.compile_prefill(**call)

    def capture(self) -> None:
        """Compile decode on all three sampling paths, then capture everything registered."""
        for sampling in (None, top_k_params(), greedy_params()):
            self.traced.compile_decode(**decode_call(), sampling_params=sampling, reset_batch=True)
        self.traces.capture_all()

    def artifact(self, **call: Any) -> Any:
        """The captured trace that serves a decode call."""
        prepared = self.decode.prepare(**call)
        program = self._programs.find(self.decode.program_signature(prepared))
        return self.traces.record(self.traces.find_trace(program)).artifact

    def close(self) -> None:
        """Release in the order of a model executor."""
        self.decode.drain_external_outputs()
        self.decode.config.output_reader.drain()
        self.traces.cleanup()
        self._programs.cleanup()


def top_k_params() -> SamplingParams:
    """Stochastic rows, all different, in new lists."""
    return SamplingParams(
        temperature=[0.5 + 0.01 * row for row in range(ROWS)],
        top_k=[1 + row for row in range(ROWS)],
        top_p=[0.5 + 0.01 * row for row in range(ROWS)],
        seed=[None if row % 2 else row for row in range(ROWS)],
    )


def greedy_params() -> SamplingParams:
    """Every row takes its largest logit."""
    return SamplingParams(temperature=0.0, top_k=1, top_p=1.0)


def decode_call(*, position: int = 100, convert: Any = None) -> dict[str, Any]:
    """A full lane at positions spread over a block, int32 arrays, table `[32, 64]`."""
    call = {
        "tokens": np.arange(ROWS, dtype=np.int32),
        "start_pos": np.arange(position, position + ROWS, dtype=np.int32),
        "page_table": np.arange(ROWS * DECODE_WIDTH, dtype=np.int32).reshape(ROWS, DECODE_WIDTH),
    }
    return call if convert is None else {name: convert(value) for name, value in call.items()}


def prefill_call(rows: int, length: int, *, convert: Any = None) -> dict[str, Any]:
    """`rows` prompts of `length` tokens in slots 0, 1, …; int64 arrays but for the page table."""
    blocks = -(-length // BLOCK)
    call = {
        "tokens": np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 251,
        "page_table": np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks),
        "prompt_lens": np.full(rows, length, np.int64),
    }
    if convert is not None:
        call = {name: convert(value) for name, value in call.items()}
    return {**call, "empty_slots": list(range(rows))}
