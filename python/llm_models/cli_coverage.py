# SPDX-License-Identifier: Apache-2.0
"""`llm-runtime coverage`: what warmup will compile and capture, against the size of the trace region."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

import ttnn_twin
from llm_models.checkpoints import LlamaCheckpoint
from llm_models.cli_device import TRACE_REGION_BYTES, Execution
from llm_models.cli_generate import LARGEST_BATCH, TraceChoice, open_checkpoint
from llm_models.cli_output import make_output
from llm_models.coverage import Coverage, CoverageEntry, coverage_of, plan_coverage
from llm_models.llama.executor import Llama, LlamaOptions

DEFAULT_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class CoverageOptions:
    """The options of `llm-runtime coverage`, checked on construction: `ValueError` with one clear line.

    `stochastic` covers top-k decode beside greedy decode. `run` warms the real model up and reads the result from it.
    """

    model: str
    trace: TraceChoice = TraceChoice.ALL
    max_batch_size: int = DEFAULT_BATCH
    block_size: int = 32
    max_seq_len: int | None = None
    chunk: int = 2048
    device_sampling: bool = True
    stochastic: bool = True
    trace_region_size: int = TRACE_REGION_BYTES
    execution: Execution = Execution.IMMEDIATE
    run: bool = False
    json: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "block_size", "max_seq_len", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.max_batch_size > LARGEST_BATCH:
            raise ValueError(f"--max-batch-size must be at most {LARGEST_BATCH}, got {self.max_batch_size}")
        if self.trace_region_size < 0:
            raise ValueError(f"--trace-region-size must not be negative, got {self.trace_region_size}")


def run_coverage(options: CoverageOptions) -> None:
    """Show the coverage; a region that is too small is a `ValueError` naming the needed size, after the report.

    Without `run` no weight is read. With it a region that is too small is found before any weight is loaded.
    """
    checkpoint = open_checkpoint(options.model)
    lane = lane_options(checkpoint, options)
    output = make_output(as_json=options.json)
    with output.progress("planning") as progress:
        coverage = plan_coverage(checkpoint, lane, progress=progress)
    figures: dict[str, Any] = {}
    if options.run and coverage.total.trace_bytes <= options.trace_region_size:
        coverage, figures = warm_up(checkpoint, lane, options, output)
    report = {
        "model": options.model,
        "layers": checkpoint.config.n_layers,
        "trace_mode": options.trace.value,
        "max_batch_size": lane.max_batch_size,
        "max_seq_len": lane.max_seq_len,
        "block_size": lane.block_size,
        "chunk": lane.max_prefill_chunk_size,
        "device_sampling": lane.device_sampling,
        "trace_region_size": options.trace_region_size,
        "fits": coverage.total.trace_bytes <= options.trace_region_size,
        **coverage.to_json(),
        **figures,
    }
    if options.json:
        print(json.dumps(report))
    else:
        show(coverage, report)
    coverage.require_region(options.trace_region_size)


def lane_options(checkpoint: LlamaCheckpoint, options: CoverageOptions) -> LlamaOptions:
    """The lane that is asked about; its context is the model's own unless given, and never longer."""
    context = checkpoint.config.max_context_len
    max_seq_len = options.max_seq_len or context
    if max_seq_len > context:
        raise ValueError(f"--max-seq-len {max_seq_len} is more than the model's context of {context}")
    return LlamaOptions(
        max_batch_size=options.max_batch_size,
        max_seq_len=max_seq_len,
        block_size=options.block_size,
        max_prefill_chunk_size=options.chunk,
        trace_mode=options.trace.value,
        device_sampling=options.device_sampling,
        device_stochastic_sampling=options.device_sampling and options.stochastic,
    )


