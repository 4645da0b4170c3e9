# SPDX-License-Identifier: Apache-2.0
"""Lanes without a model, for what real lanes cannot show: order of calls, and failures at a chosen place.

Lane `i` adds `100 * i` to the tokens that it gets back, so a result tells which lane made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


@dataclass
class RecordingLane:
    """Logs `(operation, lane)` in a log shared by the lanes and keeps the arguments in `calls`.

    `errors[operation]` lists what that operation raises, call by call (`None`: it works).
    """

    index: int
    log: list[tuple[str, int]]
    capacity: int = 2
    traceable: bool = True
    log_probs: Any = None
    errors: dict[str, list[BaseException | None]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls: dict[str, list[dict[str, Any]]] = {}
        self.model = SimpleNamespace(config=SimpleNamespace(max_batch_size=self.capacity))
        self.model_args = f"arguments {self.index}"
        self.mesh_device = f"mesh {self.index}"
        self.cache_path = f"cache {self.index}"
        self.paged_kv_cache_config = f"config {self.index}"
        self.eager_execution = f"eager {self.index}"
        self.traced_prefill_execution: Any = f"traced prefill {self.index}" if self.traceable else None
        self.traced_decode_execution: Any = f"traced decode {self.index}" if self.traceable else None
        self.already_warmed_up_prefill = False
        self.warmup: Any = None

    def note(self, operation: str, **call: Any) -> dict[str, Any]:
        """Log one call, and raise what is planned for it."""
        self.log.append((operation, self.index))
        self.calls.setdefault(operation, []).append(call)
        planned = self.errors.get(operation)
        error = planned.pop(0) if planned else None
        if error is not None:
            raise error
        return call

    def last(self, operation: str) -> dict[str, Any]:
        """Arguments of the latest call."""
        return self.calls[operation][-1]

    def prefill_forward(self, **call: Any) -> Any:
        self.note("prefill", **call)
        return self._tokens("prefill", call["tokens"][:, 0])

    def decode_forward(self, **call: Any) -> Any:
        self.note("decode", **call)
        if not call["read_from_device"]:
            return f"raw {self.index}"
        return self._tokens("decode", call["tokens"])

    def can_trace_prefill(self, **call: Any) -> bool:
        self.note("can trace", **call)
        return self.traceable

    def compile_prefill(self, **call: Any) -> str:
        self.note("compile prefill", **call)
        return "compiled"

    def compile_decode(self, **call: Any) -> str:
        self.note("compile decode", **call)
        return "compiled"

    def read_decode_output(self, *, tt_out: Any, async_read: bool) -> Any:
        self.note("read", tt_out=tt_out, async_read=async_read)
        host = f"host of {tt_out}"
        return self.results.get("read", (host, [f"event {self.index}"])) if async_read else host

    def process_decode_output_host(self, *, tt_out: Any, is_tokens: bool) -> Any:
        self.note("process", tt_out=tt_out, is_tokens=is_tokens)
        return self.results.get("process", (np.arange(2) + 2 * self.index, None))

    def configure_paged_kv_cache(self, config: Any) -> str:
        self.note("configure", config=config)
        return "configured"

    def allocate_kv_cache(self, kv_cache_shape: Any, dtype: Any, num_layers: Any) -> str:
        self.note("allocate", kv_cache_shape=kv_cache_shape, dtype=dtype, num_layers=num_layers)
        return f"handle {self.index}"

    def warmup_model_prefill(self, **call: Any) -> str:
        self._warm(**call)
        self.already_warmed_up_prefill = True
        return "warm"

    def warmup_model_decode(self, **call: Any) -> str:
        self._warm(**call)
        return "warm"

    def cleanup(self) -> None:
        self.note("cleanup")

    def _warm(self, **call: Any) -> None:
        self.note("warm", **call)
        if self.warmup is not None and self.warmup.registers:
            self.log.append(("register", self.index))
            self.warmup.capture_pending = True
        if "after register" in self.errors:
            raise self.errors["after register"][0]  # type: ignore[misc]

    def _tokens(self, operation: str, tokens: Any) -> Any:
        return self.results.get(operation, (tokens + 100 * self.index, self.log_probs))


class RecordingBarrier:
    """A lane's activation barrier; `registers` says whether its warmup completes the coverage."""

    def __init__(self, lane: RecordingLane, *, registers: bool = True) -> None:
        self.lane = lane
        self.registers = registers
        self.capture_pending = False
        self.trace_activated = False
        lane.warmup = self

    @contextmanager
    def defer_capture(self) -> Iterator[None]:
        self.lane.note("enter")
        try:
            yield
        finally:
            self.capture_pending = False
            self.lane.log.append(("exit", self.lane.index))

    def activate_pending_capture(self) -> None:
        self.lane.note("capture")
        self.capture_pending = False
        self.trace_activated = True
