# SPDX-License-Identifier: Apache-2.0
"""What warmup compiles and captures for one model and policy: programs, traces, aliases and their trace bytes.

Read from the registries of a warmed lane; or, without any weight, from a stand-in of the same depth that is warmed on a
twin which never runs anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import ttnn_twin
from llm_models.checkpoints import LlamaCheckpoint
from llm_models.checkpoints.checkpoint import weight_shape
from llm_models.llama.executor import Llama, LlamaOptions, Progress

#: Width of the stand-in's rows and feed-forward: one tile. How many ops and buffers a body has depends on no width.
STAND_IN_WIDTH = 32
#: A trace region that everything fits.
UNLIMITED = 1 << 60


@dataclass(frozen=True, kw_only=True)
class CoverageEntry:
    """One trace with the programs that share it, or one program without a trace (then `trace_bytes` is 0).

    `rows` are physical, `length` is in tokens per invocation (1 for decode), `table_width` in blocks. `variants` are
    the sampling paths, with `+penalties` and `+logprobs`, and `@n` for the tile in which a prompt ends.
    """

    family: str
    rows: int
    length: int
    table_width: int
    traced: bool
    programs: int
    variants: tuple[str, ...]
    trace_bytes: int


@dataclass(frozen=True, kw_only=True)
class FamilyCoverage:
    """The sums of one family: prefill by operation variant, and decode."""

    family: str
    programs: int
    traces: int
    aliases: int
    trace_bytes: int


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Everything that serving may ask for."""

    entries: tuple[CoverageEntry, ...]

    @property
    def families(self) -> tuple[FamilyCoverage, ...]:
        """Sums in order of first appearance, decode last."""
        names = sorted(dict.fromkeys(entry.family for entry in self.entries), key=lambda name: name == "decode")
        return tuple(_sum(name, [entry for entry in self.entries if entry.family == name]) for name in names)

    @property
    def total(self) -> FamilyCoverage:
        """The sums of everything; `trace_bytes` is the trace region that the lane needs."""
        return _sum("total", self.entries)

    def require_region(self, size: int) -> None:
        """`ValueError` naming the needed size when a trace region of `size` bytes is too small."""
        total = self.total
        if total.trace_bytes > size:
            raise ValueError(
                f"a trace region of {size} bytes is too small: {total.traces} traces need {total.trace_bytes} bytes; "
                f"open the mesh with trace_region_size={total.trace_bytes} or more"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **{name: value for name, value in asdict(self.total).items() if name != "family"},
            "eager_programs": sum(entry.programs for entry in self.entries if not entry.traced),
            "families": [asdict(family) for family in self.families],
            "entries": [{**asdict(entry), "variants": list(entry.variants)} for entry in self.entries],
        }


def plan_coverage(checkpoint: LlamaCheckpoint, options: LlamaOptions, *, progress: Progress | None = None) -> Coverage:
    """The coverage of `checkpoint` under `options`, exact to the byte; no weight is read and nothing is computed."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=UNLIMITED, execution="never")
    try:
        llama = Llama.open(stand_in(checkpoint), mesh, replace(options, weight_cache=None))
        try:
            llama.warm_up(progress=progress)
            return coverage_of(llama)
        finally:
            llama.cleanup()
    finally:
        ttnn_twin.close_mesh_device(mesh)


def stand_in(checkpoint: LlamaCheckpoint) -> LlamaCheckpoint:
    """A checkpoint with the layers, heads and vocabulary of `checkpoint`, but narrow, and with zeros for weights."""
    config = replace(checkpoint.config, dim=STAND_IN_WIDTH, ffn_dim=STAND_IN_WIDTH)
    return replace(checkpoint, config=config, read=lambda name: np.zeros(weight_shape(config, name), np.float32))


def coverage_of(llama: Llama) -> Coverage:
    """The coverage of a warmed lane on a twin mesh."""
    executor = llama.executor
    return Coverage(entries=tuple(_entries(executor, executor.mesh_device)))


def _entries(executor: Any, mesh: Any) -> Iterator[CoverageEntry]:
    programs, traces = executor.program_compiler, executor.trace_compiler
    sources: dict[Any, list[Any]] = {}
    eager: list[Any] = []
    for record in programs.compiled_programs:
        key = None if traces is None else traces.trace_key_for_program(record.key)
        (eager if key is None else sources.setdefault(key, [])).append(record.signature)
    for key, signatures in sources.items():
        yield _entry(signatures, trace_bytes=mesh.trace_bytes(traces.get(key).artifact.trace_id))
    for signature in eager:
        yield _entry([signature], trace_bytes=None)


def _entry(signatures: list[Any], *, trace_bytes: int | None) -> CoverageEntry:
    first = signatures[0]
    prefill = hasattr(first, "operation_variant")
    return CoverageEntry(
        family=f"prefill {first.operation_variant}" if prefill else "decode",
        rows=first.padded_batch_size if prefill else first.batch_size,
        length=first.invocation_sequence_length if prefill else 1,
        table_width=first.page_table_width,
        traced=trace_bytes is not None,
        programs=len(signatures),
        variants=tuple(dict.fromkeys(_variant(signature) for signature in signatures)),
        trace_bytes=trace_bytes or 0,
    )


def _variant(signature: Any) -> str:
    name: str = signature.sampling_path
    name += "+penalties" if signature.penalties_enabled else ""
    name += "+logprobs" if signature.logprobs_enabled else ""
    tile = getattr(signature, "last_token_tile_start", None)
    return name if tile is None else f"{name}@{tile}"


def _sum(name: str, entries: Any) -> FamilyCoverage:
    traced = [entry for entry in entries if entry.traced]
    return FamilyCoverage(
        family=name,
        programs=sum(entry.programs for entry in entries),
        traces=len(traced),
        aliases=sum(entry.programs for entry in traced),
        trace_bytes=sum(entry.trace_bytes for entry in traced),
    )
