# SPDX-License-Identifier: Apache-2.0
"""Device memory that a lane needs, counted before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_models.llama.config import LlamaConfig
from llm_models.llama.model_config import TILE_ROWS
from llm_models.llama.rope import rope_table_len

_TILE = TILE_ROWS * TILE_ROWS
_TILE_BYTES = {"bfloat16": 2 * _TILE, "bfloat8_b": 1088, "bfloat4_b": 576, "float32": 4 * _TILE}
_BFLOAT16_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes that stay allocated while a lane serves; inputs and activations of a call come on top."""

    weights: int
    rotary: int
    kv_cache: int
    penalties: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.rotary + self.kv_cache + self.penalties

    def __str__(self) -> str:
        penalties = f", token counts for penalties {_mib(self.penalties)}" if self.penalties else ""
        return (
            f"{_mib(self.total)} MiB on the device: weights {_mib(self.weights)}, KV cache {_mib(self.kv_cache)}, "
            f"rotary tables {_mib(self.rotary)}{penalties}"
        )


def device_memory(
    config: LlamaConfig,
    *,
    n_layers: int,
    max_seq_len: int,
    num_blocks: int,
    block_size: int,
    weight_dtype: str,
    kv_cache_dtype: str,
    penalties: bool = False,
) -> DeviceMemory:
    """What a lane of these sizes needs. The types are names of device types; norms and tables are bfloat16."""
    query, key = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    layer = config.dim * (query + 2 * key) + query * config.dim + 3 * config.dim * config.ffn_dim
    matrices = n_layers * layer + config.dim * config.vocab_size
    rows = config.vocab_size * config.dim + (2 * n_layers + 1) * config.dim
    cached = 2 * n_layers * num_blocks * key * -(-block_size // TILE_ROWS) * TILE_ROWS
    return DeviceMemory(
        weights=_tiles(matrices, weight_dtype) + _BFLOAT16_BYTES * rows,
        rotary=_BFLOAT16_BYTES * 2 * rope_table_len(max_seq_len) * config.head_dim,
        kv_cache=_tiles(cached, kv_cache_dtype),
        penalties=penalty_memory(config.vocab_size) if penalties else 0,
    )


def penalty_memory(vocab_size: int) -> int:
    """Bytes of `PenaltyTensors`: three over the vocabulary and five columns, float32 in tiles of the sampler's rows."""
    return _tiles((3 * -(-vocab_size // TILE_ROWS) + 5) * _TILE, "float32")


def free_memory(namespace: Any, mesh_device: Any) -> int | None:
    """Bytes of device memory that are free on one device of the mesh; `None` where nothing limits it (the twin)."""
    view_of = getattr(namespace, "get_memory_view", None)
    if view_of is None:
        return None
    view = view_of(mesh_device, namespace.BufferType.DRAM)
    return int(view.total_bytes_free_per_bank * view.num_banks)


def require_memory(needed: DeviceMemory, namespace: Any, mesh_device: Any) -> None:
    """`ValueError` naming both figures when the device has too little left."""
    free = free_memory(namespace, mesh_device)
    if free is not None and needed.total > free:
        raise ValueError(f"the lane needs {needed}; {_mib(free)} MiB are free")


def _tiles(elements: int, dtype: str) -> int:
    return elements // _TILE * _TILE_BYTES[dtype]


def _mib(count: int) -> int:
    return -(-count // 2**20)
