# SPDX-License-Identifier: Apache-2.0
"""The `llm-runtime` command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import llm_models.blas_threads  # noqa: F401  # before anything that imports NumPy
from llm_models.cli_coverage import DEFAULT_BATCH, CoverageOptions, run_coverage
from llm_models.cli_device import TRACE_REGION_BYTES, DeviceChoice, Execution
from llm_models.cli_doctor import run_doctor
from llm_models.cli_generate import GenerateOptions, TraceChoice, WeightType, run_generate
from llm_models.cli_plan import PlanOptions, run_plan
from llm_models.cli_profile import SYNTHETIC, ProfileOptions, run_profile

# typer may carry a click of its own, so its error types are reached through typer.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def llm_runtime() -> None:
    """Language models on Tenstorrent devices, or on their CPU twin."""


@app.command()
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts to answer.", metavar="PROMPT...")] = None,
    model: Annotated[
        str, typer.Option(help="smollm2, a GGUF file, a safetensors folder, or a Llama of the hub: organisation/model.")
    ] = "smollm2",
    max_new_tokens: Annotated[int, typer.Option(help="Most new tokens a prompt.")] = 128,
    trace: Annotated[TraceChoice, typer.Option(help="Which operations run through captured traces.")] = TraceChoice.ALL,
    max_batch_size: Annotated[
        int | None, typer.Option(help="Rows of the lane, 1 to 32. Default: one a prompt, at most 8.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens a KV block.")] = 32,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Context in tokens. Default: what the longest prompt and its answer need.")
    ] = None,
    chunk: Annotated[int, typer.Option(help="Longest prefill in one piece, in tokens.")] = 2048,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among that many tokens.")] = 32,
    top_p: Annotated[float, typer.Option(help="Sample among the smallest set of this probability.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampled text repeatable.")] = None,
    device_sampling: Annotated[
        bool, typer.Option("--device-sampling/--host-sampling", help="Where tokens are sampled.")
    ] = True,
    device: Annotated[DeviceChoice, typer.Option(help="The CPU twin, or the first mesh of ttnn.")] = DeviceChoice.TWIN,
    weights: Annotated[WeightType, typer.Option(help="Device type of the weight matrices.")] = WeightType.BFLOAT16,
    weight_cache: Annotated[Path | None, typer.Option(help="A folder that keeps converted weights.")] = None,
    execution: Annotated[
        Execution, typer.Option(help="When the twin runs enqueued work: at once, or at the next wait.")
    ] = Execution.IMMEDIATE,
    raw: Annotated[bool, typer.Option("--raw", help="Feed prompts as they are, without the chat template.")] = False,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with one prompt a line.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Answer prompts with a small model."""
    run_generate(
        GenerateOptions(
            prompts=tuple(prompts or ()),
            prompt_file=prompt_file,
            model=model,
            max_new_tokens=max_new_tokens,
            trace=trace,
            max_batch_size=max_batch_size,
            block_size=block_size,
            max_seq_len=max_seq_len,
            chunk=chunk,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            device_sampling=device_sampling,
            device=device,
            weights=weights,
            weight_cache=weight_cache,
            execution=execution,
            raw=raw,
            json=json,
        )
    )


