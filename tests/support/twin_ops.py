# SPDX-License-Identifier: Apache-2.0
"""Short ways to put arrays on a twin mesh and to read them back, for the tests of the ops."""

from __future__ import annotations

from typing import Any

import numpy as np

import ttnn_twin as ttnn

_TYPES = {"f": ttnn.bfloat16, "i": ttnn.int32, "u": ttnn.uint32}
_STORAGE = {"f": np.float32, "i": np.int32, "u": np.uint32}


def rows(mesh: ttnn.MeshDevice, values: Any, dtype: ttnn.DataType | None = None) -> ttnn.Tensor:
    """Return a row-major device tensor: bfloat16, int32 or uint32 after the kind of ``values``."""
    array = np.asarray(values)
    kind = array.dtype.kind
    host = ttnn.Tensor(np.array(array, _STORAGE[kind], order="C"), dtype or _TYPES[kind])
    return ttnn.to_device(host, mesh)


def tiles(
    mesh: ttnn.MeshDevice,
    values: Any,
    dtype: ttnn.DataType | None = None,
    memory: ttnn.MemoryConfig | None = None,
) -> ttnn.Tensor:
    """Return a tile-layout device tensor, placed by ``memory``."""
    array = np.asarray(values)
    kind = array.dtype.kind
    host = ttnn.Tensor(np.array(array, _STORAGE[kind], order="C"), dtype or _TYPES[kind])
    return ttnn.to_device(ttnn.to_layout(host, ttnn.TILE_LAYOUT), mesh, memory or ttnn.DRAM_MEMORY_CONFIG)


def read(tensor: ttnn.Tensor) -> np.ndarray:
    """Return the elements of a device tensor."""
    return tensor.cpu().to_numpy()


def height_shards(shape: tuple[int, int], cores: int) -> ttnn.MemoryConfig:
    """Return the memory config that puts one shard of ``shape`` on each of ``cores`` cores."""
    return ttnn.create_sharded_memory_config(
        shape,
        core_grid=ttnn.num_cores_to_corerangeset(cores, ttnn.CoreCoord(8, 8), True),
        strategy=ttnn.ShardStrategy.HEIGHT,
        orientation=ttnn.ShardOrientation.ROW_MAJOR,
        use_height_and_width_as_shard_shape=True,
    )


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normally distributed float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plain_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float, first: int | None
) -> np.ndarray:
    """Return attention ``[H, S, hd]`` by the textbook formula in float64; row i sees keys up to ``first + i``."""
    repeat = query.shape[0] // key.shape[0]
    keys, values = (np.repeat(side.astype(np.float64), repeat, axis=0) for side in (key, value))
    scores = np.einsum("hqd,hkd->hqk", query.astype(np.float64), keys) * scale
    if first is not None:
        later = np.arange(key.shape[1])[None, :] > first + np.arange(query.shape[1])[:, None]
        scores[:, later] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: np.ndarray = np.einsum("hqk,hkd->hqd", weights / weights.sum(axis=-1, keepdims=True), values)
    return result
