# SPDX-License-Identifier: Apache-2.0
"""Writes into paged key/value caches ``[blocks, K, block, hd]``, strict about every page-table entry."""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np

from ..dispatch import dispatch
from ..dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, TILE_SIZE, bfloat16, float32, int32, uint32
from ..mesh import MeshDevice
from ..tensor import Array, Buffer, Tensor
from .common import (
    FLOATS,
    refuse,
    require_dtype,
    require_layout,
    require_rank,
    require_tensors,
    round_up,
    share,
)

SKIP = -1
"""Page-table entry of a fill that writes nothing."""


class _Ledger:
    """Reports writes of one cache to the ledger of its mesh, without keeping the cache alive."""

    def __init__(self, cache: Tensor, kind: str) -> None:
        mesh, buffer = cache._mesh, cache._buffer
        assert mesh is not None and buffer is not None
        self._mesh: MeshDevice = mesh
        self._buffer: weakref.ref[Buffer] = weakref.ref(buffer)
        self._kind = kind

    def note(self, blocks: Array, offsets: Array, positions: Array) -> None:
        """Record one write per token slot."""
        ledger, buffer = self._mesh.ledger, self._buffer()
        if not ledger.enabled or buffer is None:
            return
        cache = Tensor._on_device(self._mesh, buffer)
        for block, offset, position in zip(blocks.tolist(), offsets.tolist(), positions.tolist(), strict=True):
            ledger.record(cache, block=block, offset=offset, position=position, kind=self._kind)


def require_cache(op: str, name: str, cache: Tensor) -> None:
    """Refuse a tensor that cannot be a paged cache."""
    require_layout(op, name, cache, TILE_LAYOUT)
    require_dtype(op, name, cache, FLOATS)
    require_rank(op, name, cache, 4)


def require_page_table(op: str, name: str, table: Tensor) -> None:
    """Refuse a tensor that is no int32 row-major table of two dimensions."""
    require_dtype(op, name, table, {int32})
    require_layout(op, name, table, ROW_MAJOR_LAYOUT)
    require_rank(op, name, table, 2)


def require_blocks(op: str, entries: Array, row: int, num_blocks: int) -> None:
    """Refuse page-table entries of ``row`` that name no block."""
    # As unsigned numbers negative entries are the largest: one reduction finds either fault.
    if entries.size and np.maximum.reduce(entries.view(np.uint32)) >= num_blocks:
        column = int((entries.view(np.uint32) >= num_blocks).argmax())
        entry = int(entries[column])
        refuse(op, f"page table row {row}, column {column}: block {entry} is outside [0, {num_blocks - 1}]")


