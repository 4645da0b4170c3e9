# SPDX-License-Identifier: Apache-2.0
"""What configurations say for lanes of several devices: KV heads, vocabulary, and which prefills may be traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import pytest

import ttnn_twin
from llm_models.llama.kv_binding import set_kv_cache
from llm_models.llama.model import LlamaModel
from llm_models.llama.model_config import LlamaModelConfig
from llm_models.llama.parts import ModelSizes, model_config
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_models.llama.vllm_build import adapter_config
from llm_models.llama.vllm_config import LlamaGeneratorConfig
from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.paged_kv_cache import PagedKVCacheManager
from llm_runtime.vllm_adapter import VLLMAdapter
from support.llama import tiny_checkpoint, tiny_config

BLOCK, BLOCKS = 32, 24
SIZES = ModelSizes(
    max_batch_size=2,
    max_seq_len=512,
    block_size=BLOCK,
    max_num_blocks=BLOCKS,
    n_layers=2,
    dtype=ttnn_twin.bfloat16,
    kv_cache_dtype=ttnn_twin.bfloat16,
)
#: KV heads, devices, KV heads of one device.
SPLITS = [(4, 2, 2), (8, 8, 1), (8, 2, 4), (2, 1, 2)]

OpenMesh = Callable[[int], Any]


@pytest.fixture
def open_mesh() -> Iterator[OpenMesh]:
    """Opens meshes of one row; afterwards nothing is left on them."""
    opened: list[Any] = []

    def open_one(columns: int) -> Any:
        opened.append(ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, columns)))
        return opened[-1]

    yield open_one
    for mesh in opened:
        left = mesh.live_tensors()
        ttnn_twin.close_mesh_device(mesh)
        assert left == []


def config_of(mesh: Any, heads: int, **changes: Any) -> LlamaModelConfig:
    """The configuration of a model with heads of 128."""
    return model_config(tiny_config(n_heads=16, n_kv_heads=heads, head_dim=128, **changes), mesh, SIZES)


@pytest.mark.covers("INT-25", "MDC-01")
@pytest.mark.parametrize(("heads", "devices", "local"), SPLITS)
def test_each_device_caches_its_own_heads(open_mesh: OpenMesh, heads: int, devices: int, local: int) -> None:
    config = config_of(open_mesh(devices), heads)
    assert config.num_devices == devices
    for block in config.block_configs:
        attention = block.attention_config
        assert (attention.n_kv_heads, attention.n_local_kv_heads, attention.head_dim) == (heads, local, 128)
    attentions = [block.attention_config for block in config.block_configs]
    model = SimpleNamespace(config=config, set_kv_cache=lambda cache: set_kv_cache(attentions, cache))
    policy = PagedKVCacheConfig(block_size=BLOCK, max_num_blocks=BLOCKS, num_blocks=BLOCKS, dtype=ttnn_twin.bfloat16)
    manager = PagedKVCacheManager(model, policy)
    pairs = manager.allocate()
    assert [tuple(tensor.shape) for pair in pairs for tensor in pair] == [(BLOCKS, local, BLOCK, 128)] * 4
    assert manager.cache_shapes == ((BLOCKS, local, BLOCK, 128),) * 2
    manager.release()


@pytest.mark.covers("INT-25")
@pytest.mark.parametrize(("heads", "devices", "local"), SPLITS)
def test_a_server_must_bring_the_heads_of_one_device(open_mesh: OpenMesh, heads: int, devices: int, local: int) -> None:
    mesh = open_mesh(devices)
    generator = LlamaGeneratorConfig(hf_model="any", mesh_device=mesh, max_batch_size=2, max_seq_len=512)
    adapter = VLLMAdapter(adapter_config(generator, config_of(mesh, heads), BLOCKS))
    resolved = adapter.resolve_legacy_kv_cache_config((20, local, BLOCK, 128), ml_dtypes.bfloat16, 2)
    assert (resolved.num_blocks, resolved.block_size) == (20, BLOCK)
    with pytest.raises(ValueError, match=f"has KV heads per device {2 * local}, the model {local}"):
        adapter.resolve_legacy_kv_cache_config((20, 2 * local, BLOCK, 128), ml_dtypes.bfloat16, 2)


@pytest.mark.covers("INT-25")
@pytest.mark.parametrize(("heads", "devices"), [(4, 8), (8, 3), (1, 2)])
def test_heads_that_do_not_divide_are_refused(open_mesh: OpenMesh, heads: int, devices: int) -> None:
    mesh = open_mesh(devices)
    with pytest.raises(ValueError, match=f"n_kv_heads {heads} does not divide over {devices} devices"):
        config_of(mesh, heads)


@pytest.mark.covers("INT-25")
@pytest.mark.parametrize(
    ("vocabulary", "devices", "padded"),
    [(151936, 8, 152064), (151936, 2, 151936), (151936, 1, 151936), (256, 8, 256), (288, 8, 512)],
)
def test_the_vocabulary_fills_whole_tiles_of_each_device(
    open_mesh: OpenMesh, vocabulary: int, devices: int, padded: int
) -> None:
    config = config_of(open_mesh(devices), 8, vocab_size=vocabulary)
    assert (config.vocab_size, config.padded_vocab_size) == (vocabulary, padded)


@pytest.mark.covers("INT-25")
@pytest.mark.parametrize(("chunk", "cached_too"), [(4096, False), (8192, False), (2048, True)])
def test_long_chunks_are_not_traced_behind_cached_tokens(chunk: int, cached_too: bool) -> None:
    config = LlamaRuntimeConfig(max_seq_len=16384, max_prefill_chunk_size=chunk)
    for length in config.trace_prefill_supported_seq_lens:
        assert config.can_enable_trace(length, 0)
        for cached in (1, 32, 4096):
            assert config.can_enable_trace(length, cached) is cached_too
    assert not config.can_enable_trace(96, 0)


def test_the_body_runs_on_one_device(open_mesh: OpenMesh) -> None:
    mesh = open_mesh(2)
    with pytest.raises(ValueError, match="one device, the mesh has 2"):
        LlamaModel.from_checkpoint(
            tiny_checkpoint(), mesh, max_batch_size=2, max_seq_len=512, block_size=BLOCK, max_num_blocks=BLOCKS
        )
    assert mesh.counters.allocations == 0
