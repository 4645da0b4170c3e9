# SPDX-License-Identifier: Apache-2.0
"""Prompts of one `generate` call: padding is found and taken away. Follows chapter 40, section E.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime.host_arrays import host_array

__all__ = ["Prompts", "read_prompts"]


@dataclass(frozen=True)
class Prompts:
    """`given` is the call's array, int64 [rows, width] and our own copy; `rows` are the prompts without padding."""

    given: npt.NDArray[np.int64]
    rows: tuple[npt.NDArray[np.int64], ...]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each prompt."""
        return np.array([len(row) for row in self.rows], np.int64)


def read_prompts(
    input_ids: Any, attention_mask: Any, *, vocab_size: int, capacity: int, padding_id: int | None
) -> Prompts:
    """Check the call's arrays and cut the padding off.

    `input_ids` is int32 or int64 [rows, width], at most `capacity` rows; `attention_mask` of the same shape holds 1
    for tokens and 0 for padding, on the left or on the right of each row. Without a mask, rows may be padded with
    `padding_id`. `ValueError` naming the row, `TypeError` for arrays of another kind.
    """
    ids = _matrix(input_ids, "input_ids")
    rows, width = ids.shape
    if not rows or not width:
        raise ValueError(f"input_ids must not be empty, got shape {list(ids.shape)}")
    if rows > capacity:
        raise ValueError(f"input_ids has {rows} rows, the model was built for {capacity}")
    mask = _mask(ids, attention_mask, padding_id)
    prompts = tuple(_prompt(row, ids[row], mask[row]) for row in range(rows))
    for row, prompt in enumerate(prompts):
        outside = prompt[(prompt < 0) | (prompt >= vocab_size)]
        if len(outside):
            raise ValueError(f"row {row} of input_ids holds {outside[0]}, outside the vocabulary of {vocab_size}")
    return Prompts(ids.astype(np.int64), prompts)


def _matrix(value: Any, name: str) -> np.ndarray[Any, Any]:
    array = host_array(value, name=name)
    if array.ndim != 2:
        raise ValueError(f"{name} must have rank 2, got shape {list(array.shape)}")
    if name == "input_ids" and array.dtype not in (np.int32, np.int64):
        raise TypeError(f"input_ids must be int32 or int64, got {array.dtype}")
    return array


def _mask(ids: np.ndarray[Any, Any], attention_mask: Any, padding_id: int | None) -> npt.NDArray[np.bool_]:
    if attention_mask is None:
        return np.ones(ids.shape, bool) if padding_id is None else ids != padding_id
    mask = _matrix(attention_mask, "attention_mask")
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask has shape {list(mask.shape)}, input_ids {list(ids.shape)}")
    if mask.dtype.kind not in "iub" or not np.isin(mask, (0, 1)).all():
        raise ValueError("attention_mask must hold only 0 and 1")
    return mask.astype(bool)


def _prompt(row: int, ids: np.ndarray[Any, Any], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    places = np.flatnonzero(kept)
    if not len(places):
        raise ValueError(f"row {row} has no token, only padding")
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 != len(places):
        raise ValueError(f"row {row} has padding between its tokens; only left or right padding is possible")
    if first and last + 1 < len(ids):
        raise ValueError(f"row {row} is padded on both sides; only left or right padding is possible")
    prompt: npt.NDArray[np.int64] = ids[first : last + 1].astype(np.int64)
    return prompt
