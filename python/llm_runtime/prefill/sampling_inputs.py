# SPDX-License-Identifier: Apache-2.0
"""What a sampler reads from the device: K, P, inverse T and seed of every sampler row.

Follows chapter 20, sections 5.5 and 7.2.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

from llm_runtime.device import host_tensor, namespace_of
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.device_copies import ReleaseTransient, allocate_device_tensors, copy_into_device_tensors
from llm_runtime.prefill.sampling_helpers import KPTValues, kpt_values
from llm_runtime.prefill.sampling_params import PreparedSamplingParams
from llm_runtime.prefill.signatures import PreparedPrefill
from llm_runtime.seed_manager import MAX_DEVICE_SEED, device_seed


class DeviceSamplingValues(NamedTuple):
    """Sampler inputs on the device, ``[rows]`` each; owned by whoever made them.

    K is uint32, P and inverse T are bfloat16. ``seeds`` (uint32) exists when the sampler takes seeds and no
    sampling-state controller looks after them. They are separate from the sampler's own seed buffer, which
    belongs to decode and is left alone.
    """

    k: Any
    p: Any
    temperature: Any
    seeds: Any


class SamplingSignature(NamedTuple):
    """Host form of :class:`DeviceSamplingValues`, compared to find what a refresh must copy."""

    kpt: KPTValues
    seeds: tuple[int, ...] | None


class PrefillSamplingInputs:
    """Makes and refreshes the sampler inputs of one model (borrowed)."""

    def __init__(self, config: PrefillRuntimeConfig, *, release_transient: ReleaseTransient) -> None:
        self._config = config
        self._ns = namespace_of(config.mesh_device)
        self._release = release_transient
        self._random = random.SystemRandom()
        self._takes_seeds = config.sampling_state_controller is None and _has_seed_buffer(config)
        #: Whether something on the device uses explicit seeds.
        self.serves_seeds = self._takes_seeds or config.sampling_state_controller is not None

    def require_seeds_supported(self, sampling: PreparedSamplingParams, row_labels: tuple[int, ...]) -> None:
        """Refuse explicit seeds when nothing on the device can use them (``TypeError`` naming the row)."""
        if self.serves_seeds:
            return
        for label, seed in zip(row_labels, sampling.seeds, strict=False):
            if seed is not None:
                raise TypeError(f"sampling row {label}: seed {seed} needs a sampler with a mutable seed buffer")

    def values(self, prepared: PreparedPrefill, rows: int) -> SamplingSignature | None:
        """The values that the sampler of ``prepared`` should read now; ``None`` unless it takes the top-k
        path.

        A seeded row's device seed depends on its seed and its last token's position alone, any other row
        draws anew at each call. The seed of a single request fills all rows, like K, P and T, because its
        token may sit in any row of a tile.
        """
        sampling = prepared.prepared_sampling
        if sampling is None or prepared.sampling_path != "topk":
            return None
        seeds = None
        if self._takes_seeds:
            drawn = [self._random.randint(1, MAX_DEVICE_SEED) for _ in range(rows)]
            for row, position in enumerate(prepared.request.last_token_indices):
                seed = sampling.seeds[row]
                if seed is not None:
                    drawn[row] = device_seed(seed, position)
            seeds = (drawn[0],) * rows if prepared.request.kind == "single" else tuple(drawn)
        return SamplingSignature(kpt_values(sampling, rows), seeds)

    def make_device_values(self, values: SamplingSignature | None) -> DeviceSamplingValues | None:
        """Upload ``values``; the caller owns the result."""
        if values is None:
            return None
        return DeviceSamplingValues(
            *allocate_device_tensors(
                (*self._kpt_tensors(values.kpt), self._seed_tensor(values.seeds)),
                mesh_device=self._config.mesh_device,
                release=self._release,
            )
        )

    def refresh(
        self,
        device: DeviceSamplingValues | None,
        known: SamplingSignature | None,
        values: SamplingSignature | None,
    ) -> None:
        """Copy what differs from the ``known`` contents of ``device`` (``None``: unknown) into it.

        ``RuntimeError`` when sampler inputs appeared or vanished since capture.
        """
        if (device is None) != (values is None):
            raise RuntimeError("sampling changed the compiled sampling path between capture and refresh")
        if device is None or values is None:
            return
        if known is None or known.kpt != values.kpt:
            copy_into_device_tensors(self._kpt_tensors(values.kpt), device[:3])
        if known is None or known.seeds != values.seeds:
            copy_into_device_tensors((self._seed_tensor(values.seeds),), (device.seeds,))

    def _kpt_tensors(self, kpt: KPTValues) -> tuple[Any, Any, Any]:
        k, p, temperature = kpt
        ns = self._ns
        return (
            host_tensor(ns, np.array(k, np.uint32), ns.uint32),
            host_tensor(ns, np.array(p, np.float32), ns.bfloat16),
            host_tensor(ns, np.array(temperature, np.float32), ns.bfloat16),
        )

    def _seed_tensor(self, seeds: tuple[int, ...] | None) -> Any:
        return None if seeds is None else host_tensor(self._ns, np.array(seeds, np.uint32), self._ns.uint32)


def _has_seed_buffer(config: PrefillRuntimeConfig) -> bool:
    if not config.device_sampling_enabled:
        return False
    return callable(getattr(getattr(config.model.sampling.config, "seeds", None), "update", None))
