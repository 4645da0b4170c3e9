# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings: device tables of cosines and sines, looked up by position. Follows chapter 40, B.1 and F."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.llama.model_config import TILE_ROWS
from llm_models.llama.weights import upload
from llm_runtime.device import namespace_of
from llm_runtime.tensor_resources import best_effort_deallocate_owned_tensors, raise_cleanup_failures

MIN_TABLE_LEN = 8192
TABLE_ALIGNMENT = 128
DECODE_GRID = (8, 8)


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Frequencies and table size. `table_len` counts positions; `rope_factors` divide the frequencies."""

    head_dim: int
    rope_theta: float
    rope_factors: tuple[float, ...] | None
    max_batch_size: int
    table_len: int
    mesh_device: Any

    def __post_init__(self) -> None:
        if self.head_dim % TILE_ROWS:
            raise ValueError(f"head_dim must be a multiple of {TILE_ROWS} on the device, got {self.head_dim}")


def rope_table_len(max_seq_len: int) -> int:
    """Positions in the device tables for a context of `max_seq_len` tokens."""
    wanted = max(2 * max_seq_len, MIN_TABLE_LEN)
    return -(-wanted // TABLE_ALIGNMENT) * TABLE_ALIGNMENT


class RopeSetup:
    """Owns the tables and the two constant matrices that swap the halves of each rotary pair.

    `cos_matrix` and `sin_matrix` are [1, 1, table_len, head_dim], each value twice (pair order); they and the
    matrices exist after `load_device_weights`, before it they are `None`.
    """

    def __init__(self, config: RopeConfig) -> None:
        self.config = config
        self.cos_matrix: Any = None
        self.sin_matrix: Any = None
        self.prefill_transform: Any = None
        self.decode_transform: Any = None
        self._ns = namespace_of(config.mesh_device)
        self._owned: list[Any] = []
        self._released: set[int] = set()

    def load_device_weights(self) -> None:
        """Upload the tables and matrices; does nothing when they are there. After a failure it can be repeated."""
        if self.cos_matrix is not None:
            return
        ns, mesh = self._ns, self.config.mesh_device
        if self._owned:
            self.release()
        cos, sin = _tables(self.config)
        swap = _pair_swap()[None, None]
        batch = self.config.max_batch_size

        def own(tensor: Any) -> Any:
            self._owned.append(tensor)
            return tensor

        tables = [own(upload(ns, mesh, table, layout=ns.ROW_MAJOR_LAYOUT, dtype=ns.bfloat16)) for table in (cos, sin)]
        prefill = own(upload(ns, mesh, swap, layout=ns.TILE_LAYOUT, dtype=ns.bfloat16))
        repeated = upload(ns, mesh, np.tile(swap, (1, 1, batch, 1)), layout=ns.TILE_LAYOUT, dtype=ns.bfloat16)
        try:
            decode = own(ns.interleaved_to_sharded(repeated, height_shards(ns, (TILE_ROWS, TILE_ROWS), batch)))
        finally:
            ns.deallocate(repeated)
        self.prefill_transform, self.decode_transform = prefill, decode
        self.cos_matrix, self.sin_matrix = tables

    def prefill_forward(self, position_indices: Any) -> tuple[Any, Any]:
        """Cosines and sines [1, 1, positions, head_dim] for uint32 [1, positions]; owned by the caller.

        When the second lookup fails, the first result is freed.
        """
        self.load_device_weights()
        return self._both(position_indices, lambda rows: rows)

    def decode_forward(self, rotary_indices: Any) -> tuple[Any, Any]:
        """Cosines and sines [1, batch, 1, head_dim], height-sharded, for uint32 [1, 32 * k]; owned by the caller."""
        self.load_device_weights()
        ns, batch, width = self._ns, self.config.max_batch_size, self.config.head_dim
        shards = height_shards(ns, (TILE_ROWS, width), batch)

        def to_slots(rows: Any) -> Any:
            slots = ns.transpose(rows, 1, 2)
            ns.deallocate(rows)
            if slots.shape[1] != batch:
                cut = ns.slice(slots, (0, 0, 0, 0), (1, batch, 1, width))
                ns.deallocate(slots)
                slots = cut
            sharded = ns.interleaved_to_sharded(slots, shards)
            ns.deallocate(slots)
            return sharded

        return self._both(rotary_indices, to_slots)

    def release(self) -> None:
        """Free the device tensors; they can be loaded again. Idempotent, and retryable after a failure."""
        self.cos_matrix = self.sin_matrix = self.prefill_transform = self.decode_transform = None
        failures = best_effort_deallocate_owned_tensors(self._owned, self._released)
        if failures:
            raise_cleanup_failures(failures)
        self._owned.clear()
        self._released.clear()

    def _both(self, indices: Any, finish: Any) -> tuple[Any, Any]:
        ns = self._ns

        def look_up(table: Any) -> Any:
            return finish(ns.unsqueeze_to_4D(ns.embedding(indices, table, layout=ns.TILE_LAYOUT)))

        cos = look_up(self.cos_matrix)
        try:
            return cos, look_up(self.sin_matrix)
        except BaseException:
            ns.deallocate(cos)
            raise


def height_shards(ns: Any, shape: tuple[int, int], cores: int) -> Any:
    """The memory config that puts one shard of `shape` on each of `cores` cores."""
    return ns.create_sharded_memory_config(
        shape,
        core_grid=ns.num_cores_to_corerangeset(cores, ns.CoreCoord(*DECODE_GRID), True),
        strategy=ns.ShardStrategy.HEIGHT,
        orientation=ns.ShardOrientation.ROW_MAJOR,
        use_height_and_width_as_shard_shape=True,
    )


def _tables(config: RopeConfig) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    frequencies = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    if config.rope_factors is not None:
        frequencies = frequencies / np.asarray(config.rope_factors)
    angles = np.repeat(np.arange(config.table_len)[:, None] * frequencies, 2, axis=1)[None, None]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _pair_swap() -> npt.NDArray[np.float32]:
    """The matrix with (a, b) @ m = (-b, a) for every pair of a tile row."""
    swap = np.zeros((TILE_ROWS, TILE_ROWS), np.float32)
    even = np.arange(0, TILE_ROWS, 2)
    swap[even + 1, even] = -1.0
    swap[even, even + 1] = 1.0
    return swap