@app.command()
def coverage(
    model: Annotated[
        str, typer.Option(help="smollm2, a GGUF file, a safetensors folder, or a Llama of the hub: organisation/model.")
    ] = "smollm2",
    trace: Annotated[TraceChoice, typer.Option(help="Which operations run through captured traces.")] = TraceChoice.ALL,
    max_batch_size: Annotated[int, typer.Option(help="Rows of the lane, 1 to 32.")] = DEFAULT_BATCH,
    block_size: Annotated[int, typer.Option(help="Tokens a KV block.")] = 32,
    max_seq_len: Annotated[int | None, typer.Option(help="Context in tokens. Default: the model's.")] = None,
    chunk: Annotated[int, typer.Option(help="Longest prefill in one piece, in tokens.")] = 2048,
    device_sampling: Annotated[
        bool, typer.Option("--device-sampling/--host-sampling", help="Where tokens are sampled.")
    ] = True,
    stochastic: Annotated[
        bool, typer.Option("--stochastic/--greedy", help="Whether decode also covers top-k sampling on the device.")
    ] = True,
    trace_region_size: Annotated[int, typer.Option(help="Bytes of the trace region.")] = TRACE_REGION_BYTES,
    run: Annotated[
        bool, typer.Option("--run", help="Warm the real model up on the twin and show its manifest.")
    ] = False,
    execution: Annotated[
        Execution, typer.Option(help="With --run: when the twin runs enqueued work, at once or at the next wait.")
    ] = Execution.IMMEDIATE,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show what warmup compiles and captures, and the trace region that it needs. Loads no weights without --run."""
    run_coverage(
        CoverageOptions(
            model=model,
            trace=trace,
            max_batch_size=max_batch_size,
            block_size=block_size,
            max_seq_len=max_seq_len,
            chunk=chunk,
            device_sampling=device_sampling,
            stochastic=stochastic,
            trace_region_size=trace_region_size,
            execution=execution,
            run=run,
            json=json,
        )
    )


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Say what this machine can run, and what is missing for a ttnn device."""
    run_doctor(as_json=json)


@app.command()
def plan(
    lengths: Annotated[str, typer.Option(help="Prompt lengths in tokens, one a row: 100,300,3000.")],
    cached: Annotated[str | None, typer.Option(help="Tokens of each row that the cache holds. Default: none.")] = None,
    slots: Annotated[str | None, typer.Option(help="Slot of each row. Default: 0, 1, 2 and so on.")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens a KV block.")] = 32,
    max_batch_size: Annotated[int, typer.Option(help="Slots of the lane.")] = 32,
    max_prefill_batch_size: Annotated[int, typer.Option(help="Most rows of a wave: 1, 2, 4, 8, 16 or 32.")] = 8,
    chunk: Annotated[int, typer.Option(help="Longest prefill in one piece, in tokens.")] = 2048,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Longest sequence in tokens. Default: the longest prompt.")
    ] = None,
    num_blocks: Annotated[int | None, typer.Option(help="Blocks of the cache. Default: enough for every slot.")] = None,
    no_batching: Annotated[bool, typer.Option("--no-batching", help="Plan every row for itself.")] = False,
    alignment: Annotated[
        int | None, typer.Option(help="Cached tokens are rounded down to this. Default: the block size.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show what a prefill call becomes, and why, without a device. Row r owns blocks r * width, r * width + 1, ..."""
    run_plan(
        PlanOptions(
            lengths=lengths,
            cached=cached,
            slots=slots,
            block_size=block_size,
            max_batch_size=max_batch_size,
            max_prefill_batch_size=max_prefill_batch_size,
            chunk=chunk,
            max_seq_len=max_seq_len,
            num_blocks=num_blocks,
            batching=not no_batching,
            alignment=alignment,
            json=json,
        )
    )


@app.command()
def profile(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts to answer.", metavar="[PROMPT...]")] = None,
    model: Annotated[
        str, typer.Option(help="synthetic (a tiny Llama with random weights), or as for generate.")
    ] = SYNTHETIC,
    rows: Annotated[int, typer.Option(help="Rows of the lane when no prompt is given, 1 to 32.")] = 8,
    steps: Annotated[int, typer.Option(help="New tokens a row.")] = 64,
    trace: Annotated[TraceChoice, typer.Option(help="Which operations run through captured traces.")] = TraceChoice.ALL,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    output: Annotated[Path | None, typer.Option(help="Write a Chrome trace (JSON, opens in Perfetto) here.")] = None,
) -> None:
    """Show where the host time of generation goes: prepare, stage, refresh, submit, read, normalise, release."""
    run_profile(
        ProfileOptions(
            prompts=tuple(prompts or ()),
            model=model,
            rows=rows,
            steps=steps,
            trace=trace,
            temperature=temperature,
            output=output,
        )
    )


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 2."""
    try:
        app(standalone_mode=False)
    except _UsageError as error:
        fail(error.format_message())  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except (ValueError, OSError) as error:
        fail(str(error))


def fail(message: str) -> None:
    """Print one line and leave with code 2."""
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)
