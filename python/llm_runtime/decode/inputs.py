# SPDX-License-Identifier: Apache-2.0
"""Staging of one decode step: host tensors, their device allocation and in-place refresh.

Follows chapter 20, section 5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from llm_runtime._core import stage_decode_inputs
from llm_runtime.decode.config import TOKEN_ROWS, DecodeRuntimeConfig
from llm_runtime.decode.values import DecodeDeviceInputs, DecodeHostInputs, PreparedDecode
from llm_runtime.device import namespace_of
from llm_runtime.host_arrays import host_array
from llm_runtime.host_slots import HostSlot, host_slots
from llm_runtime.prefill.sampling_helpers import PreparedSamplingParams
from llm_runtime.tensor_resources import attach_cleanup_failures

__all__ = ["DecodeInputStager", "device_index_array"]

Release = Callable[[Any], list[BaseException]]
HostValues = tuple[DecodeHostInputs, tuple[Any, Any, Any] | None]


def device_index_array(value: Any, *, name: str) -> np.ndarray[Any, Any]:
    """Return ``value`` as a contiguous int32 or int64 array; TypeError naming it when it holds no integers."""
    array = host_array(value, name=name)
    if array.dtype not in (np.int32, np.int64):
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name} must hold integers, got dtype {array.dtype}")
        array = array.astype(np.int64)
    return np.ascontiguousarray(array)


class DecodeInputStager:
    """Builds host tensors for a prepared step and moves them to the device.

    Every call builds fresh host tensors, because a queued copy may read its source after the call returned; only the
    methods that take the number of a staging set (see :class:`StagingTurns`) write the same ones again. ``release``
    frees or retains what a failed allocation leaves behind.
    """

    def __init__(self, config: DecodeRuntimeConfig, *, release: Release) -> None:
        self._mesh = config.mesh_device
        self._namespace = namespace_of(config.mesh_device)
        self._lane_capacity = config.lane_capacity
        self._release = release
        self._checked: tuple[PreparedDecode, tuple[Any, Any, Any]] | None = None
        self._sets: dict[int, tuple[HostSlot, ...] | None] = {}

    def host_inputs(self, prepared: PreparedDecode) -> DecodeHostInputs:
        """Host tensors: tokens uint32 ``[1,1,1,32]`` zero padded, positions int32 ``[B]``, rotary uint32 ``[1,32]``
        clamped at 0, page table int32 ``[B,W]``. ValueError for a token of an active row that is no token id.
        """
        tokens, positions, rotary = self._staged_arrays(prepared)
        namespace = self._namespace
        tensor = namespace.Tensor
        return DecodeHostInputs(
            tensor(tokens, namespace.uint32),
            tensor(positions, namespace.int32),
            tensor(rotary, namespace.uint32),
            tensor(prepared.page_table.copy(), namespace.int32),
        )

    def refresh_all(self, prepared: PreparedDecode, inputs: DecodeDeviceInputs, staging_set: int) -> None:
        """Copy all inputs of a step into existing ones, through the host tensors of a staging set (-1: new ones)."""
        slots = self._slots_of(staging_set, prepared)
        if slots is None:
            self.copy(self.host_inputs(prepared).values(), inputs.values())
            return
        for slot, values in zip(slots, (*self._staged_arrays(prepared), prepared.page_table), strict=True):
            slot.elements[...] = values
        self.copy([slot.tensor for slot in slots], inputs.values())

    def refresh_page_table(self, prepared: PreparedDecode, inputs: DecodeDeviceInputs, staging_set: int) -> None:
        """As :meth:`refresh_all`, for the page table alone."""
        slots = self._slots_of(staging_set, prepared)
        if slots is None:
            table = self.host_page_table(prepared)
        else:
            slots[3].elements[...] = prepared.page_table
            table = slots[3].tensor
        self._namespace.copy_host_to_device_tensor(table, inputs.page_table)

    def _slots_of(self, staging_set: int, prepared: PreparedDecode) -> tuple[HostSlot, ...] | None:
        if staging_set < 0:
            return None
        if staging_set not in self._sets:
            # At the first refresh, because the table's width is final by then.
            self._sets[staging_set] = self._make_slots(prepared.page_table.shape)
        return self._sets[staging_set]

    def _make_slots(self, table: tuple[int, ...]) -> tuple[HostSlot, ...] | None:
        ns = self._namespace
        return host_slots(
            ns,
            ((1, 1, 1, TOKEN_ROWS), np.uint32, ns.uint32),
            ((self._lane_capacity,), np.int32, ns.int32),
            ((1, TOKEN_ROWS), np.uint32, ns.uint32),
            (table, np.int32, ns.int32),
        )

    def _staged_arrays(self, prepared: PreparedDecode) -> tuple[Any, Any, Any]:
        checked, self._checked = self._checked, None
        return checked[1] if checked and checked[0] is prepared else self._arrays(prepared)

    def check(self, prepared: PreparedDecode) -> None:
        """Refuse what cannot be staged before a step changes anything; the arrays serve its :meth:`host_inputs`."""
        self._checked = (prepared, self._arrays(prepared))

    def host_positions(self, prepared: PreparedDecode) -> tuple[Any, Any, Any]:
        """Host tensors of positions, rotary indices and page table, without a look at the tokens."""
        _, positions, rotary = self._arrays(replace(prepared, tokens=np.zeros(self._lane_capacity, np.int64)))
        namespace = self._namespace
        return (
            namespace.Tensor(positions, namespace.int32),
            namespace.Tensor(rotary, namespace.uint32),
            self.host_page_table(prepared),
        )

    def _arrays(self, prepared: PreparedDecode) -> tuple[Any, Any, Any]:
        tokens = np.empty((1, 1, 1, TOKEN_ROWS), np.uint32)
        positions = np.empty(self._lane_capacity, np.int32)
        rotary = np.empty((1, TOKEN_ROWS), np.uint32)
        stage = partial(stage_decode_inputs, out_tokens=tokens, out_positions=positions, out_rotary=rotary)
        try:
            stage(prepared.tokens, prepared.start_pos)
            return tokens, positions, rotary
        except (TypeError, ValueError):
            # Perhaps another kind of array than the core takes: convert below, or hear the same error.
            pass
        stage(
            device_index_array(prepared.tokens, name="tokens"),
            device_index_array(prepared.start_pos, name="start_pos"),
        )
        return tokens, positions, rotary

    def host_page_table(self, prepared: PreparedDecode) -> Any:
        """The host tensor of the page table alone."""
        return self._namespace.Tensor(prepared.page_table.copy(), self._namespace.int32)

    def host_kpt(self, prepared: PreparedDecode) -> tuple[Any, Any, Any] | None:
        """K uint32, P and inverse T bfloat16, each with one entry per sampler row; None off the top-k path."""
        sampling = prepared.prepared_sampling
        if prepared.sampling_path != "topk" or sampling is None:
            return None
        return self.host_kpt_rows(sampling)

    def host_kpt_rows(self, sampling: PreparedSamplingParams) -> tuple[Any, Any, Any]:
        """As :meth:`host_kpt`, for sampling rows that are known to need them."""
        namespace = self._namespace
        return (
            namespace.Tensor(np.array(sampling.top_k, np.uint32), namespace.uint32),
            namespace.Tensor(np.array(sampling.top_p, np.float32), namespace.bfloat16),
            namespace.Tensor(np.array(sampling.temperature, np.float32), namespace.bfloat16),
        )

    def host_values(self, prepared: PreparedDecode) -> HostValues:
        """All host tensors of one step: its inputs and its K/P/T."""
        return self.host_inputs(prepared), self.host_kpt(prepared)

    def stage(self, host: HostValues) -> tuple[DecodeDeviceInputs, tuple[Any, Any, Any] | None]:
        """Allocate the inputs of one step and its K/P/T; a failure releases what was allocated before it."""
        inputs = DecodeDeviceInputs(*self.allocate(host[0].values()))
        if host[1] is None:
            return inputs, None
        try:
            k, p, t = self.allocate(host[1])
        except BaseException as error:
            attach_cleanup_failures(error, self._release(inputs))
            raise
        return inputs, (k, p, t)

    def allocate(self, host_values: Sequence[Any]) -> tuple[Any, ...]:
        """Move host tensors to the device in order; on failure those moved before are released or retained."""
        allocated: list[Any] = []
        try:
            for host in host_values:
                allocated.append(self._namespace.to_device(host, device=self._mesh))
        except BaseException as error:
            attach_cleanup_failures(error, self._release(allocated))
            raise
        return tuple(allocated)

    def copy(self, host_values: Sequence[Any], device_values: Sequence[Any]) -> None:
        """Copy host tensors into existing device tensors, pair by pair."""
        copy = self._namespace.copy_host_to_device_tensor
        for host, device in zip(host_values, device_values, strict=True):
            copy(host, device)
