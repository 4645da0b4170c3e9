# SPDX-License-Identifier: Apache-2.0
"""One lane with prefill and decode on the twin, composed as a model executor does, and its warmup coordinator.

Prefill echoes tokens and positions (see ``prefill_model``), decode adds positions to tokens (see
``tiny_decode_model``); both share one sampler.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_runtime.config import PageTableLayout, TraceConfig, WarmupConfig
from llm_runtime.decode import DecodeRuntime, DecodeRuntimeConfig
from llm_runtime.execution import EagerExecutor, TracedExecutor
from llm_runtime.output_reader import OutputReader
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.runtime import PrefillRuntime
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.trace_compiler import TraceCompiler
from llm_runtime.warmup import WarmupCoordinator, WarmupCoordinatorConfig
from support.prefill_model import EchoModel, EchoSampler
from support.tiny_decode_model import TinyDecodeModel

BLOCK = 32


class WarmModel(EchoModel):
    """Echo prefill and tiny decode in one tensor model."""

    def __init__(
        self, mesh: Any, *, lane_capacity: int = 4, num_blocks: int = 128, sampler: EchoSampler | None = None
    ) -> None:
        super().__init__(mesh, lane_capacity=lane_capacity, num_blocks=num_blocks, sampler=sampler)
        self._decode = TinyDecodeModel(mesh, lane_capacity=lane_capacity, sampler=self.sampling)
        self.rope_setup.decode_forward = self._decode.rope_setup.decode_forward  # type: ignore[attr-defined]
        self.embed_decode = self._decode.embed_decode
        self.decode_forward = self._decode.decode_forward
        self.gather_and_untilize_logits = self._decode.gather_and_untilize_logits
        self.increment_positions = self._decode.increment_positions
        self.iter_executor_named_modules = self._decode.iter_executor_named_modules


def layout_of(raw: int = 128, *, chunk: int = 128) -> PageTableLayout:
    """Geometry for ``raw`` blocks of 32 tokens, as ``PageTableLayout.resolve`` would make it."""
    return PageTableLayout.resolve(
        block_size=BLOCK,
        model_max_sequence_length=raw * BLOCK,
        physical_num_blocks=-(-raw // 8) * 8,
        max_prefill_chunk_size=chunk,
    )


class WarmLane:
    """Runtimes, executors, registries and the coordinator of one lane; ``log`` lists what the coordinator asked for.

    Entries are ``(target, operation, request)`` with target ``"eager"`` or ``"traced"``, ``("buffers",)``,
    ``("cache", kv_cache)`` and ``("capture",)``.
    """

    def __init__(
        self,
        mesh: Any,
        *,
        mode: str = "all",
        lengths: tuple[int, ...] = (128, 1024),
        lane_capacity: int = 4,
        raw: int = 128,
        chunk: int = 128,
        sampling: bool = True,
        warmup: WarmupConfig | None = None,
        sampler: EchoSampler | None = None,
        can_enable_trace: Any = None,
        **prefill_options: Any,
    ) -> None:
        self.mesh = mesh
        self.model = WarmModel(mesh, lane_capacity=lane_capacity, num_blocks=max(raw, 64), sampler=sampler)
        reader, layout = OutputReader(mesh), layout_of(raw, chunk=chunk)
        self.prefill = PrefillRuntime(
            PrefillRuntimeConfig.resolve(
                model=self.model,
                output_reader=reader,
                page_table_layout=layout,
                max_batch_size=lane_capacity,
                max_prefill_chunk_size=chunk,
                device_sampling_enabled=sampling,
                can_enable_trace=can_enable_trace or (lambda length, cached: True),
                **{"supports_batched_prefill": True, "max_prefill_batch_size": 32, **prefill_options},
            )
        )
        self.decode = DecodeRuntime(
            DecodeRuntimeConfig.resolve(
                model=self.model,
                output_reader=reader,
                lane_capacity=lane_capacity,
                page_table_layout=layout,
                device_sampling_enabled=sampling,
            )
        )
        self.programs = ProgramCompiler(mesh, lambda: self.model.cache)
        self.eager = EagerExecutor(prefill=self.prefill, decode=self.decode, program_compiler=self.programs)
        self.traces = self.traced = None
        if mode != "none":
            self.traces = TraceCompiler(self.programs)
            self.traced = TracedExecutor(eager=self.eager, trace_compiler=self.traces, trace_mode=mode)
        self.log: list[tuple[Any, ...]] = []
        self._spy()
        self.config = WarmupCoordinatorConfig.resolve(
            warmup=warmup or WarmupConfig(),
            trace=TraceConfig(mode),
            prefill=self.prefill.config,
            decode=self.decode.config,
            prefill_sequence_lengths=lengths,
        )
        self.coordinator = self.new_coordinator()

    def new_coordinator(self, **changes: Any) -> WarmupCoordinator:
        """A coordinator over this lane's execution target."""
        options: dict[str, Any] = {
            "config": self.config,
            "execution": self.traced or self.eager,
            "ensure_sampling_buffers": lambda: self.log.append(("buffers",)),
            "validate_bound_cache": lambda cache: self.log.append(("cache", cache)),
        }
        return WarmupCoordinator(**{**options, **changes})

    def _spy(self) -> None:
        targets = {"eager": self.eager, "traced": self.traced}
        for target, operation in [(name, op) for name in targets for op in ("prefill", "decode")]:
            executor = targets[target]
            if executor is None:
                continue
            call = getattr(executor, f"compile_{operation}")

            def logged(*, _call: Any = call, _entry: Any = (target, operation), **request: Any) -> Any:
                self.log.append((*_entry, request))
                return _call(**request)

            setattr(executor, f"compile_{operation}", logged)
        if self.traces is not None:
            capture = self.traces.capture_all

            def capture_all() -> None:
                self.log.append(("capture",))
                capture()

            self.traces.capture_all = capture_all  # type: ignore[method-assign]

    def warm_prefill(self, *, trace: bool, sampling: bool = False) -> None:
        """A prefill warmup call."""
        self.coordinator.warmup_prefill(kv_cache="kv", can_sample_on_device=sampling, enable_trace=trace)

    def warm_decode(self, *, trace: bool, sampling: bool = False) -> None:
        """A decode warmup call for the whole lane."""
        self.coordinator.warmup_decode(
            kv_cache="kv",
            max_batch_size=self.decode.config.lane_capacity,
            num_blocks=self.decode.config.page_table_layout.raw_capacity_width,
            can_sample_on_device=sampling,
            enable_trace=trace,
        )

    def requests(self, operation: str, target: str | None = None) -> list[dict[str, Any]]:
        """Requests that were compiled so far for an operation, on any target unless told."""
        return [
            entry[2] for entry in self.log if len(entry) == 3 and entry[1] == operation and target in (None, entry[0])
        ]

    def captures(self) -> int:
        """How often capturing was asked for."""
        return self.log.count(("capture",))

    def prompts(self, lengths: list[int], **options: Any) -> dict[str, Any]:
        """A prefill call of these prompt lengths with disjoint page tables."""
        rows, width = len(lengths), max(lengths)
        blocks = -(-width // BLOCK)
        return {
            "tokens": np.ones((rows, width), np.int64),
            "page_table": np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks) % self.model.cache.shape[0],
            "prompt_lens": np.array(lengths),
            **options,
        }

    def close(self) -> None:
        """Release in the order of a model executor."""
        self.prefill.cleanup()
        if self.traces is not None:
            self.traces.cleanup()
        self.programs.cleanup()
