# SPDX-License-Identifier: Apache-2.0
"""Device memory of a lane, said before loading, against what the twin really holds."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest

import ttnn_twin
from llm_models.llama.executor import Llama, LlamaOptions
from llm_models.llama.memory import DeviceMemory, free_memory, require_memory
from llm_models.llama.penalties import PenaltyTensors
from support.llama import tiny_checkpoint, tiny_config

NEED = DeviceMemory(weights=300 * 2**20, rotary=2**20, kv_cache=50 * 2**20)


@pytest.fixture
def mesh():
    mesh = ttnn_twin.open_mesh_device()
    yield mesh
    ttnn_twin.close_mesh_device(mesh)


def options(**changes):
    return LlamaOptions(
        **{"max_batch_size": 2, "max_seq_len": 256, "max_prefill_chunk_size": 128, "trace_mode": "none", **changes}
    )


def device_with(free):
    """A namespace whose devices have so many bytes left, in 4 banks."""
    view = types.SimpleNamespace(total_bytes_free_per_bank=free // 4, num_banks=4)
    return types.SimpleNamespace(
        BufferType=types.SimpleNamespace(DRAM="DRAM"), get_memory_view=lambda mesh, kind: view
    )


@pytest.mark.parametrize("weights", ["bfloat16", "bfloat8_b"])
@pytest.mark.parametrize("config", [tiny_config(), tiny_config(tied_embeddings=False, n_layers=3, ffn_dim=128)])
def test_the_figure_is_what_a_lane_allocates(mesh, weights, config):
    sizes = options(weight_dtype=weights, device_sampling=False)
    needed = sizes.device_memory(config)
    llama = Llama.open(tiny_checkpoint(config), mesh, sizes)
    llama.model.rope_setup.load_device_weights()
    # The two matrices that swap rotary pairs are not counted: a few tiles.
    swaps = 3 * 2048
    assert mesh.counters.live_bytes == needed.total + swaps
    llama.cleanup()


def test_blocks_and_block_floats_change_the_cache():
    config = tiny_config()
    needed = options().device_memory(config).kv_cache
    assert options(num_blocks=32).device_memory(config).kv_cache == 2 * needed
    assert options(kv_cache_dtype="bfloat8_b").device_memory(config).kv_cache == needed * 1088 // 2048


@pytest.mark.parametrize("vocab_size", [256, 250])
def test_penalties_cost_what_their_tensors_allocate(mesh, vocab_size):
    config = tiny_config(vocab_size=vocab_size)
    with_penalties = options(device_penalties=True).device_memory(config)
    assert options().device_memory(config).penalties == 0
    assert with_penalties.total == options().device_memory(config).total + with_penalties.penalties
    assert "token counts for penalties" in str(with_penalties)
    tensors = PenaltyTensors(mesh, rows=32, vocab_size=vocab_size)
    tensors.load()
    assert mesh.counters.live_bytes == with_penalties.penalties
    tensors.release()


def test_too_little_memory_is_refused_with_both_figures():
    with pytest.raises(ValueError, match=r"needs 351 MiB on the device.*; 340 MiB are free"):
        require_memory(NEED, device_with(340 * 2**20), None)
    require_memory(NEED, device_with(352 * 2**20), None)


def test_the_twin_has_no_limit(mesh):
    assert free_memory(ttnn_twin, mesh) is None
    require_memory(replace(NEED, weights=2**60), ttnn_twin, mesh)


def test_the_figures_are_said_in_words():
    assert str(NEED) == "351 MiB on the device: weights 300, KV cache 50, rotary tables 1"
