# SPDX-License-Identifier: Apache-2.0
"""Where a request's last tokens are: one position, or one a row of a wave that is extracted row by row.

Their tensors are runtime values: another position makes no other device program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_runtime._core import PrefillRequest
from llm_runtime.prefill.device_copies import ReleaseTransient
from llm_runtime.prefill.input_values import PrefillPositionInputs
from llm_runtime.prefill.plan import last_token_offset, last_token_offsets
from llm_runtime.tensor_resources import attach_cleanup_failures

if TYPE_CHECKING:
    from llm_runtime.prefill.inputs import PrefillInputStager

LastTokens = int | tuple[int, ...]
#: The device side of :data:`LastTokens`, owned by whoever staged it.
PositionInputs = PrefillPositionInputs | tuple[PrefillPositionInputs, ...]


def last_tokens(request: PrefillRequest, *, by_row: bool) -> LastTokens:
    """What extraction asks for; ``by_row`` gives each physical row's position, 0 in padding rows."""
    if not by_row:
        return last_token_offset(request)
    offsets = last_token_offsets(request)
    return (*offsets, *[0] * (request.padded_batch_size - len(offsets)))


def stage_last_tokens(
    stager: PrefillInputStager, wanted: LastTokens, sequence_length: int, *, release: ReleaseTransient
) -> PositionInputs:
    """Upload the tensors of every position; what was made goes to ``release`` on failure."""
    if isinstance(wanted, int):
        return stager.stage_position_inputs(wanted, sequence_length)
    rows: list[PrefillPositionInputs] = []
    try:
        for offset in wanted:
            rows.append(stager.stage_position_inputs(offset, sequence_length))
    except BaseException as error:
        attach_cleanup_failures(error, release(rows))
        raise
    return tuple(rows)


def refresh_last_tokens(
    stager: PrefillInputStager,
    position_inputs: PositionInputs,
    wanted: LastTokens,
    sequence_length: int,
    *,
    known: LastTokens | None,
) -> None:
    """Copy the positions that differ from ``known``, which is what the tensors hold (``None``: nobody knows)."""
    for index, (offset, inputs) in enumerate(zip(_each(wanted), _each(position_inputs), strict=True)):
        if known is None or _each(known)[index] != offset:
            stager.refresh_position_inputs(inputs, offset, sequence_length)


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
