# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a server process's worth of model: checkpoint folder, mesh, facade, cache and both warmup phases."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import ttnn_twin
from llm_models.checkpoints import load_checkpoint
from llm_models.llama.vllm import LlamaForCausalLM
from support.llama import random_weights, tiny_config, write_hf_folder
from support.serving.reference import Reference
from support.serving.server import Server, ServerOptions

TRACE_REGION_BYTES = 100_000_000
_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}
_GAIN = {"wq": 2.0, "wk": 2.0, "wo": 4.0, "w_down": 4.0}
_GLOBAL_NAMES = {"token_embedding": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}


def write_tiny_model(folder: Path) -> Path:
    """A two-layer Llama with random weights as a Hugging Face folder.

    Attention and feed-forward outweigh the residual and the head is its own, so that every earlier token counts: one
    changed token changes the next greedy one in two of five cases, and nothing makes the model repeat its input.
    """
    config = tiny_config(max_context_len=1024, tied_embeddings=False)
    tensors = {}
    for name, array in random_weights(config, seed=5).items():
        *layer, weight = name.split(".")
        array = array * _GAIN.get(weight, 1.0)
        prefix = f"model.layers.{layer[1]}.{_LAYER_NAMES[weight]}" if layer else _GLOBAL_NAMES[weight]
        tensors[f"{prefix}.weight"] = ("F32", array.astype(np.float32))
    write_hf_folder(folder, config, tensors)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**settings, "architectures": ["LlamaForCausalLM"]}))
    return folder


class Deployment:
    """One start of the server: mesh, facade, allocated cache, warm. Owns all of them until `stop`."""

    def __init__(
        self, folder: Path, options: ServerOptions, *, execution: str = "immediate", warm: bool = True
    ) -> None:
        self.options = options
        self.checkpoint = load_checkpoint(folder)
        self.mesh = ttnn_twin.open_mesh_device(
            ttnn_twin.MeshShape(1, options.lanes),
            trace_region_size=TRACE_REGION_BYTES,
            execution=execution,  # type: ignore[arg-type]
        )
        self.model = LlamaForCausalLM.initialize_vllm_model(
            SimpleNamespace(_name_or_path=str(folder)),
            self.mesh,
            options.rows,
            max_seq_len=options.max_model_len,
            tt_data_parallel=options.lanes,
            optimizations=None,
            vllm_config=SimpleNamespace(),
        )
        self.meshes = [self.mesh] if options.lanes == 1 else self.mesh.get_submeshes()
        config = self.checkpoint.config
        self.kv_cache = self.model.allocate_kv_cache(
            (options.num_blocks, config.n_kv_heads, options.block_size, config.head_dim),
            ml_dtypes.bfloat16,
            config.n_layers,
        )
        handles = self.kv_cache if options.lanes > 1 else [self.kv_cache]
        for mesh, handle in zip(self.meshes, handles, strict=True):
            # Filling a block is a program of the twin too; the runtime accepts none that appears while traces live.
            mesh.ledger.poison([0], caches=[tensor for layer in handle for tensor in layer])
        if warm:
            self.warm_up()

    def warm_up(self) -> None:
        """The two phases of the protocol."""
        mode = self.options.sample_on_device_mode
        prefill = {"kv_cache": self.kv_cache, "can_sample_on_device": mode == "all"}
        decode = {
            "kv_cache": self.kv_cache,
            "can_sample_on_device": mode in ("all", "decode_only"),
            "max_batch_size": self.options.rows,
            "num_blocks": self.options.table_width,
        }
        self.model.warmup_model_prefill(enable_trace=False, **prefill)
        self.model.warmup_model_decode(enable_trace=False, **decode)
        assert hasattr(self.model, "already_warmed_up_prefill")
        self.model.already_warmed_up_prefill = False
        if self.options.trace_mode == "all":
            self.model.warmup_model_prefill(enable_trace=True, **prefill)
        if self.options.trace_mode in ("all", "decode_only"):
            self.model.warmup_model_decode(enable_trace=True, **decode)

    def device_state(self) -> list[tuple[int, int, int]]:
        """Live tensors, compiled programs and captures of every lane."""
        return [
            (mesh.counters.live_tensors, mesh.num_program_cache_entries(), mesh.counters.captures)
            for mesh in self.meshes
        ]

    def executors(self) -> list[Any]:
        """The executors behind the facade."""
        return list(getattr(self.model.target, "lanes", [self.model.target]))

    def server(self) -> Server:
        """A server over this deployment. From now on `device_state` must not change."""
        server = Server(self.model, self.kv_cache, self.meshes, self.options)
        self.warm_state = self.device_state()
        return server

    def reference(self) -> Reference:
        """What requests generate alone."""
        return Reference.of(self.checkpoint)

    def assert_idle(self) -> None:
        """Nothing is left of the requests: no tensor, lease, read or orphan."""
        for executor in self.executors():
            assert len(executor.decode_runtime._readout.leases) == 0
            assert not executor.output_reader._pending and not executor.output_reader._sequence_of_value
            assert executor.prefill_runtime.transient_orphan_count == 0
            assert executor.decode_runtime.transient_orphan_count == 0
            assert executor.program_compiler.compile_orphan_count == 0

    def stop(self) -> None:
        """Clean up, check that nothing stays on the device, and close the mesh."""
        executors = self.executors()
        self.model.cleanup()
        for mesh in self.meshes:
            assert mesh.live_tensors() == []
            assert mesh.trace_region_used == 0
        for executor in executors:
            assert executor.terminal
        ttnn_twin.close_mesh_device(self.mesh)
