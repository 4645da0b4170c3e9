# SPDX-License-Identifier: Apache-2.0
"""A one-layer decode model of real device ops whose greedy next token is the current token plus its position.

Logits are ``E[token] + R[position]`` with ``E[t][v] = -(v - 2t)**2 / 2`` and ``R`` alike, so that entry ``token +
position`` is the largest of a row: a stale token, position or rotary index shows in the very next token. The current
token's row is written to a paged cache, so that the mesh's ledger shows which positions and blocks a step used.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from llm_runtime.config import PageTableLayout
from llm_runtime.decode import DecodeRuntime, DecodeRuntimeConfig
from llm_runtime.device import namespace_of
from llm_runtime.execution import EagerExecutor, TracedExecutor
from llm_runtime.output_reader import OutputReader
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.runtime import PrefillRuntime
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.seed_buffer import DeviceSeedBuffer
from llm_runtime.trace_compiler import TraceCompiler

VOCAB = 64
ROWS = 32


def _table(size: int) -> np.ndarray[Any, Any]:
    columns = np.arange(VOCAB, dtype=np.float32)
    rows = np.arange(size, dtype=np.float32)[:, None]
    return (-((columns - 2.0 * rows) ** 2) / 2.0).astype(np.float32)


def expected_logits(token: int, position: int) -> np.ndarray[Any, Any]:
    """One row of logits."""
    return _table(VOCAB)[token] + _table(position + 1)[position]


class TinySeeds(DeviceSeedBuffer):
    """A seed buffer ``[rows]`` that remembers every update that changed it."""

    def __init__(self, mesh: Any, rows: int) -> None:
        super().__init__(mesh, rows)
        self.updates: list[list[int]] = []
        self.load()

    @property
    def device(self) -> Any:
        return self._buffer

    @device.setter
    def device(self, tensor: Any) -> None:
        self._buffer = tensor

    def current(self) -> list[int]:
        """The seeds that lie on the device."""
        values: list[int] = self.device.cpu().to_numpy().tolist()
        return values

    def _write(self, host: Any, content: bytes) -> None:
        self.updates.append(np.frombuffer(content, np.uint32).tolist())
        super()._write(host, content)


class TinySampler:
    """Argmax, or top-k over 32 candidates with the device's random streams; log-probs are minus the token id."""

    def __init__(
        self, mesh: Any, *, rows: int = ROWS, allow_force_argmax: bool = True, seeds: bool = True, max_top_k: int = 32
    ) -> None:
        self._ns = namespace_of(mesh)
        self.config = SimpleNamespace(
            allow_force_argmax=allow_force_argmax,
            max_top_k=max_top_k,
            max_batch_size=rows,
            seeds=TinySeeds(mesh, rows) if seeds else None,
        )
        ids = np.arange(ROWS, dtype=np.uint32)
        self._users = self._ns.to_device(self._ns.Tensor(ids, self._ns.uint32), device=mesh)
        self.calls: list[dict[str, Any]] = []

    def decode_forward(
        self,
        logits: Any,
        *,
        k: Any = None,
        p: Any = None,
        temp: Any = None,
        seeds: Any = None,
        tt_out_tok: Any = None,
        enable_log_probs: bool = False,
    ) -> tuple[Any, Any]:
        ns = self._ns
        self.calls.append({"k": k, "p": p, "temp": temp, "log_probs": enable_log_probs})
        if k is None:
            rows = ns.untilize(logits, use_multicore=True)
            return ns.reshape(ns.argmax(rows, dim=-1), (1, 1, 1, ROWS)), None
        values, indices = ns.topk(logits, k=32, dim=-1)
        candidates = ns.untilize(ns.typecast(indices, ns.uint32), use_multicore=True)
        if self.config.seeds is not None:
            ns.manual_seed(self.config.seeds.device, user_ids=self._users)
        tokens = ns.sampling(values, candidates, k=k, p=p, temp=temp)
        if not enable_log_probs:
            return tokens, None
        rows = ns.typecast(ns.to_layout(ns.reshape(tokens, (1, 1, ROWS, 1)), ns.TILE_LAYOUT), ns.bfloat16)
        return tokens, ns.multiply(rows, -1.0)


class TinyRope:
    """Rows of ``R`` by rotary index."""

    def __init__(self, mesh: Any, positions: int) -> None:
        self._ns = namespace_of(mesh)
        table = _table(positions).reshape(1, 1, positions, VOCAB)
        self._rows = self._ns.to_device(self._ns.Tensor(table, self._ns.bfloat16), device=mesh)

    def decode_forward(self, indices: Any) -> Any:
        rows = self._ns.embedding(indices, self._rows, layout=self._ns.TILE_LAYOUT)
        return self._ns.reshape(rows, (1, 1, ROWS, VOCAB))


