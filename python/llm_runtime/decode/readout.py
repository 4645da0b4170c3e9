# SPDX-License-Identifier: Apache-2.0
"""From a raw step result to host rows: blocking, or through leases for an external scheduler.

Follows chapter 20, section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.decode.health import DecodeHealth
from llm_runtime.decode.leases import LeaseBook
from llm_runtime.decode.outputs import normalise_log_probs, normalise_logits, normalise_tokens, split_output
from llm_runtime.decode.staging_turns import StagingTurns
from llm_runtime.decode.values import InvocationResult
from llm_runtime.errors import add_error_note
from llm_runtime.host_arrays import result_like
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_cleanup_failures

__all__ = ["DecodeReadout"]

ResultLike = Callable[[Any], Any]


class DecodeReadout:
    """Reads and normalises outputs; owns the leases of outputs that nobody has read yet.

    Results come back in the kind of array that the step's tokens were. Reading and processing may happen on
    another thread than stepping.
    """

    def __init__(self, config: DecodeRuntimeConfig, *, health: DecodeHealth, turns: StagingTurns) -> None:
        self._reader = config.output_reader
        self._lane_capacity = config.lane_capacity
        self._vocab_size = config.vocab_size
        self._cluster_shape = config.cluster_shape
        self._health = health
        self._kind: type | None = None
        self._result_like: ResultLike = result_like(None)
        self._turns = turns
        self.leases = LeaseBook(config.output_reader, turns)

    def note_kind(self, tokens: Any) -> None:
        """Remember the array kind of the step whose result is consumed next."""
        kind = type(tokens)
        if kind is not self._kind:
            self._kind = kind
            self._result_like = result_like(tokens)

    def consume(self, result: InvocationResult, *, read_from_device: bool) -> Any:
        """Read, release and return ``(output, log_probs)``, or lease the raw value and return it.

        A failed read, normalisation or release invalidates the runtime; owned tensors are released or
        retained first.
        """
        turns = self._turns
        if not read_from_device:
            self.leases.open(result.value, result.owned, self._result_like)
            return result.value
        try:
            host = self._reader.read(result.value, blocking=True)
            turns.read = turns.submitted
            output = self._normalise(host, is_tokens=result.is_tokens, like=self._result_like)
        except BaseException as error:
            if isinstance(error, TimeoutError):
                add_error_note(error, f"output of decode step {turns.submitted} of this lane")
            self._health.invalidate()
            attach_cleanup_failures(error, self._health.release(result.owned))
            raise
        if result.owned is not None:
            failures = self._health.release(result.owned)
            if failures:
                self._health.invalidate()
                raise_cleanup_failures(failures)
        return output

    def read(self, tt_out: Any, *, async_read: bool) -> Any:
        """Copy a raw output to the host: the host tree (blocking), or ``(host tree, events)`` of a queued copy."""
        leases = self.leases
        lease = leases.of_raw(tt_out)
        if not async_read:
            host = self._reader.read(tt_out, blocking=True)
            leases.release(lease)
            return host
        pending = self._reader.submit(tt_out)
        if lease is not None:
            leases.attach_read(lease, pending)
        return pending.value, list(pending.events)

    def process(self, tt_out: Any, *, is_tokens: bool) -> tuple[Any, Any]:
        """Complete a queued read, or read a raw device value now; release its lease and return host rows."""
        leases = self.leases
        lease = leases.of_host(tt_out)
        if lease is not None:
            # Releasing completes the read first, so the host value is ready afterwards.
            leases.release(lease)
            host = tt_out
        else:
            # A raw value that was never submitted is read here; a value already on the host passes through.
            lease = leases.of_raw(tt_out)
            host = self._reader.read(self._reader.complete(tt_out), blocking=True)
            leases.release(lease)
        like = self._result_like if lease is None or lease.result_like is None else lease.result_like
        return self._normalise(host, is_tokens=is_tokens, like=like)

    def _normalise(self, host: Any, *, is_tokens: bool, like: ResultLike) -> tuple[Any, Any]:
        output, log_probs = host if type(host) is tuple and len(host) == 2 else split_output(host)
        if not is_tokens:
            logits = normalise_logits(
                output,
                lane_capacity=self._lane_capacity,
                vocab_size=self._vocab_size,
                cluster_shape=self._cluster_shape,
            )
            return like(logits), log_probs
        tokens = normalise_tokens(output, lane_capacity=self._lane_capacity, cluster_shape=self._cluster_shape)
        if log_probs is None:
            return like(tokens), None
        rows = normalise_log_probs(log_probs, lane_capacity=self._lane_capacity, cluster_shape=self._cluster_shape)
        return like(tokens), rows if rows is log_probs else like(rows)
