# SPDX-License-Identifier: Apache-2.0
"""Per-request sampling parameters as a caller gives them, and as rows for the device.

Follows chapter 20, section 10.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, cast

from llm_runtime._core import SamplingRows, copied_fields

SamplingPath = Literal["logits", "argmax", "topk"]

_REQUIRED_FIELDS = ("temperature", "top_k", "top_p")

_FIELD_NAMES: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class SamplingParams:
    """What a caller asks of the sampler; every field is one value or one value per row.

    A field is a scalar, a list, a tuple or an array. Any dataclass with ``temperature``, ``top_k`` and
    ``top_p`` is accepted in its place, so a server's own type works.
    """

    temperature: Any
    top_k: Any
    top_p: Any
    presence_penalty: Any = 0.0
    frequency_penalty: Any = 0.0
    repetition_penalty: Any = 1.0
    seed: Any = None
    enable_log_probs: Any = False
    num_logprobs: Any = 0


class _MadeWhenAsked:
    """Slots of rows that the core normalised: their columns, and a token history, are made when first asked for."""

    __slots__ = ("_history", "_rows")

    _history: Callable[[str], Any] | None
    _rows: SamplingRows | None

    def __getattr__(self, name: str) -> Any:
        # Reached only for a slot that nobody has filled.
        if name in ("_rows", "_history"):
            return None
        if name in NEUTRAL_ROW and self._rows is not None:
            value: Any = self._rows.column(name)
        elif name in ("prompt_tokens", "output_tokens") and self._history is not None:
            value = self._history(name)
        else:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        object.__setattr__(self, name, value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSamplingParams(_MadeWhenAsked):
    """Device-ready sampling rows: ``batch_size`` entries per tuple, neutral values in inactive rows.

    ``temperature`` is the inverse temperature; a greedy row is ``k=1, p=0.0, t=1.0``. Row order is request
    order until :func:`~llm_runtime.prefill.sampling_helpers.place_sampling_in_slots` moves it. The history
    and the slot remap are borrowed from the caller and take no part in equality.
    """

    top_k: tuple[int, ...]
    top_p: tuple[float, ...]
    temperature: tuple[float, ...]
    presence_penalty: tuple[float, ...]
    frequency_penalty: tuple[float, ...]
    repetition_penalty: tuple[float, ...]
    seeds: tuple[int | None, ...]
    enable_log_probs: tuple[bool, ...]
    num_logprobs: tuple[int, ...]
    logprob_modes: tuple[str, ...]
    greedy_mask: tuple[bool, ...]
    row_paths: tuple[str, ...]
    active_mask: tuple[bool, ...]
    sampling_path: SamplingPath
    active_rows: int
    batch_size: int
    max_device_top_k: int
    prompt_tokens: Any = field(default=None, compare=False)
    output_tokens: Any = field(default=None, compare=False)
    slot_remap: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.active_rows <= self.batch_size:
            raise ValueError(f"active_rows must be in 1..{self.batch_size}, got {self.active_rows}")
        for name in _ROW_FIELDS:
            if len(getattr(self, name)) != self.batch_size:
                raise ValueError(f"{name} has {len(getattr(self, name))} rows, batch_size is {self.batch_size}")
        if self.active_mask.count(True) != self.active_rows:
            raise ValueError(
                f"active_mask marks {self.active_mask.count(True)} rows, active_rows is {self.active_rows}"
            )

    @property
    def penalties_enabled(self) -> bool:
        """True when any active row changes a penalty from its neutral value."""
        if self._rows is not None:
            return self._rows.penalties_enabled
        repetition = self.repetition_penalty
        return any(self.presence_penalty) or any(self.frequency_penalty) or repetition.count(1.0) < len(repetition)

    @property
    def log_probs_enabled(self) -> bool:
        """True when any active row wants log-probabilities."""
        # The core leaves log-probabilities to the caller.
        return self._rows is None and True in self.enable_log_probs

    @property
    def all_active_rows_greedy(self) -> bool:
        """True when every active row has temperature 0."""
        if self._rows is not None:
            return self._rows.all_greedy
        return self.greedy_mask.count(True) == self.active_rows

    @property
    def all_active_rows_argmax(self) -> bool:
        """True when every active row may take the argmax path."""
        if self._rows is not None:
            return self._rows.all_argmax
        return self.row_paths.count("argmax") == self.active_rows


class _PreparedSamplingDraft(_MadeWhenAsked):
    """Mutable layout twin of :class:`PreparedSamplingParams`, which each instance becomes; its columns stay unmade."""

    __slots__ = PreparedSamplingParams.__slots__

    def __init__(
        self, rows: SamplingRows, batch_size: int, max_device_top_k: int, slot_remap: Any, history: Any
    ) -> None:
        self._rows = rows
        self.sampling_path = "argmax" if rows.all_argmax else "topk"
        self.active_rows = rows.active_rows
        self.batch_size = batch_size
        self.max_device_top_k = max_device_top_k
        self.slot_remap = slot_remap
        if history is None:
            self.prompt_tokens = self.output_tokens = None
        else:
            self._history = history
        self.__class__ = PreparedSamplingParams  # type: ignore[assignment]


#: Makes :class:`PreparedSamplingParams` over the core's rows, with a callable that makes a token history by name.
prepared_sampling: Callable[..., PreparedSamplingParams] = cast(
    "Callable[..., PreparedSamplingParams]", _PreparedSamplingDraft
)

_ROW_FIELDS = (
    "top_k",
    "top_p",
    "temperature",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seeds",
    "enable_log_probs",
    "num_logprobs",
    "logprob_modes",
    "greedy_mask",
    "row_paths",
    "active_mask",
)

#: The value of each row field in a row that nobody uses.
NEUTRAL_ROW: dict[str, Any] = {
    "top_k": 1,
    "top_p": 0.0,
    "temperature": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seeds": None,
    "enable_log_probs": False,
    "num_logprobs": 0,
    "logprob_modes": "none",
    "greedy_mask": False,
    "row_paths": "inactive",
    "active_mask": False,
}


def plain_value(value: Any) -> Any:
    """Turn an array into a Python scalar (0-d) or a flat list; leave everything else as it is."""
    if isinstance(value, (list, tuple, int, float)) or value is None or not hasattr(value, "tolist"):
        return value
    if getattr(value, "ndim", 0) == 0:
        return value.tolist()
    return value.reshape(-1).tolist()


def require_sampling_dataclass(params: Any) -> None:
    """Refuse anything but a dataclass instance with the three required fields (TypeError)."""
    if not sampling_field_names(type(params)):
        raise TypeError(f"sampling_params must be a dataclass instance, got {type(params).__name__}")
    missing = [name for name in _REQUIRED_FIELDS if not hasattr(params, name)]
    if missing:
        raise TypeError(f"sampling_params of type {type(params).__name__} has no field {', '.join(missing)}")


def sampling_field_names(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass, none for any other type. Cached: it is asked for every request."""
    names = _FIELD_NAMES.get(kind)
    if names is None:
        names = tuple(item.name for item in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
        _FIELD_NAMES[kind] = names
    return names


_FIELD_READERS: weakref.WeakKeyDictionary[type, Callable[[Any], tuple[Any, ...]] | None] = weakref.WeakKeyDictionary()


def plain_fields(params: Any) -> tuple[Any, ...] | None:
    """The field values of parameters in the order of :class:`SamplingParams`, lists copied.

    ``None`` for a type that has other fields; its parameters are normalised field by field. The core reads the values
    (``normalise_sampling``) and says in its turn when they are not plain numbers.
    """
    kind = type(params)
    try:
        read = _FIELD_READERS[kind]
    except KeyError:
        read = _FIELD_READERS[kind] = _field_reader(kind)
    if read is None:
        return None
    return copied_fields(read(params))


def with_fields(params: Any, fields: tuple[Any, ...]) -> Any:
    """A copy of ``params`` that holds ``fields``, which :func:`plain_fields` read."""
    return dataclasses.replace(params, **dict(zip(sampling_field_names(SamplingParams), fields, strict=True)))


def _field_reader(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    names = sampling_field_names(SamplingParams)
    return attrgetter(*names) if set(sampling_field_names(kind)) == set(names) else None
