# SPDX-License-Identifier: Apache-2.0
"""Immutable values of the decode runtime: inputs, a prepared step, results and capture plans.

Follows chapter 20, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from llm_runtime._core import DecodeBatch, DecodeProgramSignature, DecodeTraceSignature

if TYPE_CHECKING:
    from llm_runtime.prefill.sampling_helpers import PreparedSamplingParams

__all__ = [
    "DecodeCapturePlan",
    "DecodeDeviceInputs",
    "DecodeHostInputs",
    "DecodePersistentInputs",
    "DecodeProgramSignature",
    "DecodeRefreshPolicy",
    "DecodeTraceSignature",
    "InvocationResult",
    "PreparedDecode",
    "SamplingValues",
    "prepared_decode",
]


class SamplingValues(NamedTuple):
    """Device form of the sampling vectors of one step, one entry per sampler row."""

    top_k: tuple[int, ...]
    top_p: tuple[float, ...]
    temperature: tuple[float, ...]
    all_active_rows_greedy: bool


@dataclass(frozen=True, slots=True, eq=False)
class DecodeHostInputs:
    """Host tensors of a step: tokens ``[1,1,1,32]``, positions ``[B]``, rotary ``[1,32]``, page table ``[B,W]``."""

    tokens: Any
    positions: Any
    rotary_indices: Any
    page_table: Any

    def values(self) -> tuple[Any, Any, Any, Any]:
        """Return the four tensors in staging order."""
        return (self.tokens, self.positions, self.rotary_indices, self.page_table)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeDeviceInputs:
    """Device tensors of one step, in the order of :class:`DecodeHostInputs`."""

    tokens: Any
    positions: Any
    rotary_indices: Any
    page_table: Any

    def values(self) -> tuple[Any, Any, Any, Any]:
        """Return the four tensors in staging order."""
        return (self.tokens, self.positions, self.rotary_indices, self.page_table)

    def owned_tensor_values(self) -> tuple[Any, Any, Any, Any]:
        """Return what a release walk has to free: all four tensors."""
        return self.values()


@dataclass(frozen=True, slots=True, eq=False)
class PreparedDecode:
    """One decode step after validation; borrowed host values, nothing on the device yet.

    ``tokens`` and ``start_pos`` are the caller's own objects (integers, shape ``[B]``, a negative position marks an
    idle row); ``page_table`` is the normalised read-only int32 ``[B, W]`` table. ``reload_inputs`` is None when the
    refresh is to be inferred from ``reset_batch`` and the page table. Follows chapter 20, section 3.3.
    """

    tokens: Any
    start_pos: Any
    page_table: Any
    sampling_params: Any
    prepared_sampling: PreparedSamplingParams | None
    sampling_path: str
    reset_batch: bool
    device_feedback: bool
    page_table_changed: bool
    reload_inputs: bool | None = None
    reload_page_table: bool = False
    reload_sampling_params: bool = False
    reset_sampling_state: bool = False
    slot_remap: Any = None
    program_signature: DecodeProgramSignature | None = None
    batch: DecodeBatch | None = None

    @property
    def sampling_values(self) -> SamplingValues | None:
        """K, P and inverse temperature per sampler row, or None for a host-sampled step."""
        prepared = self.prepared_sampling
        if prepared is None:
            return None
        return SamplingValues(prepared.top_k, prepared.top_p, prepared.temperature, prepared.all_active_rows_greedy)

    @property
    def sampling_seeds(self) -> tuple[int | None, ...] | None:
        """Request seeds per sampler row, or None for a host-sampled step."""
        return None if self.prepared_sampling is None else self.prepared_sampling.seeds


class _PreparedDecodeDraft:
    """Mutable layout twin of :class:`PreparedDecode`, which each instance becomes.

    A frozen dataclass assigns each field through ``object.__setattr__``, which costs more than all other work of a
    steady step; a draft takes plain assignments and then changes its class, which has the same slots.
    """

    __slots__ = PreparedDecode.__slots__

    def __init__(
        self,
        tokens: Any,
        start_pos: Any,
        sampling_params: Any,
        prepared_sampling: PreparedSamplingParams | None,
        sampling_path: str,
        device_feedback: bool,
        reset_batch: bool,
        reload_inputs: bool | None,
        reload_page_table: bool,
        reload_sampling_params: bool,
        reset_sampling_state: bool,
        slot_remap: Any,
        program_signature: DecodeProgramSignature,
        batch: DecodeBatch,
    ) -> None:
        self.tokens = tokens
        self.start_pos = start_pos
        self.page_table = batch.page_table
        self.sampling_params = sampling_params
        self.prepared_sampling = prepared_sampling
        self.sampling_path = sampling_path
        self.reset_batch = reset_batch
        self.device_feedback = device_feedback
        self.page_table_changed = batch.page_table_changed
        self.reload_inputs = reload_inputs
        self.reload_page_table = reload_page_table
        self.reload_sampling_params = reload_sampling_params
        self.reset_sampling_state = reset_sampling_state
        self.slot_remap = slot_remap
        self.program_signature = program_signature
        self.batch = batch
        self.__class__ = PreparedDecode  # type: ignore[assignment]


#: Makes a :class:`PreparedDecode` for one normalised batch at the cost of sixteen plain assignments.
prepared_decode: Callable[..., PreparedDecode] = cast("Callable[..., PreparedDecode]", _PreparedDecodeDraft)


@dataclass(frozen=True, slots=True, eq=False)
class InvocationResult:
    """Raw output of one step, the tensor tree to release after reading it, and whether it holds token ids.

    ``owned`` is None when a trace owns everything.
    """

    value: Any
    owned: Any
    is_tokens: bool


@dataclass(frozen=True, slots=True)
class DecodeRefreshPolicy:
    """Which trace inputs an inferred replay copies again; the defaults are decode's rules."""

    every_replay: tuple[str, ...] = ("sampling",)
    full_on_batch_reset: bool = True
    full_on_graph_switch: bool = True
    full_without_device_feedback: bool = True
    refresh_page_table_on_change: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class DecodePersistentInputs:
    """Device tensors that a captured step reads and that a replay refreshes in place.

    ``kpt_signature`` is a one-element list that remembers the uploaded ``(k, p, t)`` tuples, so that equal values are
    not copied again. ``seed_buffer`` is borrowed: the model owns it and a release must not touch it.
    """

    device_inputs: DecodeDeviceInputs
    kpt: tuple[Any, Any, Any] | None
    kpt_signature: list[Any] | None
    seed_buffer: Any

    def owned_tensor_values(self) -> tuple[Any, Any]:
        """Return what a release walk has to free: the four inputs and K, P and T."""
        return (self.device_inputs, self.kpt)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeCapturePlan:
    """Callbacks with which a trace registry allocates, primes and captures one decode step."""

    prepare_inputs: Callable[[], DecodePersistentInputs]
    capture: Callable[[Any], Any]
    refresh_policy: DecodeRefreshPolicy = DecodeRefreshPolicy()
    prepare_capture: Callable[[Any], None] | None = None
    prime: Callable[[Any], Any] | None = None
    release_prime_output: Callable[[Any], list[BaseException]] | None = None
