# SPDX-License-Identifier: Apache-2.0
"""What the runtime relies on beside the forward passes: metadata, KV binding, module names, release."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ttnn_twin
from llm_models.checkpoints import CheckpointError
from llm_models.llama.kv_binding import configure_paged_attention
from llm_models.llama.model import LlamaModel
from support.llama import tiny_checkpoint, tiny_config

SIZES: dict[str, Any] = {"max_batch_size": 2, "max_seq_len": 512, "block_size": 32, "max_num_blocks": 40}


@pytest.fixture
def mesh() -> Iterator[ttnn_twin.MeshDevice]:
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1))
    yield mesh
    ttnn_twin.close_mesh_device(mesh)


@pytest.fixture
def model(mesh: ttnn_twin.MeshDevice) -> LlamaModel:
    return LlamaModel.from_checkpoint(tiny_checkpoint(), mesh, **SIZES)


def pairs(mesh: ttnn_twin.MeshDevice, layers: int = 2) -> list[list[Any]]:
    def cache() -> Any:
        return ttnn_twin.zeros((2, 2, 32, 32), layout=ttnn_twin.TILE_LAYOUT, device=mesh)

    return [[cache(), cache()] for _ in range(layers)]


@pytest.mark.covers("MDC-01")
def test_metadata(model: LlamaModel, mesh: ttnn_twin.MeshDevice) -> None:
    config = model.config
    assert config.mesh_device is model.mesh_device is mesh
    assert (config.num_devices, config.n_layers, config.max_batch_size) == (1, 2, 2)
    assert (config.dim, config.max_seq_len, config.vocab_size, model.vocab_size) == (64, 512, 256, 256)
    for block, layer in zip(config.block_configs, model.layers, strict=True):
        attention = block.attention_config
        assert (attention.n_kv_heads, attention.n_local_kv_heads, attention.head_dim) == (2, 2, 32)
        assert attention.kv_cache_dtype is ttnn_twin.bfloat16
        geometry = attention.paged_attention_config
        assert (geometry.block_size, geometry.max_num_blocks) == (32, 40)
        assert attention.use_vllm_paged_kv_cache
        assert layer.attention.config is attention


@pytest.mark.covers("MDC-02")
def test_prefill_forward_parameters() -> None:
    parameters = inspect.signature(LlamaModel.prefill_forward).parameters
    assert list(parameters)[1:] == [
        "x_embed",
        "rot_mats",
        "user_id",
        "page_table",
        "chunk_page_table",
        "chunk_start_idx",
        "get_last_token",
        "batch_size",
        "chunk_start_idx_tensor",
        "last_token_slice",
        "last_token_index",
    ]
    defaults = {name: value.default for name, value in parameters.items() if value.default is not value.empty}
    expected = dict.fromkeys(list(parameters)[3:])
    assert defaults == {**expected, "user_id": 0, "get_last_token": -1, "batch_size": 1}


@pytest.mark.covers("MDC-03")
def test_post_process_parameters() -> None:
    single = inspect.signature(LlamaModel.post_process_prefill_output).parameters
    assert list(single)[1:] == ["hidden", "last_token_idx", "last_token_slice", "last_token_index"]
    batched = inspect.signature(LlamaModel.post_process_batched_prefill_output).parameters
    wave = ["last_token_idx_list", "padded_batch", "prefill_seq_len"]
    assert list(batched)[1:] == ["hidden", *wave, "last_token_slice", "last_token_index"]
    for parameters in (single, batched):
        defaults = {name: value.default for name, value in parameters.items() if value.default is not value.empty}
        assert defaults == {"last_token_slice": None, "last_token_index": None}


@pytest.mark.covers("MDC-04")
def test_required_operations_are_there(model: LlamaModel) -> None:
    for name in (
        "set_kv_cache",
        "configure_paged_attention",
        "prepare_prefill_rot_mats",
        "iter_executor_named_modules",
        "embed_decode",
        "embed_prefill",
        "gather_and_untilize_logits",
        "increment_positions",
    ):
        assert callable(getattr(model, name))


@pytest.mark.covers("MDC-05")
def test_parts_are_exposed(model: LlamaModel) -> None:
    assert model.supports_on_device_sampling
    assert model.embedding.shape == (1, 1, 256, 64)
    assert model.sampling.config.mesh_device is model.mesh_device
    assert model.sampling.config.is_resolved()
    assert len(model.layers) == model.n_layers
    assert [module for _, module in model.iter_executor_named_modules()][-2:] == [model.norm, model.lm_head]


@pytest.mark.covers("MDC-06")
def test_module_names_in_execution_order(model: LlamaModel) -> None:
    names = [name for name, _ in model.iter_executor_named_modules()]
    parts = ("attn_norm", "attention", "ff_norm", "mlp")
    assert names == [f"layer[{i}].{part}" for i in (0, 1) for part in parts] + ["final_norm", "lm_head"]
    for _, module in model.iter_executor_named_modules():
        assert module.config.decode_input_memcfg == ttnn_twin.DRAM_MEMORY_CONFIG
        assert callable(module.decode_forward)


@pytest.mark.covers("MDC-07")
def test_a_model_without_layers_has_no_modules(model: LlamaModel) -> None:
    model.layers = ()
    assert list(model.iter_executor_named_modules()) == []


@pytest.mark.covers("MDC-08")
def test_binding_reaches_config_and_live_layers(model: LlamaModel, mesh: ttnn_twin.MeshDevice) -> None:
    cache = pairs(mesh)
    model.set_kv_cache(cache)
    for block, layer, pair in zip(model.config.block_configs, model.layers, cache, strict=True):
        for bound in (block.attention_config.kv_cache, layer.attention.kv_cache):
            assert bound is not None
            assert (bound[0] is pair[0], bound[1] is pair[1]) == (True, True)
    for _ in range(2):
        model.set_kv_cache(None)
        assert all(block.attention_config.kv_cache is None for block in model.config.block_configs)
        assert all(layer.attention.kv_cache is None for layer in model.layers)


@pytest.mark.covers("MDC-09")
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda cache: cache[:1], ValueError, "the KV cache has 1 layers, the model has 2 layers"),
        (lambda cache: [cache[0], 7], TypeError, "layer 1 must be a .key, value. pair, got int"),
        (lambda cache: [cache[0], cache[1][:1]], ValueError, "layer 1 has 1 tensors"),
    ],
)
def test_a_cache_that_does_not_fit_binds_nothing(
    model: LlamaModel,
    mesh: ttnn_twin.MeshDevice,
    change: Callable[[Any], Any],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        model.set_kv_cache(change(pairs(mesh)))
    assert all(layer.attention.kv_cache is None for layer in model.layers)


@pytest.mark.covers("MDC-10", "MDC-11")
def test_geometry_changes_only_while_nothing_is_bound(model: LlamaModel, mesh: ttnn_twin.MeshDevice) -> None:
    model.configure_paged_attention(block_size=16, max_num_blocks=200)
    model.set_kv_cache(pairs(mesh))
    with pytest.raises(RuntimeError, match="layer 0 already has a bound KV cache"):
        model.configure_paged_attention(block_size=32, max_num_blocks=100)
    for block, layer in zip(model.config.block_configs, model.layers, strict=True):
        for attention in (block.attention_config, layer.attention.config):
            geometry = attention.paged_attention_config
            assert (geometry.block_size, geometry.max_num_blocks) == (16, 200)


@pytest.mark.parametrize(("block_size", "max_num_blocks"), [(0, 4), (True, 4), (16, -1), (16, 2.0)])
def test_geometry_must_be_positive_ints(model: LlamaModel, block_size: Any, max_num_blocks: Any) -> None:
    with pytest.raises(ValueError, match="must be a positive int"):
        model.configure_paged_attention(block_size=block_size, max_num_blocks=max_num_blocks)


def test_a_layer_with_its_own_cache_is_named(model: LlamaModel) -> None:
    attentions = [block.attention_config for block in model.config.block_configs]
    attentions[1].use_vllm_paged_kv_cache = False
    with pytest.raises(RuntimeError, match="layer 1 does not use"):
        configure_paged_attention(attentions, block_size=16, max_num_blocks=200)
    assert attentions[0].paged_attention_config.block_size == 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_batch_size": 33}, "max_batch_size 33 is above 32"),
        ({"max_batch_size": 0}, "max_batch_size must be a positive int"),
        ({"max_seq_len": 2048}, "max_seq_len 2048 is above the checkpoint's context of 1024"),
        ({"n_layers": 3}, "n_layers 3 is above the checkpoint's 2"),
        ({"block_size": 0}, "block_size"),
    ],
)
def test_sizes_are_refused_before_any_upload(mesh: ttnn_twin.MeshDevice, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LlamaModel.from_checkpoint(tiny_checkpoint(), mesh, **{**SIZES, **changes})
    assert mesh.counters.allocations == 0


def test_shapes_that_do_not_fill_tiles_are_refused(mesh: ttnn_twin.MeshDevice) -> None:
    checkpoint = tiny_checkpoint(tiny_config(ffn_dim=100))
    with pytest.raises(ValueError, match="ffn_dim must be a multiple of 32 on the device, got 100"):
        LlamaModel.from_checkpoint(checkpoint, mesh, **SIZES)


def test_progress_counts_every_upload(mesh: ttnn_twin.MeshDevice) -> None:
    seen: list[tuple[int, int]] = []
    LlamaModel.from_checkpoint(
        tiny_checkpoint(), mesh, progress=lambda done, total: seen.append((done, total)), **SIZES
    )
    assert seen == [(done, 17) for done in range(1, 18)]


def test_a_layer_count_may_cut_the_model_short(mesh: ttnn_twin.MeshDevice) -> None:
    model = LlamaModel.from_checkpoint(tiny_checkpoint(), mesh, n_layers=1, **SIZES)
    assert (model.n_layers, len(model.layers), len(model.config.block_configs)) == (1, 1, 1)


@pytest.mark.parametrize("at", [1, 5, 17])
def test_a_failed_load_frees_what_was_uploaded(mesh: ttnn_twin.MeshDevice, at: int) -> None:
    mesh.faults.fail(op="to_device", at=at)
    with pytest.raises(Exception, match="to_device"):
        LlamaModel.from_checkpoint(tiny_checkpoint(), mesh, **SIZES)
    assert mesh.live_tensors() == []


def test_a_missing_weight_frees_what_was_uploaded(mesh: ttnn_twin.MeshDevice) -> None:
    original = tiny_checkpoint()

    def read(name: str) -> Any:
        if name == "layers.1.w_up":
            raise CheckpointError("weight layers.1.w_up is missing")
        return original.read(name)

    checkpoint = dataclasses.replace(original, read=read)
    with pytest.raises(CheckpointError, match=r"layers\.1\.w_up is missing"):
        LlamaModel.from_checkpoint(checkpoint, mesh, **SIZES)
    assert mesh.live_tensors() == []


def test_release_frees_everything_once_and_may_be_repeated(model: LlamaModel, mesh: ttnn_twin.MeshDevice) -> None:
    model.rope_setup.load_device_weights()
    model.sampling.load_device_buffers()
    cache = pairs(mesh)
    model.set_kv_cache(cache)
    model.release()
    assert len(mesh.live_tensors()) == 4  # the borrowed cache
    frees = mesh.counters.deallocations
    model.release()
    assert mesh.counters.deallocations == frees
    with pytest.raises(RuntimeError, match="released"):
        model.embed_decode(None)


def test_a_failed_release_can_be_retried(model: LlamaModel, mesh: ttnn_twin.MeshDevice) -> None:
    model.rope_setup.load_device_weights()
    mesh.faults.fail(op="deallocate", at=3)
    with pytest.raises(Exception, match="deallocate"):
        model.release()
    assert len(mesh.live_tensors()) == 1
    model.release()
    assert mesh.live_tensors() == []
