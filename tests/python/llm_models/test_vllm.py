# SPDX-License-Identifier: Apache-2.0
"""The Llama class for vLLM before serving: loading, lanes, late KV geometry, and what fails on the way."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import llm_models.llama.vllm as vllm_module
import llm_models.llama.vllm_build as build_module
import ttnn_twin
from llm_models.executor import ModelExecutor
from llm_models.llama.model import LlamaModel
from llm_models.llama.vllm import LlamaForCausalLM
from llm_models.llama.vllm_config import LlamaGeneratorConfig
from llm_runtime.lane_group import LaneGroupExecutor
from support.serving.deployment import write_tiny_model

BF16 = ml_dtypes.bfloat16
one_device = pytest.mark.parametrize("mesh", [1], indirect=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(params=[2])
def mesh(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Two devices, or one; nothing may be left on them or on a submesh."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, request.param), trace_region_size=10_000_000)
    yield mesh
    left = [lane.live_tensors() for lane in (mesh, *mesh.get_submeshes())]
    ttnn_twin.close_mesh_device(mesh)
    assert not any(left), left


def start(folder: Path, mesh: Any, **options: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM.initialize_vllm_model(
        SimpleNamespace(_name_or_path=str(folder)),
        mesh,
        options.pop("max_batch_size", 4),
        **{"max_seq_len": 256, "tt_data_parallel": 2, **options},
    )


@pytest.mark.covers("INT-22", "VLA-22")
def test_the_token_budget_is_one_sequence_of_a_lane() -> None:
    query = {"model_name": "m", "num_devices": 8, "tt_data_parallel": 4, "max_model_len": 32768, "max_num_seqs": 64}
    assert LlamaForCausalLM.get_max_tokens_all_users(**query) == 32768  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unknown_plugin_field"):
        LlamaForCausalLM.get_max_tokens_all_users(**query, unknown_plugin_field=1)  # type: ignore[arg-type]


@pytest.mark.covers("INT-23")
def test_server_options_reach_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LlamaGeneratorConfig] = []

    def load(config: LlamaGeneratorConfig, **_: Any) -> Any:
        seen.append(config)
        raise InterruptedError

    monkeypatch.setattr(vllm_module, "load_lanes", load)
    hf_config, mesh = SimpleNamespace(_name_or_path="some/model"), object()
    with pytest.raises(InterruptedError):
        LlamaForCausalLM.initialize_vllm_model(
            hf_config,
            mesh,
            8,
            max_seq_len=4096,
            n_layers=3,
            tt_data_parallel=2,
            optimizations="accuracy",
            trace_mode="decode_only",
            device_sampling_enabled=True,
        )
    with pytest.raises(InterruptedError):
        LlamaForCausalLM.initialize_vllm_model(hf_config, mesh, 8, 4096, vllm_config=object(), something_newer=1)
    explicit, default = seen
    assert explicit == LlamaGeneratorConfig(
        hf_model="some/model",
        mesh_device=mesh,
        max_batch_size=8,
        max_seq_len=4096,
        n_layers=3,
        tt_data_parallel=2,
        optimizations="accuracy",
        trace_mode="decode_only",
        device_sampling_enabled=True,
    )
    assert (default.trace_mode, default.device_sampling_enabled) == ("all", True)
    assert (default.tt_data_parallel, default.n_layers, default.optimizations) == (1, None, None)
    own = LlamaGeneratorConfig(hf_model="m", mesh_device=mesh, max_batch_size=1, max_seq_len=1)
    assert own.device_sampling_enabled is False  # a server asks for the most, a caller for what it needs


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"hf_model": ""}, ValueError, "hf_model must be a non-empty str"),
        ({"mesh_device": None}, ValueError, "mesh_device must not be None"),
        ({"max_batch_size": 0}, ValueError, "max_batch_size must be a positive int"),
        ({"max_seq_len": True}, ValueError, "max_seq_len must be a positive int"),
        ({"tt_data_parallel": 0}, ValueError, "tt_data_parallel must be a positive int"),
        ({"n_layers": 0}, ValueError, "n_layers must be a positive int"),
        ({"max_batch_size": 7, "tt_data_parallel": 2}, ValueError, "7 does not divide into 2 lanes"),
        ({"trace_mode": "some"}, ValueError, "unsupported trace mode 'some'"),
        ({"device_sampling_enabled": 1}, TypeError, "device_sampling_enabled must be a bool"),
    ],
)
def test_bad_options_are_named(change: dict[str, Any], error: type[Exception], match: str) -> None:
    fields: dict[str, Any] = {"hf_model": "m", "mesh_device": object(), "max_batch_size": 8, "max_seq_len": 128}
    with pytest.raises(error, match=match):
        LlamaGeneratorConfig(**{**fields, **change})


@pytest.mark.parametrize("hf_config", [SimpleNamespace(), SimpleNamespace(_name_or_path="")])
def test_a_server_has_to_name_the_checkpoint(hf_config: Any) -> None:
    with pytest.raises(ValueError, match="_name_or_path is empty"):
        LlamaForCausalLM.initialize_vllm_model(hf_config, object(), 8, 4096)


@pytest.mark.covers("INT-24")
def test_two_lanes_are_two_models_on_two_submeshes(folder: Path, mesh: Any) -> None:
    generator = start(folder, mesh)
    submeshes = mesh.get_submeshes()
    assert [model.config.mesh_device for model in generator.model] == submeshes and len(submeshes) == 2
    assert [model.config.max_batch_size for model in generator.model] == [2, 2]
    assert generator.mesh_device is mesh and generator.cache_path is None
    kv_cache = generator.allocate_kv_cache((16, 2, 32, 32), BF16, 2)
    target = generator.target
    assert isinstance(target, LaneGroupExecutor) and target.mesh_device is mesh
    assert [type(lane) for lane in target.lanes] == [ModelExecutor, ModelExecutor]
    assert [lane.mesh_device for lane in target.lanes] == submeshes
    assert len(kv_cache) == 2 and tuple(kv_cache[1][0][0].shape) == (16, 2, 32, 32)
    assert len(generator.model_args) == 2
    generator.cleanup()


@pytest.mark.parametrize(("lanes", "shape"), [(2, (1, 1)), (4, None), (3, None)])
def test_lane_meshes(lanes: int, shape: Any) -> None:
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 2))
    if shape is None:
        with pytest.raises(ValueError, match=f"1x2 devices does not split into {lanes} lanes"):
            build_module.lane_meshes(mesh, lanes)
    else:
        assert [tuple(lane.shape) for lane in build_module.lane_meshes(mesh, lanes)] == [shape] * lanes
    ttnn_twin.close_mesh_device(mesh)
    tall = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(4, 1))
    assert [tuple(lane.shape) for lane in build_module.lane_meshes(tall, 2)] == [(2, 1)] * 2
    ttnn_twin.close_mesh_device(tall)


@one_device
def test_the_servers_block_size_arrives_before_the_runtimes(folder: Path, mesh: Any) -> None:
    generator = start(folder, mesh, tt_data_parallel=1, max_batch_size=2, n_layers=1)
    assert not generator.already_warmed_up_prefill
    generator.already_warmed_up_prefill = False
    generator.allocate_kv_cache((24, 2, 64, 32), BF16, 1)
    (attention,) = [block.attention_config for block in generator.model.config.block_configs]
    assert attention.paged_attention_config.block_size == 64
    assert generator.target.page_table_layout.block_size == 64
    assert generator.target.paged_kv_cache_config.num_blocks == 24
    generator.cleanup()


@one_device
def test_without_a_shape_the_cache_has_the_provisional_size(folder: Path, mesh: Any) -> None:
    generator = start(folder, mesh, tt_data_parallel=1, max_batch_size=2)
    kv_cache = generator.allocate_kv_cache()
    assert tuple(kv_cache[0][0].shape) == (10, 2, 32, 32)  # 8 blocks for one sequence, one more per row
    generator.cleanup()


@one_device
@pytest.mark.covers("P37")
def test_a_cache_below_one_decode_table_is_refused_and_may_be_asked_for_again(folder: Path, mesh: Any) -> None:
    generator = start(folder, mesh, tt_data_parallel=1, max_batch_size=1, max_seq_len=100)
    with pytest.raises(ValueError, match=r"(?s)8.*5|5.*8"):
        generator.allocate_kv_cache((5, 2, 32, 32), BF16, 2)
    generator.allocate_kv_cache((8, 2, 32, 32), BF16, 2)
    generator.cleanup()


@one_device
@pytest.mark.parametrize(
    ("shape", "dtype", "layers", "error", "match"),
    [
        ((16, 1, 32, 32), BF16, 2, ValueError, "KV heads per device 1, the model 2"),
        ((16, 2, 32, 64), BF16, 2, ValueError, "head dimension 64, the model 32"),
        ((16, 2, 32, 32), np.float16, 2, ValueError, "dtype float16"),
        ((16, 2, 32, 32), BF16, 3, ValueError, "layer count 3"),
        ((16, 2, 0, 32), BF16, 2, ValueError, "block_size must be a positive integer, got 0"),
        ((0, 2, 32, 32), BF16, 2, ValueError, "max_num_blocks must be a positive integer, got 0"),
        ((16, 2, 32), BF16, 2, ValueError, "rank 4"),
        ((16, 2, 32, 32), None, 2, TypeError, "must be supplied together"),
    ],
)
def test_a_shape_that_does_not_fit_builds_nothing(
    folder: Path, mesh: Any, shape: Any, dtype: Any, layers: Any, error: type[Exception], match: str
) -> None:
    generator = start(folder, mesh, tt_data_parallel=1)
    with pytest.raises(error, match=match):
        generator.allocate_kv_cache(shape, dtype, layers)
    with pytest.raises(RuntimeError, match="not built yet: call allocate_kv_cache first"):
        generator.prefill_forward(np.ones((1, 4), np.int32), np.zeros((1, 1), np.int32), enable_trace=False)
    generator.cleanup()
    with pytest.raises(RuntimeError, match="was cleaned up"):
        generator.allocate_kv_cache()


def test_a_lane_that_cannot_be_loaded_releases_the_others(
    folder: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, made = LlamaModel.from_checkpoint, []

    def second_fails(*args: Any, **kwargs: Any) -> Any:
        if made:
            raise RuntimeError("no memory on the second lane")
        made.append(load(*args, **kwargs))
        return made[0]

    monkeypatch.setattr(LlamaModel, "from_checkpoint", second_fails)
    with pytest.raises(RuntimeError, match="no memory on the second lane"):
        start(folder, mesh)
    assert len(made) == 1
    assert mesh.get_submeshes()[0].live_tensors() == []


def test_a_lane_that_cannot_be_built_cleans_the_others_and_keeps_the_error(
    folder: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = start(folder, mesh)
    build, cleaned = ModelExecutor.__init__, []

    def second_fails(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        if model is generator.model[1]:
            raise RuntimeError("the second executor fails")
        build(self, model, *args, **kwargs)

    def cleanup(self: Any) -> None:
        cleaned.append(self.model)
        raise OSError("the first one cannot be cleaned")

    with monkeypatch.context() as patch:
        patch.setattr(ModelExecutor, "__init__", second_fails)
        patch.setattr(ModelExecutor, "cleanup", cleanup)
        with pytest.raises(RuntimeError, match="the second executor fails") as caught:
            generator.allocate_kv_cache((16, 2, 32, 32), BF16, 2)
    assert cleaned == [generator.model[0]]
    assert [str(error) for error in caught.value.cleanup_failures] == [  # type: ignore[attr-defined]
        "the first one cannot be cleaned"
    ]
    generator.allocate_kv_cache((16, 2, 32, 32), BF16, 2)
    generator.cleanup()
    generator.cleanup()


@one_device
def test_models_are_kept_while_executors_cannot_be_cleaned(folder: Path, mesh: Any) -> None:
    generator = start(folder, mesh, tt_data_parallel=1)
    generator.allocate_kv_cache((16, 2, 32, 32), BF16, 2)
    weights = generator.model.embedding
    mesh.faults.fail("deallocate")
    with pytest.raises(RuntimeError, match="deallocate"):
        generator.cleanup()
    assert weights.is_allocated()
    generator.cleanup()
    assert not weights.is_allocated() and not mesh.closed


@one_device
@pytest.mark.parametrize(
    ("optimizations", "dtype"), [(None, "bfloat16"), ("performance", "bfloat8_b"), ("x", "bfloat16")]
)
def test_optimizations_choose_the_type_of_matrices(
    folder: Path, mesh: Any, optimizations: str | None, dtype: str
) -> None:
    generator = start(folder, mesh, tt_data_parallel=1, optimizations=optimizations)
    assert generator.model.layers[0].attention._wqkv.dtype == getattr(ttnn_twin, dtype)
    generator.allocate_kv_cache((16, 2, 32, 32), BF16, 2)
    logits = generator.prefill_forward(np.ones((1, 9), np.int32), np.zeros((1, 1), np.int32), enable_trace=False)
    assert np.isfinite(logits).all()
    generator.cleanup()


def test_importing_the_class_opens_no_device() -> None:
    script = (
        "import sys; sys.path[:0] = ['python']\n"
        "import llm_models.llama.vllm as module\n"
        "assert module.LlamaForCausalLM.model_capabilities['supports_async_decode'] is True\n"
        "assert not {'torch', 'ttnn', 'ttnn_twin'} & set(sys.modules), 'a device library or torch was imported'\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert importlib.import_module("llm_models.llama.vllm") is vllm_module
