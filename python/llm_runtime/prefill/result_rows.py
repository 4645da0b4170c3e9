# SPDX-License-Identifier: Apache-2.0
"""Which row of an output holds a request's token: the one place that says so.

==================  ==========================  =========================
request             eager                       traced
==================  ==========================  =========================
single, whole tile  tile row of the last token  the same
single, other       row 0 (gathered on device)  row 0 (gathered on device)
batched             the request's wave row      the same
batched, per row    row 0 of its own (gathered) the same
chunked, sampled    row 0 (gathered on device)  row 0 (gathered on device)
chunked, logits     tile row of the last token  row 0 (gathered on device)
==================  ==========================  =========================

"Whole tile" is the static form for sampled prompts of the 128 bucket; "per row" is a wave whose model
cannot extract all rows at once. Everything else gathers the row on the device by runtime tensors, so that
no position makes a new device program after traces are captured. An eager chunk leaves the tile to the host
because every chunk of a sequence, also one that does not hold the last token, runs the same program.
"""

from __future__ import annotations

from llm_runtime._core import PrefillRequest
from llm_runtime.prefill.plan import _TILE_SIZE
from llm_runtime.prefill.sampling_params import SamplingPath

Q128_SEQUENCE_LENGTH = 128


def uses_static_q128_topk(request: PrefillRequest, path: SamplingPath, *, supported: bool) -> bool:
    """Whether the sampler runs over the whole 32-row tile of a regular single request of the 128 bucket."""
    return (
        supported
        and path == "topk"
        and request.kind == "single"
        and not request.uses_chunked_prefill
        and request.padded_sequence_length == Q128_SEQUENCE_LENGTH
    )


def gathers_last_token(
    request: PrefillRequest, path: SamplingPath, *, static_q128_supported: bool, batched_extract: bool
) -> bool:
    """Whether a regular or traced finish reads the position tensors to bring the last token to row 0."""
    if request.kind == "batched":
        return not batched_extract
    return not uses_static_q128_topk(request, path, supported=static_q128_supported)


def tile_row(request: PrefillRequest, row: int) -> int:
    """Row of the last token inside its 32-row tile. Cached offsets and chunks are whole tiles or are
    subtracted."""
    return int(request.last_token_indices[row] - request.cached_tokens[row]) % _TILE_SIZE


def sampled_row(request: PrefillRequest, row: int, *, whole_tile: bool) -> int:
    """Row of the sampler's output that belongs to active row ``row`` of ``request``."""
    if request.kind == "batched":
        return row
    return tile_row(request, 0) if whole_tile else 0


def logits_row(request: PrefillRequest, row: int, *, traced: bool, per_row: bool) -> int:
    """Row of a logits output (of that row's own one, when ``per_row``) for active row ``row``."""
    if request.kind == "batched":
        return 0 if per_row else row
    if request.uses_chunked_prefill and not traced:
        return tile_row(request, 0)
    return 0
