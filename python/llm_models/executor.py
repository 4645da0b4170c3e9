# SPDX-License-Identifier: Apache-2.0
"""One model on one lane: composes the runtime's parts, routes calls to eager or traced targets, cleans up.

Follows chapter 40, section A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_models.executor_calls import ExecutorCalls
from llm_models.executor_config import ModelExecutorConfig, check_construction
from llm_models.executor_kv import ExecutorKVCache
from llm_models.lane import build_lane
from llm_runtime.tensor_resources import attach_cleanup_failures

__all__ = ["ModelExecutor", "ModelExecutorConfig"]


class ModelExecutor(ExecutorCalls, ExecutorKVCache):
    """The cleanup root of one lane.

    Borrows the model, its mesh and the sampling state; owns every runtime part that it builds, in the order of
    chapter 40 A.2. A call without `execution` runs traced where the trace policy selects that operation and never
    falls back to eager (decision D8). After `cleanup()` the executor is terminal.
    """

    requires_prefill_trace_warmup = True

    def __init__(
        self,
        model: Any,
        runtime_config: Any,
        config: ModelExecutorConfig,
        *,
        owner_name: str = "ModelExecutor",
        prefill_sequence_lengths: tuple[int, ...] | None = None,
        disable_batched_prefill: bool | None = None,
        trace_capture_prime_sequence_lengths: tuple[int, ...] = (),
        sampling_state_controller: Any = None,
        sampling_state: Any = None,
        sampling_type: type | None = None,
        request_state_fields: tuple[str, ...] = (),
        prefill_warmup: Callable[..., None] | None = None,
        output_wait_limit: float | None = None,
    ) -> None:
        """Check every argument in the order of chapter 40 A.2, then build; nothing touches the device.

        `output_wait_limit` is how many seconds a read of outputs waits for the device before it is a `TimeoutError`;
        `None` waits as long as it takes.
        """
        check_construction(
            model,
            runtime_config,
            config,
            owner_name=owner_name,
            disable_batched_prefill=disable_batched_prefill,
            sampling_state_controller=sampling_state_controller,
            sampling_state=sampling_state,
            sampling_type=sampling_type,
            request_state_fields=request_state_fields,
            prefill_warmup=prefill_warmup,
            output_wait_limit=output_wait_limit,
        )
        self.model = model  # borrowed
        self.runtime_config = self.model_args = runtime_config  # borrowed
        self.config = config
        self.mesh_device = model.config.mesh_device  # borrowed
        self.cache_path = getattr(runtime_config, "model_cache_path", None)
        self.sampling_state_controller = sampling_state_controller  # borrowed
        self.sampling_state = sampling_state  # borrowed
        self._owner_name = owner_name
        self._request_state_fields = request_state_fields
        self._prefill_warmup = prefill_warmup
        lane = build_lane(
            model,
            runtime_config,
            config,
            prefill_sequence_lengths=prefill_sequence_lengths,
            disable_batched_prefill=disable_batched_prefill,
            trace_capture_prime_sequence_lengths=trace_capture_prime_sequence_lengths,
            sampling_state_controller=sampling_state_controller,
            sampling_state=sampling_state,
            output_wait_limit=output_wait_limit,
            ensure_sampling_buffers=self._ensure_sampling_buffers,
            validate_bound_cache=self._validate_bound_cache,
        )
        self.kv_cache_manager = lane.kv_cache_manager
        self.page_table_layout = lane.page_table_layout
        self.output_reader = lane.output_reader
        self.prefill_runtime = lane.prefill_runtime
        self.decode_runtime = lane.decode_runtime
        self.program_compiler = lane.program_compiler
        self.eager_executor = self.eager_execution = lane.eager_executor
        self.trace_compiler = lane.trace_compiler
        self.traced_executor = lane.traced_executor
        self.warmup = lane.warmup
        self.traced_prefill_execution = self.traced_executor if config.trace.prefill_enabled else None
        self.traced_decode_execution = self.traced_executor if config.trace.decode_enabled else None

    @property
    def model_config(self) -> Any:
        """The tensor model's config (borrowed)."""
        return self.model.config

    @property
    def cluster_shape(self) -> list[int]:
        """Rows and columns of the mesh."""
        return [int(size) for size in self.mesh_device.shape]

    @property
    def already_warmed_up_prefill(self) -> bool:
        """Whether warmup holds every prefill case. Assigning a bool is accepted and changes nothing."""
        return self.warmup.already_warmed_up_prefill

    @already_warmed_up_prefill.setter
    def already_warmed_up_prefill(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"already_warmed_up_prefill must be a bool, got {value!r}")

    def warmup_model_prefill(self, *, kv_cache: Any, can_sample_on_device: bool, enable_trace: bool) -> None:
        """Warm every prefill case; capture starts when both operations are covered (chapter 40 A.7)."""
        self._require_active()
        hints = {
            "kv_cache": kv_cache,
            "can_sample_on_device": can_sample_on_device,
            "enable_trace": enable_trace,
        }
        if self._prefill_warmup is None:
            self.warmup.warmup_prefill(**hints)
        else:
            self._prefill_warmup(self, lambda: self.warmup.warmup_prefill(**hints), **hints)

    def warmup_model_decode(
        self,
        *,
        kv_cache: Any,
        max_batch_size: int,
        num_blocks: int,
        can_sample_on_device: bool,
        enable_trace: bool,
    ) -> None:
        """Warm every decode case; either order with prefill."""
        self._require_active()
        self.warmup.warmup_decode(
            kv_cache=kv_cache,
            max_batch_size=max_batch_size,
            num_blocks=num_blocks,
            can_sample_on_device=can_sample_on_device,
            enable_trace=enable_trace,
        )

    def cleanup(self) -> None:
        """Release everything that this executor owns, in the seed's order; idempotent and retryable.

        Every step is tried. The first failure is raised unchanged with the others in its `cleanup_failures`; a later
        call retries.
        """
        self._terminal = True
        if self._cleaned:
            return
        steps: list[Callable[[], Any]] = [
            self.decode_runtime.drain_external_outputs,
            self.output_reader.drain,
            self.prefill_runtime.cleanup,
            self.decode_runtime.cleanup_transients,
            self._end_registries,
        ]
        if self.config.device_sampling_enabled:
            if self.sampling_state_controller is not None:
                steps.append(lambda: self.sampling_state_controller.release(self.sampling_state))
            steps.append(self.model.sampling.release)
        steps.append(self.kv_cache_manager.release)
        failures: list[BaseException] = []
        for step in steps:
            try:
                step()
            except BaseException as failure:  # every later step must still run
                failures.append(failure)
        if failures:
            primary, *others = failures
            note = f"{self._owner_name} cleanup: {{count}} further failures"
            attach_cleanup_failures(primary, others, note=note)
            raise primary
        self._cleaned = True

    def _end_registries(self) -> None:
        if self.trace_compiler is not None:
            self.trace_compiler.cleanup()
        # Only now: the traces' release has to reopen the gate of a registry that is still live.
        self.program_compiler.cleanup()