def warm_up(
    checkpoint: LlamaCheckpoint, lane: LlamaOptions, options: CoverageOptions, output: Any
) -> tuple[Coverage, dict[str, Any]]:
    """Warm the real model up on the twin; returns its coverage and the figures of the run."""
    mesh = ttnn_twin.open_mesh_device(
        ttnn_twin.MeshShape(1, 1), trace_region_size=options.trace_region_size, execution=options.execution.value
    )
    try:
        started = time.perf_counter()
        with output.progress("loading weights") as progress:
            llama = Llama.open(checkpoint, mesh, lane, progress=progress)
        try:
            loaded = time.perf_counter()
            with output.progress("warmup: compile") as progress:
                llama.warm_up(progress=progress)
            done = time.perf_counter()
            manifest = llama.executor.warmup.coverage_manifest
            return coverage_of(llama), {
                "load_s": round(loaded - started, 2),
                "warmup_s": round(done - loaded, 2),
                "device_programs": mesh.num_program_cache_entries(),
                "trace_region_used": mesh.trace_region_used,
                "manifest": None if manifest is None else manifest_json(manifest),
            }
        finally:
            llama.cleanup()
    finally:
        ttnn_twin.close_mesh_device(mesh)


def manifest_json(manifest: Any) -> dict[str, Any]:
    """The manifest of a warmup, each signature as a dict of its key material."""
    return {
        "eager_programs": [dict(signature.key_material()) for signature in manifest.eager_program_signatures],
        "traces": [dict(signature.key_material()) for signature in manifest.trace_signatures],
        "aliases": [
            {
                "program": dict(alias.program_signature.key_material()),
                "trace": dict(alias.trace_signature.key_material()),
            }
            for alias in manifest.aliases
        ],
    }


def show(coverage: Coverage, report: dict[str, Any]) -> None:
    """Two tables for people: every geometry, and the families with their sums."""
    console = Console()
    table = Table(title=f"{report['model']}, {report['layers']} layers, trace mode {report['trace_mode']}")
    table.add_column("family", no_wrap=True)
    for name in ("rows", "length", "programs", "traces", "trace bytes"):
        table.add_column(name, justify="right")
    table.add_column("sampling")
    for entries in _geometries(coverage):
        first, traced = entries[0], [entry for entry in entries if entry.traced]
        table.add_row(
            first.family,
            str(first.rows),
            str(first.length),
            str(sum(entry.programs for entry in entries)),
            str(len(traced)),
            _bytes(sum(entry.trace_bytes for entry in traced)),
            ", ".join(sorted({variant.partition("@")[0] for entry in entries for variant in entry.variants})),
        )
    console.print(table)
    sums = Table()
    for name in ("family", "programs", "traces", "aliases", "trace bytes"):
        sums.add_column(name, justify="left" if name == "family" else "right")
    for family in (*coverage.families, coverage.total):
        if family.family == "total":
            sums.add_section()
        sums.add_row(
            family.family, str(family.programs), str(family.traces), str(family.aliases), _bytes(family.trace_bytes)
        )
    console.print(sums)
    used = coverage.total.trace_bytes
    console.print(f"trace region: {_bytes(used)} of {_bytes(report['trace_region_size'])} bytes", highlight=False)
    if "warmup_s" in report:
        console.print(
            f"run: weights {report['load_s']} s, warmup {report['warmup_s']} s, {report['device_programs']} device "
            f"programs, {_bytes(report['trace_region_used'])} bytes of traces captured",
            highlight=False,
            soft_wrap=True,
        )


def _geometries(coverage: Coverage) -> Iterator[list[CoverageEntry]]:
    """Entries of one family, rows and length together, in order of family, length and rows."""
    order = {family.family: index for index, family in enumerate(coverage.families)}
    groups: dict[tuple[int, int, int], list[CoverageEntry]] = {}
    for entry in coverage.entries:
        groups.setdefault((order[entry.family], entry.length, entry.rows), []).append(entry)
    for key in sorted(groups):
        yield groups[key]


def _bytes(count: int) -> str:
    return f"{count:,}".replace(",", " ")