class TinyDecodeModel:
    """See the module. ``body_calls`` counts runs of the Python body; ``named_modules`` feeds the input check."""

    vocab_size = VOCAB

    def __init__(
        self,
        mesh: Any,
        *,
        lane_capacity: int = 2,
        block_size: int = 32,
        num_blocks: int = 64,
        positions: int = 256,
        sampler: Any = None,
    ) -> None:
        ns = namespace_of(mesh)
        self._ns = ns
        self.config = SimpleNamespace(mesh_device=mesh, max_batch_size=lane_capacity)
        self.sampling = TinySampler(mesh) if sampler is None else sampler
        self.rope_setup = TinyRope(mesh, positions)
        self._lane_capacity = lane_capacity
        table = _table(VOCAB).reshape(1, 1, VOCAB, VOCAB)
        self._embedding = ns.to_device(ns.Tensor(table, ns.bfloat16), device=mesh)
        self.cache = ns.zeros((num_blocks, 1, block_size, VOCAB), dtype=ns.bfloat16, layout=ns.TILE_LAYOUT, device=mesh)
        grid = ns.num_cores_to_corerangeset(lane_capacity, ns.CoreCoord(8, 8), row_wise=True)
        self._shards = ns.create_sharded_memory_config(
            (ROWS, VOCAB),
            grid,
            ns.ShardStrategy.HEIGHT,
            ns.ShardOrientation.ROW_MAJOR,
            use_height_and_width_as_shard_shape=True,
        )
        self.body_calls = 0
        self.named_modules: list[tuple[str, Any]] = []

    def iter_executor_named_modules(self) -> Any:
        return iter(self.named_modules)

    def embed_decode(self, tokens: Any) -> Any:
        rows = self._ns.embedding(tokens, self._embedding, layout=self._ns.TILE_LAYOUT)
        return self._ns.reshape(rows, (1, 1, ROWS, VOCAB))

    def decode_forward(self, x: Any, current_pos: Any, rot_mats: Any, page_table: Any = None) -> Any:
        ns, lane = self._ns, self._lane_capacity
        self.body_calls += 1
        for _, module in self.named_modules:
            module.decode_forward(x)
        heads = ns.transpose(ns.slice(x, (0, 0, 0, 0), (1, 1, lane, VOCAB)), 1, 2)
        heads = ns.interleaved_to_sharded(heads, self._shards)
        ns.experimental.paged_update_cache(self.cache, heads, update_idxs_tensor=current_pos, page_table=page_table)
        return ns.add(x, rot_mats)

    def gather_and_untilize_logits(self, logits: Any) -> Any:
        return self._ns.untilize(logits, use_multicore=True)

    def increment_positions(self, current_pos: Any, rotary_indices: Any) -> None:
        self._ns.plus_one(current_pos, skip_negative_entries=True)
        self._ns.plus_one(rotary_indices)


def without_feedback(model: TinyDecodeModel) -> TinyDecodeModel:
    """The same model for a device that cannot advance positions."""
    model.increment_positions = None  # type: ignore[assignment, method-assign]
    return model


def decode_layout(*, raw: int = 8, decode: int = 8) -> PageTableLayout:
    """The acceptance matrix's decode layout: 32 tokens per block, 8 blocks."""
    return PageTableLayout(block_size=32, raw_capacity_width=raw, prefill_width=72, decode_width=decode)


def decode_config(model: Any, **changes: Any) -> DecodeRuntimeConfig:
    """A resolved decode config over ``model`` with a reader of its own."""
    options: dict[str, Any] = {
        "model": model,
        "output_reader": OutputReader(model.config.mesh_device),
        "lane_capacity": model.config.max_batch_size,
        "page_table_layout": decode_layout(),
        "device_sampling_enabled": True,
    }
    return DecodeRuntimeConfig.resolve(**{**options, **changes})


def decode_runtime(model: Any, **changes: Any) -> DecodeRuntime:
    """A decode runtime over :func:`decode_config`."""
    return DecodeRuntime(decode_config(model, **changes))


class DecodeLane:
    """Eager and traced executors over one tiny model, as a model executor would compose them."""

    def __init__(self, model: Any, **changes: Any) -> None:
        self.model = model
        self.mesh = model.config.mesh_device
        self.decode = decode_runtime(model, **changes)
        config = self.decode.config
        self.prefill = PrefillRuntime(
            PrefillRuntimeConfig.resolve(
                model=model,
                output_reader=config.output_reader,
                page_table_layout=config.page_table_layout,
                max_batch_size=config.lane_capacity,
                max_prefill_chunk_size=128,
                device_sampling_enabled=config.device_sampling_enabled,
                can_enable_trace=lambda length, cached: False,
            )
        )
        self.programs = ProgramCompiler(self.mesh, lambda: model.cache)
        self.eager = EagerExecutor(prefill=self.prefill, decode=self.decode, program_compiler=self.programs)
        self.traces = TraceCompiler(self.programs)
        self.traced = TracedExecutor(eager=self.eager, trace_compiler=self.traces, trace_mode="decode_only")

    def capture(self, *calls: dict[str, Any]) -> None:
        """Compile and register every call, then capture all."""
        for call in calls:
            self.traced.compile_decode(**call)
        self.traces.capture_all()

    def close(self) -> None:
        """Release in the order of a model executor."""
        self.decode.drain_external_outputs()
        self.decode.config.output_reader.drain()
        self.decode.cleanup_transients()
        self.traces.cleanup()
        self.programs.cleanup()
