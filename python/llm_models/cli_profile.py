# SPDX-License-Identifier: Apache-2.0
"""`llm-runtime profile`: where the host time of generation goes, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ttnn_twin
from llm_models.checkpoints import BpeVocabulary, LlamaCheckpoint, weight_shape
from llm_models.cli_device import TRACE_REGION_BYTES
from llm_models.cli_generate import LARGEST_BATCH, TraceChoice, open_checkpoint
from llm_models.generation import GenerationRequest, Generator
from llm_models.llama.config import LlamaConfig
from llm_models.llama.executor import Llama, LlamaOptions
from llm_models.tokenizer import Tokenizer
from llm_runtime.profiling import Profile, profile

SYNTHETIC = "synthetic"
_BLOCK = 32
_PROMPT_TOKENS = 100


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """The options of `llm-runtime profile`; `ValueError` with one clear line for a bad one."""

    prompts: tuple[str, ...]
    model: str
    rows: int
    steps: int
    trace: TraceChoice
    temperature: float
    output: Path | None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"--steps must be at least 1, got {self.steps}")
        if not 1 <= self.rows <= LARGEST_BATCH:
            raise ValueError(f"--rows must be in 1 to {LARGEST_BATCH}, got {self.rows}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"--temperature must be a finite number of at least 0, got {self.temperature}")
        if self.prompts and self.model == SYNTHETIC:
            raise ValueError("prompts need a model with a tokenizer; name one with --model")


def run_profile(options: ProfileOptions) -> None:
    """Warm up, profile the generation of `steps` tokens a row, print the table and write the trace if asked."""
    recorded = profile_generation(options)
    print(recorded.table())
    if options.output is not None:
        recorded.write(options.output)
        print(f"wrote {options.output}: open it in Perfetto or chrome://tracing")


def profile_generation(options: ProfileOptions) -> Profile:
    """The spans of one generation on the CPU twin, loading and warmup left out."""
    checkpoint = synthetic_checkpoint() if options.model == SYNTHETIC else open_checkpoint(options.model)
    requests = _requests(options, checkpoint)
    longest = max(len(request.prompt_ids) for request in requests) + options.steps
    sizes = LlamaOptions(
        max_batch_size=min(LARGEST_BATCH, len(requests)),
        max_seq_len=-(-max(longest, 128) // _BLOCK) * _BLOCK,
        block_size=_BLOCK,
        trace_mode=options.trace.value,
        device_stochastic_sampling=options.temperature > 0,
    )
    if sizes.max_seq_len > checkpoint.config.max_context_len:
        raise ValueError(f"{longest} tokens a row exceed the model's context of {checkpoint.config.max_context_len}")
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=TRACE_REGION_BYTES)
    try:
        llama = Llama.open(checkpoint, mesh, sizes)
        try:
            llama.warm_up()
            generator = Generator(llama.executor, device_sampling=True)
            with profile() as recorded:
                generator.generate(requests)
        finally:
            llama.cleanup()
    finally:
        ttnn_twin.close_mesh_device(mesh)
    return recorded


def synthetic_checkpoint() -> LlamaCheckpoint:
    """A one-layer Llama with fixed random weights, small enough that the host's share shows."""
    config = LlamaConfig(
        dim=64,
        n_layers=1,
        n_heads=2,
        n_kv_heads=1,
        head_dim=32,
        ffn_dim=128,
        vocab_size=256,
        rope_theta=10000.0,
        rms_eps=1e-5,
        max_context_len=8192,
        tied_embeddings=True,
    )
    values = np.random.default_rng(0).standard_normal(1 << 14).astype(np.float32) * np.float32(0.02)
    return LlamaCheckpoint(
        path=Path(SYNTHETIC),
        config=config,
        tokenizer=BpeVocabulary(tokens=(), merges=(), control_ids=(), pre_tokenizer="gpt-2"),
        chat_template=None,
        bos_id=None,
        eos_ids=(),
        pad_id=None,
        read=lambda name: np.resize(values, weight_shape(config, name)),
    )


def _requests(options: ProfileOptions, checkpoint: LlamaCheckpoint) -> list[GenerationRequest]:
    prompts: Sequence[Sequence[int]]
    if options.prompts:
        tokenizer = Tokenizer(checkpoint)
        prompts = [tokenizer.chat_ids([{"role": "user", "content": prompt}]) for prompt in options.prompts]
    else:
        # Any ids do: nobody reads the answer.
        prompts = [
            [(row + at) % checkpoint.config.vocab_size for at in range(_PROMPT_TOKENS)] for row in range(options.rows)
        ]
    return [
        GenerationRequest(
            prompt_ids=tuple(prompt), max_new_tokens=options.steps, temperature=options.temperature, seed=index
        )
        for index, prompt in enumerate(prompts)
    ]
