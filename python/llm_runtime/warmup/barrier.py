# SPDX-License-Identifier: Apache-2.0
"""The barrier between compiling and serving: traces are captured once, when both operations are complete.

Follows chapter 30, section 5.5.
"""

from __future__ import annotations

import logging
from typing import Any

from llm_runtime.warmup.cases import CoverageManifest
from llm_runtime.warmup.config import WarmupCoordinatorConfig
from llm_runtime.warmup.manifest import build_manifest
from llm_runtime.warmup.progress import OperationProgress

__all__ = ["CaptureBarrier"]

logger = logging.getLogger(__name__)


class CaptureBarrier:
    """Decides when capturing may begin; borrows the compilers and both operations' progress.

    While a deferral is open, a complete warmup is staged instead of captured, so that all lanes of a group can
    activate together.
    """

    def __init__(
        self,
        *,
        program_compiler: Any,
        trace_compiler: Any | None,
        prefill: OperationProgress,
        decode: OperationProgress,
    ) -> None:
        self._program_compiler = program_compiler
        self._trace_compiler = trace_compiler
        self._prefill = prefill
        self._decode = decode
        self._deferring = False
        self._staged: CoverageManifest | None = None
        self.manifest: CoverageManifest | None = None

    @property
    def activated(self) -> bool:
        """Whether the traces are captured."""
        return self.manifest is not None

    @property
    def pending(self) -> bool:
        """Whether a complete warmup waits for its deferred capture."""
        return self._staged is not None

    def begin_deferral(self) -> None:
        """Stage instead of capturing from now on; RuntimeError when nested or pending."""
        if self._deferring or self._staged is not None:
            raise RuntimeError("capture is already deferred")
        self._deferring = True

    def end_deferral(self) -> None:
        """Forget the deferral and what it staged; the next warmup call finds out anew whether it is complete."""
        self._deferring = False
        self._staged = None

    def activate_pending(self, config: WarmupCoordinatorConfig) -> None:
        """Capture what is staged; RuntimeError outside a deferral or with nothing pending."""
        if not self._deferring or self._staged is None:
            raise RuntimeError("no deferred capture is pending")
        self._capture(config, self._staged)
        self._staged = None

    def is_ready(self, config: WarmupCoordinatorConfig) -> bool:
        """Whether a capture is due: not done before, both operations complete, something to trace."""
        if self._trace_compiler is None or self.activated:
            return False
        return (
            self._is_complete(config, self._prefill, traceable=config.prefill_trace_enabled)
            and self._is_complete(config, self._decode, traceable=config.decode_trace_enabled)
            and bool(self._prefill.trace_done or self._decode.trace_done)
        )

    def raise_barrier(self, config: WarmupCoordinatorConfig) -> None:
        """Check the registries against what was warmed, then capture, or stage while a deferral is open."""
        manifest = build_manifest(
            self._program_compiler.compiled_programs,
            self._trace_compiler,
            required=[*self._prefill.required, *self._decode.required],
            trace_required=[*self._prefill.trace_required, *self._decode.trace_required],
        )
        if self._deferring:
            self._staged = manifest
        else:
            self._capture(config, manifest)

    def _is_complete(self, config: WarmupCoordinatorConfig, state: OperationProgress, *, traceable: bool) -> bool:
        if state.sampled is None or (traceable and state.traced is None):
            return False
        plan = config.plan(device_sampling=state.sampled)
        cases = plan.prefill if state is self._prefill else plan.decode
        if not all(state.covers(case) for case in cases):
            return False
        return not state.traced or all(case in state.trace_done for case in cases if config.traces_case(case))

    def _capture(self, config: WarmupCoordinatorConfig, manifest: CoverageManifest) -> None:
        compiler: Any = self._trace_compiler
        compiler.capture_all()
        self.manifest = manifest
        logger.info(
            "warmup captured %d traces for %d programs; %d programs stay eager",
            len(manifest.trace_signatures),
            len(manifest.aliases),
            len(manifest.eager_program_signatures),
        )
        gaps = sorted({(case.sequence_length, case.batch_size) for case in config.coverage_gaps})
        if gaps:
            logger.warning("prefill waves (length, rows) that serving may ask for are not warmed: %s", gaps)
