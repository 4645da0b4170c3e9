# SPDX-License-Identifier: Apache-2.0
"""What a sampler reads from the device: K, P and inverse T per row, and the seeds of the sampled rows.

Follows chapter 20, sections 5.5 and 7.2.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from llm_runtime.device import host_tensor, namespace_of
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.inputs import ReleaseTransient, allocate_device_tensors, copy_into_device_tensors
from llm_runtime.prefill.sampling_helpers import KPTSignature, kpt_values
from llm_runtime.prefill.sampling_params import PreparedSamplingParams
from llm_runtime.prefill.signatures import PreparedPrefill
from llm_runtime.seed_manager import MAX_DEVICE_SEED, device_seed


class PrefillSamplingInputs:
    """Makes and refreshes sampler inputs for one model; K/P/T belong to the caller, the seed buffer to the
    sampler."""

    def __init__(self, config: PrefillRuntimeConfig, *, release_transient: ReleaseTransient) -> None:
        self._config = config
        self._ns = namespace_of(config.mesh_device)
        self._release = release_transient
        self._random = random.Random()

    def make_host_kpt(
        self, sampling: PreparedSamplingParams | None, rows: int, *, force_topk: bool
    ) -> tuple[Any, Any, Any] | None:
        """Host K (uint32), P and inverse T (bfloat16), each ``[rows]``; ``None`` when the path reads none."""
        if sampling is None or not (force_topk or sampling.sampling_path == "topk"):
            return None
        k, p, temperature = kpt_values(sampling, rows)
        ns = self._ns
        return (
            host_tensor(ns, np.array(k, np.uint32), ns.uint32),
            host_tensor(ns, np.array(p, np.float32), ns.bfloat16),
            host_tensor(ns, np.array(temperature, np.float32), ns.bfloat16),
        )

    def make_device_kpt(
        self, sampling: PreparedSamplingParams | None, rows: int, *, force_topk: bool
    ) -> tuple[Any, Any, Any] | None:
        """Upload :meth:`make_host_kpt`; the caller owns the result."""
        host = self.make_host_kpt(sampling, rows, force_topk=force_topk)
        if host is None:
            return None
        k, p, temperature = allocate_device_tensors(host, mesh_device=self._config.mesh_device, release=self._release)
        return (k, p, temperature)

    def refresh_kpt(self, device: Any, sampling: PreparedSamplingParams | None, rows: int, *, force_topk: bool) -> None:
        """Copy K, P and T into existing tensors; ``RuntimeError`` when they appeared or vanished since
        capture."""
        host = self.make_host_kpt(sampling, rows, force_topk=force_topk)
        if (host is None) != (device is None):
            raise RuntimeError("sampling changed the compiled sampling path between capture and refresh")
        if host is not None:
            copy_into_device_tensors(host, device)

    def refresh_workspace(
        self, prepared: PreparedPrefill, *, kpt: Any, kpt_signature: KPTSignature, rows: int
    ) -> KPTSignature:
        """Upload K/P/T when a top-k request changed their values; returns the values now on the device."""
        if prepared.sampling_path != "topk" or prepared.prepared_sampling is None:
            return kpt_signature
        values = kpt_values(prepared.prepared_sampling, rows)
        if kpt is not None and values == kpt_signature:
            return kpt_signature
        self.refresh_kpt(kpt, prepared.prepared_sampling, rows, force_topk=True)
        return values

    def require_seed_buffer(self, sampling: PreparedSamplingParams, row_labels: tuple[int, ...]) -> None:
        """Refuse explicit seeds when the sampler has no seed buffer to write them to (``TypeError``)."""
        if self._config.sampling_state_controller is not None or self._seed_buffer() is not None:
            return
        for label, seed in zip(row_labels, sampling.seeds, strict=False):
            if seed is not None:
                raise TypeError(f"sampling row {label}: seed {seed} needs a sampler with a mutable seed buffer")

    def write_seeds(self, prepared: PreparedPrefill, rows: int) -> None:
        """Enqueue the seeds of the rows about to be sampled, before the sampler runs.

        A seeded row's device seed depends on its seed and the position of its last token alone; every other
        row draws anew. A single row's seed fills the whole tile, like K, P and T, because its token may sit
        in any row. Decode writes its own seeds before each of its steps, so nothing needs to be put back.
        """
        buffer = self._seed_buffer()
        sampling = prepared.prepared_sampling
        if buffer is None or sampling is None or prepared.sampling_path != "topk":
            return
        if self._config.sampling_state_controller is not None:
            return
        source = buffer.source
        seeds = [self._random.randint(1, MAX_DEVICE_SEED) for _ in range(_row_count(source))]
        request = prepared.request
        for row, position in enumerate(request.last_token_indices):
            seed = sampling.seeds[row]
            if seed is not None:
                seeds[row] = device_seed(seed, position, 0)
        if request.kind == "single":
            seeds = [seeds[0]] * len(seeds)
        buffer.update(host_tensor(self._ns, np.array(seeds, np.uint32), self._ns.uint32))

    def _seed_buffer(self) -> Any:
        if not self._config.device_sampling_enabled:
            return None
        buffer = getattr(self._config.model.sampling.config, "seeds", None)
        return buffer if callable(getattr(buffer, "update", None)) else None


def _row_count(source: Any) -> int:
    count = 1
    for size in source.shape:
        count *= int(size)
    return count
