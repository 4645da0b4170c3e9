# SPDX-License-Identifier: Apache-2.0
"""Configurations of the parts of a Llama on one mesh. Follows chapter 40, sections B.1 and B.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TILE_ROWS = 32
MAX_BATCH_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class PagedAttentionConfig:
    """Geometry of the paged KV cache: tokens per block, and blocks at most."""

    block_size: int
    max_num_blocks: int


@dataclass(kw_only=True)
class AttentionConfig:
    """One layer's attention and what is bound to it.

    The live module reads this very object, so a binding made here is the module's binding. `kv_cache` (borrowed) is
    the layer's key and value cache, or `None`; `kv_cache_dtype` is the device type it must have.
    """

    n_heads: int
    n_kv_heads: int
    n_local_kv_heads: int
    head_dim: int
    max_batch_size: int
    kv_cache_dtype: Any
    paged_attention_config: PagedAttentionConfig
    decode_input_memcfg: Any
    use_vllm_paged_kv_cache: bool = True
    kv_cache: tuple[Any, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One transformer layer."""

    attention_config: AttentionConfig


@dataclass(frozen=True, kw_only=True)
class ModuleConfig:
    """A module without a configuration of its own: the memory config that its decode input has."""

    decode_input_memcfg: Any


@dataclass(frozen=True, kw_only=True)
class LlamaModelConfig:
    """What the runtime reads about a model. Lengths are in tokens; `mesh_device` is borrowed.

    These are facts for any number of devices; whether a model's body runs on so many is for its construction to say.
    """

    mesh_device: Any
    num_devices: int
    max_batch_size: int
    max_seq_len: int
    dim: int
    n_layers: int
    vocab_size: int
    block_configs: tuple[BlockConfig, ...]

    def __post_init__(self) -> None:
        for name in ("num_devices", "max_batch_size", "max_seq_len", "dim", "n_layers", "vocab_size"):
            require_positive_int(name, getattr(self, name))
        if self.max_batch_size > MAX_BATCH_SIZE:
            raise ValueError(f"max_batch_size {self.max_batch_size} is above {MAX_BATCH_SIZE}")
        if len(self.block_configs) != self.n_layers:
            raise ValueError(f"{len(self.block_configs)} block configs for {self.n_layers} layers")

    @property
    def padded_vocab_size(self) -> int:
        """Columns of the output head over all devices: the vocabulary in whole tiles on each of them."""
        step = TILE_ROWS * self.num_devices
        return -(-self.vocab_size // step) * step


def local_kv_heads(n_kv_heads: int, num_devices: int) -> int:
    """KV heads that one device holds; `ValueError` naming both numbers when they do not divide."""
    if n_kv_heads % num_devices:
        raise ValueError(f"n_kv_heads {n_kv_heads} does not divide over {num_devices} devices")
    return n_kv_heads // num_devices


def require_positive_int(name: str, value: Any) -> None:
    """`ValueError` naming `name` unless `value` is an int above 0 (a bool is none)."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive int, got {value!r}")