def paged_fill_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    page_table: Tensor,
    *,
    batch_idx: int = 0,
    batch_idx_tensor: Tensor | None = None,
) -> Tensor:
    """Write rows ``[n, K, S, hd]`` of a prefill into the blocks of their page-table rows, from column 0 on.

    Without ``batch_idx_tensor`` (int32 or uint32 ``[n]``: the table row of each input row) n is 1 and the table
    row is ``batch_idx``. An entry of -1 writes nothing. The result shares the memory of the cache. Follows chapter
    40, section F.3, step 2f.

    Raises:
        RuntimeError: shapes or types are not accepted, or the table covers less than S; when the op runs, an entry
            is below -1 or no block, or two entries of a row name one block. Nothing is written then.
    """
    op = "paged_fill_cache"
    operands = {"cache_tensor": cache_tensor, "input_tensor": input_tensor, "page_table": page_table}
    require_tensors(op, **operands)
    require_cache(op, "cache_tensor", cache_tensor)
    require_page_table(op, "page_table", page_table)
    require_layout(op, "input_tensor", input_tensor, TILE_LAYOUT)
    require_dtype(op, "input_tensor", input_tensor, {cache_tensor.dtype})
    require_rank(op, "input_tensor", input_tensor, 4)
    num_blocks, kv_heads, block_size, size = cache_tensor.shape
    if (input_tensor.shape[1], input_tensor.shape[3]) != (kv_heads, size):
        refuse(op, f"input_tensor {list(input_tensor.shape)} for a cache {list(cache_tensor.shape)}")
    covered = page_table.shape[1] * block_size
    if input_tensor.shape[2] > covered:
        refuse(op, f"{input_tensor.shape[2]} tokens; the page table covers {covered}: cut the input first")
    reads = [input_tensor, page_table]
    if batch_idx_tensor is not None:
        require_tensors(op, batch_idx_tensor=batch_idx_tensor)
        require_dtype(op, "batch_idx_tensor", batch_idx_tensor, {int32, uint32})
        require_layout(op, "batch_idx_tensor", batch_idx_tensor, ROW_MAJOR_LAYOUT)
        if batch_idx_tensor.shape != input_tensor.shape[:1]:
            refuse(op, f"batch_idx_tensor {list(batch_idx_tensor.shape)}; one entry per input row is needed")
        reads.append(batch_idx_tensor)
    elif input_tensor.shape[0] != 1:
        refuse(op, f"input_tensor has {input_tensor.shape[0]} rows; without batch_idx_tensor 1 is needed")
    elif not 0 <= batch_idx < page_table.shape[0]:
        refuse(op, f"batch_idx {batch_idx} for a page table of {page_table.shape[0]} rows")
    ledger, one_row = _Ledger(cache_tensor, "fill"), batch_idx_tensor is None

    def kernel(_made: list[Array], read: list[Array], written: list[Array]) -> None:
        rows, table, cache = read[0], read[1], written[0]
        targets = [batch_idx] if one_row else [int(row) for row in read[2]]
        width = -(-rows.shape[2] // block_size)
        columns = [_fill_columns(table, target, width, num_blocks) for target in targets]
        for source, target, used in zip(rows, targets, columns, strict=True):
            _fill_row(cache, source, used, table[target, used], ledger)

    dispatch(
        op,
        reads=reads,
        kernel=kernel,
        writes=(cache_tensor,),
        attributes=(one_row,),
        exact_writes=True,
    )
    return share(cache_tensor)


def _fill_columns(table: Array, row: int, width: int, num_blocks: int) -> Array:
    op = "paged_fill_cache"
    if not 0 <= row < table.shape[0]:
        refuse(op, f"batch index {row} for a page table of {table.shape[0]} rows")
    entries = table[row, :width]
    require_blocks(op, np.where(entries == SKIP, 0, entries), row, num_blocks)
    used: Array = np.flatnonzero(entries != SKIP)
    order = np.argsort(entries[used], kind="stable")
    blocks = entries[used][order]
    twice = np.flatnonzero(blocks[1:] == blocks[:-1])
    if twice.size:
        first, second = used[order[twice[0]]], used[order[twice[0] + 1]]
        refuse(op, f"page table row {row}: columns {first} and {second} both name block {blocks[twice[0]]}")
    return used


def _fill_row(cache: Array, source: Array, columns: Array, blocks: Array, ledger: _Ledger) -> None:
    kv_heads, rows, size = source.shape
    block_size = cache.shape[2]
    whole = rows // block_size
    full = columns < whole
    if full.any():
        parts = source[:, : whole * block_size].reshape(kv_heads, whole, block_size, size)
        cache[blocks[full]] = parts[:, columns[full]].transpose(1, 0, 2, 3)
    if not full.all():
        cache[blocks[-1], :, : rows - whole * block_size] = source[:, whole * block_size :]
    positions = (columns[:, None] * block_size + np.arange(block_size)).reshape(-1)
    kept = positions < rows
    offsets = np.tile(np.arange(block_size), columns.size)
    ledger.note(np.repeat(blocks, block_size)[kept], offsets[kept], positions[kept])


def paged_update_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    *,
    update_idxs_tensor: Tensor | None = None,
    page_table: Tensor | None = None,
) -> Tensor:
    """Write one token per row: sharded ``[1, B, K, hd]`` at positions int32 ``[B]`` through tables int32 ``[B, W]``.

    A negative position writes nothing. Heads of the input beyond those of the cache are padding. The result shares
    the memory of the cache. Follows chapter 40, section F.2, step 3g.

    Raises:
        RuntimeError: shapes, types or placement are not accepted; when the op runs, a position is beyond its table
            row or its entry names no block. Nothing is written then.
    """
    op = "paged_update_cache"
    require_tensors(
        op,
        cache_tensor=cache_tensor,
        input_tensor=input_tensor,
        update_idxs_tensor=update_idxs_tensor,
        page_table=page_table,
    )
    assert update_idxs_tensor is not None and page_table is not None
    require_cache(op, "cache_tensor", cache_tensor)
    require_page_table(op, "page_table", page_table)
    require_dtype(op, "update_idxs_tensor", update_idxs_tensor, {int32})
    require_layout(op, "update_idxs_tensor", update_idxs_tensor, ROW_MAJOR_LAYOUT)
    require_dtype(op, "input_tensor", input_tensor, {bfloat16, float32})
    require_rank(op, "input_tensor", input_tensor, 4)
    if not input_tensor.is_sharded():
        refuse(op, "input_tensor is INTERLEAVED; a sharded tensor is needed")
    num_blocks, kv_heads, block_size, size = cache_tensor.shape
    one, rows, heads, width = input_tensor.shape
    if one != 1 or width != size or heads not in (kv_heads, round_up(kv_heads, TILE_SIZE)):
        refuse(op, f"input_tensor {list(input_tensor.shape)} for a cache {list(cache_tensor.shape)}")
    if update_idxs_tensor.shape != (rows,):
        refuse(op, f"update_idxs_tensor {list(update_idxs_tensor.shape)} for {rows} rows")
    if page_table.shape[0] != rows:
        refuse(op, f"page_table has {page_table.shape[0]} rows, input_tensor {rows}")
    kernel = partial(_update, block_size=block_size, num_blocks=num_blocks, ledger=_Ledger(cache_tensor, "update"))
    dispatch(
        op,
        reads=(input_tensor, update_idxs_tensor, page_table),
        kernel=kernel,
        writes=(cache_tensor,),
        exact_writes=True,
    )
    return share(cache_tensor)


def _update(
    _made: list[Array],
    read: list[Array],
    written: list[Array],
    *,
    block_size: int,
    num_blocks: int,
    ledger: _Ledger,
) -> None:
    op = "paged_update_cache"
    tokens, positions, table = read
    cache = written[0]
    active = np.flatnonzero(positions >= 0)
    at = positions[active]
    columns = at // block_size
    beyond = np.flatnonzero(columns >= table.shape[1])
    if beyond.size:
        row = int(active[beyond[0]])
        limit = table.shape[1] * block_size
        refuse(op, f"row {row}: position {positions[row]} is beyond the {limit} positions of its page table")
    blocks = table[active, columns]
    wrong = np.flatnonzero((blocks < 0) | (blocks >= num_blocks))
    if wrong.size:
        first = int(wrong[0])
        where = f"page table row {active[first]}, column {columns[first]}"
        refuse(op, f"{where}, position {at[first]}: block {blocks[first]} is outside [0, {num_blocks - 1}]")
    offsets = at % block_size
    cache[blocks, :, offsets] = tokens[0, active, : cache.shape[1]]
    ledger.note(blocks, offsets, at)
