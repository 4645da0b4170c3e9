# SPDX-License-Identifier: Apache-2.0
"""Compiles the coverage of one lane and captures its traces once everything is compiled.

Follows chapter 30, section 5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llm_runtime._validation import positive_int, require_bool, require_instance
from llm_runtime.config import PageTableLayout
from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.warmup.barrier import CaptureBarrier
from llm_runtime.warmup.cases import CoverageManifest, WarmupCase
from llm_runtime.warmup.config import WarmupCoordinatorConfig
from llm_runtime.warmup.progress import OperationProgress
from llm_runtime.warmup.requests import decode_request, prefill_requests

__all__ = ["WarmupCoordinator", "WarmupProgress"]

#: Called as ``progress(done, total, case)`` after each compiled case of a call and, with ``case=None``, when all are
#: compiled and the capture begins.
WarmupProgress = Callable[[int, int, WarmupCase | None], None]


class WarmupCoordinator:
    """Warms prefill and decode in either order and raises the barrier between compiling and serving.

    Borrows the execution target and both callbacks. Coverage is idempotent: a repeated call compiles only what is
    missing, and a failed compile leaves the cases before it done.
    """

    def __init__(
        self,
        *,
        config: WarmupCoordinatorConfig,
        execution: Any,
        ensure_sampling_buffers: Callable[[], None],
        validate_bound_cache: Callable[[Any], None],
        progress: WarmupProgress | None = None,
    ) -> None:
        require_instance(config, WarmupCoordinatorConfig, name="config")
        self.execution = execution
        self.eager = getattr(execution, "eager_executor", execution)
        self.trace_compiler = getattr(execution, "trace_compiler", None)
        _check_runtimes(config, self.eager.prefill.config, self.eager.decode.config)
        for name, callback in (
            ("ensure_sampling_buffers", ensure_sampling_buffers),
            ("validate_bound_cache", validate_bound_cache),
        ):
            if not callable(callback):
                raise TypeError(f"{name} must be callable, got {type(callback).__name__}")
        self.config = config
        self.progress = progress
        self._ensure_sampling_buffers = ensure_sampling_buffers
        self._validate_bound_cache = validate_bound_cache
        self._prefill = OperationProgress()
        self._decode = OperationProgress()
        self._barrier = CaptureBarrier(
            program_compiler=self.eager.program_compiler,
            trace_compiler=self.trace_compiler,
            prefill=self._prefill,
            decode=self._decode,
        )
        self._sealed = False

    @property
    def coverage_manifest(self) -> CoverageManifest | None:
        """What is covered, from activation on; None before."""
        return self._barrier.manifest

    @property
    def capture_pending(self) -> bool:
        """Whether everything is compiled and a deferral holds the capture back."""
        return self._barrier.pending

    @property
    def trace_activated(self) -> bool:
        """Whether the traces are captured and serving may replay them."""
        return self._barrier.activated

    @property
    def already_warmed_up_prefill(self) -> bool:
        """Whether every prefill case is compiled eagerly and, where prefill is traced, captured as well."""
        config, prefill = self.config, self._prefill
        sampled = config.device_sampling_enabled if prefill.sampled is None else prefill.sampled
        cases = config.plan(device_sampling=sampled).prefill
        if not all(case in prefill.eager_done for case in cases):
            return False
        if not config.prefill_trace_enabled or prefill.traced is False:
            return True
        return self._barrier.activated and all(
            case in prefill.trace_done for case in cases if config.traces_prefill_case(case)
        )

    def configure_page_table_layout(self, layout: PageTableLayout) -> None:
        """Install the final geometry; RuntimeError once sealed."""
        if self._sealed:
            raise RuntimeError("the warmup configuration is sealed: the page-table layout cannot change any more")
        self.config = self.config.with_page_table_layout(layout)

    def seal_configuration(self) -> None:
        """Freeze the geometry; every warmup call does so as well."""
        self._sealed = True

    def warmup_prefill(self, *, kv_cache: Any, can_sample_on_device: bool, enable_trace: bool) -> None:
        """Compile missing prefill coverage on the eager or the traced target, then try to capture.

        ValueError when the hints exceed the configured policy. A traced call after decode declined a configured
        trace makes the capture wait for another decode call.
        """
        config, state = self.config, self._prefill
        self._check_hints(can_sample_on_device, enable_trace, config.prefill_trace_enabled, "prefill")
        self._validate_bound_cache(kv_cache)
        state.decide(traced=enable_trace, sampled=can_sample_on_device)
        if (
            enable_trace
            and config.decode_trace_enabled
            and self._decode.traced is False
            and not self._barrier.activated
        ):
            self._decode.traced = None
        self._open(can_sample_on_device)
        cases = list(config.plan(device_sampling=can_sample_on_device).prefill)
        if enable_trace and can_sample_on_device:
            # The first alias of a shared body brings the k, p and temperature buffers for all of them.
            cases.sort(key=lambda case: case.sampling_path != "topk")
        self._compile_missing(
            state,
            [(case, enable_trace and config.traces_prefill_case(case)) for case in cases],
            lambda target, case: [target.compile_prefill(**request) for request in prefill_requests(config, case)],
        )
        self._try_capture()

    def warmup_decode(
        self, *, kv_cache: Any, max_batch_size: int, num_blocks: int, can_sample_on_device: bool, enable_trace: bool
    ) -> None:
        """Compile missing decode coverage for the whole lane, then try to capture.

        ``num_blocks`` is the width of the server's page tables. ValueError when it is not positive, when
        ``max_batch_size`` is not the lane's, or when the hints exceed the configured policy.
        """
        config, state = self.config, self._decode
        self._check_hints(can_sample_on_device, enable_trace, config.decode_trace_enabled, "decode")
        if max_batch_size != config.lane_batch_size or isinstance(max_batch_size, bool):
            raise ValueError(f"max_batch_size {max_batch_size!r} must equal the lane's {config.lane_batch_size} rows")
        positive_int(num_blocks, name="num_blocks")
        self._validate_bound_cache(kv_cache)
        state.decide(traced=enable_trace, sampled=can_sample_on_device)
        self._open(can_sample_on_device)
        self._compile_missing(
            state,
            [(case, enable_trace) for case in config.plan(device_sampling=can_sample_on_device).decode],
            lambda target, case: [target.compile_decode(**decode_request(config, case, num_blocks=num_blocks))],
        )
        self._try_capture()

    @contextmanager
    def defer_capture(self) -> Iterator[None]:
        """Hold the capture back until :meth:`activate_pending_capture`; leaving forgets a pending one.

        RuntimeError when nested or while a capture is pending.
        """
        self._barrier.begin_deferral()
        try:
            yield
        finally:
            self._barrier.end_deferral()

    def activate_pending_capture(self) -> None:
        """Capture now; RuntimeError outside a deferral or with nothing pending."""
        self._barrier.activate_pending(self.config)

    def _check_hints(self, sampled: Any, traced: Any, traceable: bool, operation: str) -> None:
        require_bool(sampled, name="can_sample_on_device")
        require_bool(traced, name="enable_trace")
        if traced and not traceable:
            raise ValueError(f"{operation} trace warmup exceeds the configured trace policy")
        if sampled and not self.config.device_sampling_enabled:
            raise ValueError("device sampling was requested for warmup, but it is statically disabled")

    def _open(self, sampled: bool) -> None:
        self.seal_configuration()
        if sampled:
            self._ensure_sampling_buffers()

    def _compile_missing(
        self,
        state: OperationProgress,
        cases: list[tuple[WarmupCase, bool]],
        compile_case: Callable[[Any, WarmupCase], list[Any]],
    ) -> None:
        missing = [(case, traced) for case, traced in cases if case not in state.done(traced=traced)]
        for index, (case, traced) in enumerate(missing, 1):
            compiled = compile_case(self.execution if traced else self.eager, case)
            state.record(case, compiled, traced=traced)
            if self.progress is not None:
                self.progress(index, len(missing), case)

    def _try_capture(self) -> None:
        if not self._barrier.is_ready(self.config):
            return
        if self.progress is not None:
            programs = len(self._prefill.required) + len(self._decode.required)
            self.progress(programs, programs, None)
        self._barrier.raise_barrier(self.config)


def _check_runtimes(config: WarmupCoordinatorConfig, prefill: Any, decode: Any) -> None:
    require_instance(prefill, PrefillRuntimeConfig, name="execution.prefill.config")
    require_instance(decode, DecodeRuntimeConfig, name="execution.decode.config")
    for name, runtime in (("prefill", prefill), ("decode", decode)):
        if runtime.model is not config.model:
            raise ValueError(f"the warmup config's model is not the model of the {name} runtime")
        if runtime.page_table_layout is not config.page_table_layout:
            raise ValueError(f"the warmup config's page-table layout is not the layout of the {name} runtime")
        if runtime.device_sampling_enabled != config.device_sampling_enabled:
            raise ValueError(f"the warmup config's device-sampling policy differs from the {name} runtime's")
    if not prefill.max_batch_size == decode.lane_capacity == config.lane_batch_size:
        raise ValueError(
            f"the warmup config's lane capacity {config.lane_batch_size} differs from the runtimes' "
            f"{prefill.max_batch_size} and {decode.lane_capacity}"
        )
