# SPDX-License-Identifier: Apache-2.0
"""Per-request sampling parameters as a caller gives them, and as rows for the device.

Follows chapter 20, section 10.
"""

from __future__ import annotations

import dataclasses
import weakref
from dataclasses import dataclass, field
from typing import Any, Literal

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSamplingParams:
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
        repetition = self.repetition_penalty
        return any(self.presence_penalty) or any(self.frequency_penalty) or repetition.count(1.0) < len(repetition)

    @property
    def log_probs_enabled(self) -> bool:
        """True when any active row wants log-probabilities."""
        return True in self.enable_log_probs

    @property
    def all_active_rows_greedy(self) -> bool:
        """True when every active row has temperature 0."""
        return self.greedy_mask.count(True) == self.active_rows

    @property
    def all_active_rows_argmax(self) -> bool:
        """True when every active row may take the argmax path."""
        return self.row_paths.count("argmax") == self.active_rows


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
