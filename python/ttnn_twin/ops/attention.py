# SPDX-License-Identifier: Apache-2.0
"""Softmax attention on arrays: causal in blocks of queries, and one query per row against a paged cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..tensor import Array
from .common import refuse
from .kv_cache import require_blocks

QUERY_BLOCK = 256
"""Queries per step: with 3 heads per key head and 4096 keys the scores of a step take 12 MiB."""


def attend(query: Array, key: Array, value: Array, out: Array, *, scale: float, start: int | None) -> None:
    """Write attention of ``query [H, S, hd]`` over ``key`` and ``value [K, T, hd]`` into ``out [H, S, hd]``.

    With ``start`` the mask is causal and query row i stands at position ``start + i``; without it every row sees
    every key. H is a multiple of K. A row that sees a key or value which is not finite becomes NaN, and no other
    row is touched by it: a masked element must not leak through a zero weight.
    """
    heads, rows, size = query.shape
    groups, length, _ = key.shape
    repeat = heads // groups
    block = min(QUERY_BLOCK, rows)
    scratch = np.empty(repeat * block * length, np.float32)
    for group in range(groups):
        keys, values, clean = _finite_prefix(key[group], value[group])
        mine = slice(group * repeat, (group + 1) * repeat)
        for first in range(0, rows, block):
            last = min(first + block, rows)
            seen = length if start is None else min(start + last, length)
            queries = query[mine, first:last] * np.float32(scale)
            scores = scratch[: repeat * (last - first) * seen].reshape(-1, seen)
            np.matmul(queries.reshape(-1, size), keys[:seen].T, out=scores)
            if start is not None:
                _mask_future(scores.reshape(repeat, last - first, seen), start + first)
            out[mine, first:last] = _weighted(scores, values[:seen]).reshape(repeat, last - first, size)
        if clean < length:
            out[mine, (0 if start is None else max(clean - start, 0)) :] = np.nan


def _finite_prefix(keys: Array, values: Array) -> tuple[Array, Array, int]:
    """Return keys and values with everything from the first row that is not finite on set to zero, and its index."""
    if np.isfinite(np.vdot(keys, keys)) and np.isfinite(np.vdot(values, values)):
        return keys, values, len(keys)
    finite = np.isfinite(keys).all(axis=1) & np.isfinite(values).all(axis=1)
    clean = len(keys) if finite.all() else int(finite.argmin())
    kept = np.arange(len(keys))[:, None] < clean
    return np.where(kept, keys, np.float32(0)), np.where(kept, values, np.float32(0)), clean


def _mask_future(scores: Array, first: int) -> None:
    """Set the scores ``[heads, rows, keys]`` of keys after each row to -inf; row 0 stands at position ``first``."""
    _, rows, seen = scores.shape
    if first + 1 < seen:
        later = np.arange(first, seen) > np.arange(first, first + rows)[:, None]
        np.copyto(scores[:, :, first:], np.float32(-np.inf), where=later)


def _weighted(scores: Array, values: Array) -> Array:
    """Return softmax of ``scores [n, T]`` (overwritten) times ``values [T, hd]``."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    result = scores @ values
    result /= scores.sum(axis=1, keepdims=True)
    weighted: Array = result
    return weighted


def gather_blocks(caches: Sequence[Array], blocks: Array) -> list[Array]:
    """Return the listed blocks of each cache ``[n, K, block, hd]`` as ``[K, len(blocks) * block, hd]``."""
    num_blocks, groups, block_size, size = caches[0].shape
    places = np.arange(groups)[:, None] + blocks * np.intp(groups)
    return [
        cache.reshape(num_blocks * groups, block_size * size).take(places, axis=0).reshape(groups, -1, size)
        for cache in caches
    ]


def attend_chunk(
    op: str, query: Array, key: Array, value: Array, table: Array, out: Array, *, scale: float, start: int
) -> None:
    """Write causal attention of ``query [B, H, S, hd]``, row i at position ``start + i``, over paged caches.

    Only blocks up to the last query are read. Query rows beyond the reach of the table see all of it.
    """
    num_blocks, _, block_size, _ = key.shape
    needed = min(table.shape[1], -(-(start + query.shape[2]) // block_size))
    for row in range(len(query)):
        blocks = table[row, :needed]
        require_blocks(op, blocks, row, num_blocks)
        keys, values = gather_blocks((key, value), blocks)
        attend(query[row], keys, values, out[row], scale=scale, start=start)


def attend_decode(
    op: str, query: Array, key: Array, value: Array, table: Array, positions: Array, out: Array, *, scale: float
) -> None:
    """Write attention of one query per row, ``query [B, H, hd]``, over positions 0 to ``positions[row]``.

    A row with a negative position gets zeros. A row reads no table entry after the one of its position.
    """
    num_blocks, groups, block_size, size = key.shape
    for row, position in enumerate(positions.tolist()):
        if position < 0:
            out[row] = 0
            continue
        needed = position // block_size + 1
        if needed > table.shape[1]:
            limit = table.shape[1] * block_size
            refuse(op, f"row {row}: position {position} is beyond the {limit} positions of its page table")
        blocks = table[row, :needed]
        require_blocks(op, blocks, row, num_blocks)
        keys, values = gather_blocks((key, value), blocks)
        queries = (query[row] * np.float32(scale)).reshape(groups, -1, size)
        scores = np.matmul(queries, keys[:, : position + 1].swapaxes(1, 2))
        scores -= np.maximum.reduce(scores, axis=2, keepdims=True)
        np.exp(scores, out=scores)
        scores /= np.add.reduce(scores, axis=2, keepdims=True)
        np.matmul(scores, values[:, : position + 1], out=out[row].reshape(groups, -1, size))
