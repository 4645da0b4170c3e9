# SPDX-License-Identifier: Apache-2.0
"""`LlamaLLM.generate` against `transformers` on a small random Llama in float32: greedy ids are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ttnn_twin
from llm_models.executor import ModelExecutorConfig
from llm_models.llama.facade import LlamaLLM
from llm_runtime.config import PagedKVCacheConfig, TraceConfig, WarmupConfig

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random transformers model, saved; its folder is `theirs.folder`."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=96,
        vocab_size=256,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=False,
        eos_token_id=[250, 251],
        pad_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.folder = tmp_path_factory.mktemp("transformers-llama")
    model.save_pretrained(model.folder)
    return model


@pytest.mark.parametrize("mode", ["none", "all"])
@pytest.mark.parametrize("sampling", [False, True])
def test_greedy_ids_are_equal(theirs: Any, mode: str, sampling: bool) -> None:
    import torch

    mesh = ttnn_twin.open_mesh_device(trace_region_size=50_000_000)
    policy = ModelExecutorConfig(
        TraceConfig(mode),  # type: ignore[arg-type]
        WarmupConfig(),
        PagedKVCacheConfig(block_size=32, max_num_blocks=48, dtype=ttnn_twin.bfloat16),
        sampling,
    )
    llm = LlamaLLM.from_pretrained(
        mesh, hf_model=str(Path(theirs.folder)), max_batch_size=4, max_seq_len=256, executor_config=policy
    )
    generator = torch.Generator().manual_seed(1)
    for lengths, new in (((5, 17, 40), 24), ((1,), 12), ((130, 3, 64, 65), 16)):
        width = max(lengths)
        ids = torch.randint(1, 250, (len(lengths), width), generator=generator)
        mask = torch.zeros_like(ids)
        for row, length in enumerate(lengths):
            ids[row, : width - length] = 0
            mask[row, width - length :] = 1
        with torch.no_grad():
            free = theirs.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, eos_token_id=None)
            stop = int(free[0, width + 2])
            stopped = theirs.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, eos_token_id=stop)
        ours = llm.generate(ids, mask, max_new_tokens=new, eos_token_id=None)
        assert isinstance(ours, torch.Tensor) and ours.dtype is torch.int64
        assert torch.equal(ours, free)
        assert torch.equal(llm.generate(ids, mask, max_new_tokens=new, eos_token_id=stop), stopped)
        assert torch.equal(
            torch.stack(list(llm.generate_stream(ids, mask, max_new_tokens=new)), 1)[:, :2], free[:, width:][:, :2]
        )
    llm.cleanup()
    assert mesh.live_tensors() == []
    ttnn_twin.close_mesh_device(mesh)


def test_the_checkpoints_generation_options_are_read(theirs: Any) -> None:
    mesh = ttnn_twin.open_mesh_device()
    llm = LlamaLLM.from_pretrained(mesh, hf_model=str(Path(theirs.folder)), max_batch_size=1, max_seq_len=64)
    config = llm.generation_config
    assert (config.eos_token_ids, config.pad_token_id, config.unsupported) == ((250, 251), 0, ())
    assert (config.do_sample, config.temperature, config.top_k) == (False, 1.0, 50)
    llm.cleanup()
    ttnn_twin.close_mesh_device(mesh)
