# SPDX-License-Identifier: Apache-2.0
"""The owners of one executor and whether it may take work; what the parts of `ModelExecutor` share."""

from __future__ import annotations

from typing import Any

from llm_models.executor_config import ModelExecutorConfig
from llm_runtime.config import PageTableLayout
from llm_runtime.decode import DecodeRuntime
from llm_runtime.execution import EagerExecutor, TracedExecutor
from llm_runtime.output_reader import OutputReader
from llm_runtime.paged_kv_cache import PagedKVCacheManager
from llm_runtime.prefill.runtime import PrefillRuntime
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.trace_compiler import TraceCompiler
from llm_runtime.warmup import WarmupCoordinator


class ExecutorState:
    """Attributes of an executor; `ModelExecutor` sets them. The model and its runtime config are borrowed."""

    model: Any
    runtime_config: Any
    config: ModelExecutorConfig
    kv_cache_manager: PagedKVCacheManager
    page_table_layout: PageTableLayout
    output_reader: OutputReader
    prefill_runtime: PrefillRuntime
    decode_runtime: DecodeRuntime
    program_compiler: ProgramCompiler
    eager_executor: EagerExecutor
    eager_execution: EagerExecutor
    trace_compiler: TraceCompiler | None
    traced_executor: TracedExecutor | None
    traced_prefill_execution: TracedExecutor | None
    traced_decode_execution: TracedExecutor | None
    warmup: WarmupCoordinator
    _owner_name: str
    _request_state_fields: tuple[str, ...]
    _sampling_buffers_loaded: bool = False
    _sealed: bool = False
    _terminal: bool = False
    _cleaned: bool = False

    @property
    def terminal(self) -> bool:
        """True once `cleanup()` was called."""
        return self._terminal

    def _require_active(self) -> None:
        if self._terminal:
            raise RuntimeError(f"{self._owner_name} was cleaned up: build a new one")
        if self.prefill_runtime.transient_orphan_count or self.decode_runtime.transient_orphan_count:
            raise RuntimeError(f"{self._owner_name} holds tensors that could not be released: call cleanup()")
