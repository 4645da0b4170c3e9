# SPDX-License-Identifier: Apache-2.0
"""A tensor model whose prefill output names the token and the position it came from, and a lane around it.

Hidden states are ``2 * onehot(token) + onehot(position % 64)``; logits are the hidden states of the extracted row. So
one row of logits says which token, at which absolute position, the runtime extracted. The KV cache holds the hidden
states, so that the mesh's ledger and the cache contents say what was written where.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from llm_runtime.config import PageTableLayout
from llm_runtime.device import namespace_of
from llm_runtime.output_reader import OutputReader
from llm_runtime.prefill.config import PrefillRuntimeConfig
from llm_runtime.prefill.runtime import PrefillRuntime

VOCAB = 64
TILE = 32


def echo_row(token: int, position: int) -> np.ndarray[Any, Any]:
    """The logits of ``token`` at absolute ``position``."""
    row = np.zeros(VOCAB, np.float32)
    row[token] += 2.0
    row[position % VOCAB] += 1.0
    return row


def expected_logits(call: dict[str, Any]) -> np.ndarray[Any, Any]:
    """What a call without sampling must give, float32 ``[rows, 1, VOCAB]``."""
    lengths = call["prompt_lens"]
    return np.stack([echo_row(int(call["tokens"][row, n - 1]), n - 1)[None] for row, n in enumerate(lengths)])


def expected_tokens(call: dict[str, Any]) -> list[int]:
    """What a sampled call must give: the sampler takes the largest logit, which names the last token."""
    return [int(call["tokens"][row, n - 1]) for row, n in enumerate(call["prompt_lens"])]


def check_result(call: dict[str, Any], result: Any) -> None:
    """Compare the result of a call with what it must give."""
    if call["sampling_params"] is None:
        np.testing.assert_array_equal(result, expected_logits(call))
    else:
        assert result[0].tolist() == expected_tokens(call)


def names(mesh: Any) -> list[str]:
    """Names of the device tensors that are allocated."""
    return [tensor.name for tensor in mesh.live_tensors()]


class EchoRope:
    """Position rows, ``onehot(position % 64)``, for ``max_positions`` positions."""

    def __init__(self, mesh: Any, max_positions: int) -> None:
        self._mesh, self._max_positions = mesh, max_positions
        self.cos_matrix: Any = None
        self.loads = 0

    def load_device_weights(self) -> None:
        self.loads += 1
        if self.cos_matrix is None:
            ns = namespace_of(self._mesh)
            rows = np.eye(VOCAB, dtype=np.float32)[np.arange(self._max_positions) % VOCAB]
            self.cos_matrix = ns.to_device(ns.Tensor(rows.reshape(1, 1, -1, VOCAB), ns.bfloat16), device=self._mesh)


class EchoSeeds:
    """A mutable seed buffer that remembers every update."""

    def __init__(self, mesh: Any, rows: int) -> None:
        self._mesh = mesh
        self.source = np.arange(1, rows + 1, dtype=np.uint32)
        self.updates: list[list[int]] = []
        self._device: Any = None

    def get_device_buffer(self) -> Any:
        if self._device is None:
            ns = namespace_of(self._mesh)
            self._device = ns.to_device(ns.Tensor(self.source, ns.uint32), device=self._mesh)
        return self._device

    def update(self, values: np.ndarray[Any, Any]) -> None:
        ns = namespace_of(self._mesh)
        self.updates.append(values.tolist())
        ns.copy_host_to_device_tensor(ns.Tensor(values, ns.uint32), self.get_device_buffer())


class EchoSampler:
    """Takes the largest logit of each row; its log-probability is the negative logit."""

    def __init__(self, mesh: Any, *, rows: int = 32, allow_force_argmax: bool = True, seeds: bool = True) -> None:
        self._ns = namespace_of(mesh)
        self.config = SimpleNamespace(
            allow_force_argmax=allow_force_argmax,
            max_top_k=32,
            max_batch_size=rows,
            seeds=EchoSeeds(mesh, rows) if seeds else None,
        )
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
        self.calls.append(
            {
                "rows": logits.shape[2],
                "log_probs": enable_log_probs,
                **{
                    name: None if value is None else value.cpu().to_numpy().tolist()
                    for name, value in (("k", k), ("p", p), ("temp", temp), ("seeds", seeds))
                },
            }
        )
        rows = logits.shape[2]
        values, indices = ns.topk(logits, k=32, dim=-1)
        best = ns.slice(indices, (0, 0, 0, 0), (1, 1, rows, 1))
        wide = ns.typecast(best, ns.uint32)
        flat = ns.untilize(wide, use_multicore=True)
        for tensor in (indices, best, wide):
            ns.deallocate(tensor)
        tokens = ns.reshape(flat, (1, 1, 1, rows))
        if tt_out_tok is not None:
            ns.copy(input_a=tokens, input_b=tt_out_tok)
            ns.deallocate(flat)
            tokens = tt_out_tok
        log_probs = None
        if enable_log_probs and k is not None:
            top = ns.slice(values, (0, 0, 0, 0), (1, 1, rows, 1))
            log_probs = ns.multiply(top, -1.0)
            ns.deallocate(top)
        ns.deallocate(values)
        return tokens, log_probs


class EchoModel:
    """One-layer echo; see the module. ``calls`` records the keyword arguments of every body call."""

    vocab_size = VOCAB

    def __init__(
        self,
        mesh: Any,
        *,
        lane_capacity: int = 32,
        block_size: int = 32,
        num_blocks: int = 264,
        max_positions: int = 8448,
        sampler: EchoSampler | None = None,
    ) -> None:
        ns = namespace_of(mesh)
        self._ns = ns
        self.config = SimpleNamespace(mesh_device=mesh, dim=VOCAB, max_batch_size=lane_capacity)
        self.sampling = EchoSampler(mesh) if sampler is None else sampler
        self.rope_setup = EchoRope(mesh, max_positions)
        table = 2.0 * np.eye(VOCAB, dtype=np.float32).reshape(1, 1, VOCAB, VOCAB)
        self._table = ns.to_device(ns.Tensor(table, ns.bfloat16), device=mesh)
        self.cache = ns.zeros((num_blocks, 1, block_size, VOCAB), dtype=ns.bfloat16, layout=ns.TILE_LAYOUT, device=mesh)
        self.calls: list[dict[str, Any]] = []
        self.extractions: list[tuple[Any, ...]] = []
        # Everything the model and its sampler own exists from here on, so that tests may count what else is alive.
        self.rope_setup.load_device_weights()
        if self.sampling.config.seeds is not None:
            self.sampling.config.seeds.get_device_buffer()

    def embed_prefill(self, tokens: Any) -> Any:
        ns = self._ns
        rows = ns.embedding(tokens, self._table, layout=ns.TILE_LAYOUT)
        return ns.unsqueeze_to_4D(rows)

    def prepare_prefill_rot_mats(self, positions: Any) -> tuple[Any, Any]:
        ns, made = self._ns, []
        try:
            for _ in range(2):
                rows = ns.embedding(positions, self.rope_setup.cos_matrix, layout=ns.TILE_LAYOUT)
                made.append(ns.unsqueeze_to_4D(rows))
        except BaseException:
            for tensor in made:
                ns.deallocate(tensor)
            raise
        return made[0], made[1]

    def prefill_forward(
        self,
        x: Any,
        rot_mats: Any,
        user_id: Any = 0,
        page_table: Any = None,
        chunk_page_table: Any = None,
        chunk_start_idx: Any = None,
        get_last_token: int = -1,
        batch_size: int = 1,
        chunk_start_idx_tensor: Any = None,
        last_token_slice: Any = None,
        last_token_index: Any = None,
    ) -> Any:
        ns = self._ns
        self.calls.append(
            {
                "user_id": user_id,
                "batch_size": batch_size,
                "chunk_start_idx": chunk_start_idx,
                "chunked": chunk_page_table is not None,
                "start_tensor": chunk_start_idx_tensor is not None,
                "slice": last_token_slice is not None,
                "index": last_token_index is not None,
                "get_last_token": get_last_token,
            }
        )
        folded = x.shape[2]
        hidden = None
        try:
            rows = ns.reshape(x, (batch_size, 1, folded // batch_size, VOCAB))
            hidden = ns.add(rows, rot_mats[0])
            table = page_table if chunk_page_table is None else chunk_page_table
            for row in user_id if isinstance(user_id, list) else [user_id]:
                self._fill(hidden, table, row, batch_size)
            result = ns.reshape(hidden, (1, 1, folded, VOCAB))
            if last_token_slice is not None:
                logits = self.post_process_prefill_output(
                    result, None, last_token_slice=last_token_slice, last_token_index=last_token_index
                )
                ns.deallocate(hidden)
                result = logits
        except BaseException:
            if hidden is not None:
                ns.deallocate(hidden)
            ns.deallocate(x)
            raise
        ns.deallocate(x)
        return result

    def _fill(self, hidden: Any, table: Any, row: int, batch_size: int) -> None:
        ns = self._ns
        length = min(hidden.shape[2], table.shape[1] * self.cache.shape[2])
        part = hidden
        if batch_size > 1 or length < hidden.shape[2]:
            part = ns.slice(hidden, (row, 0, 0, 0), (row + 1, 1, length, VOCAB))
        try:
            ns.experimental.paged_fill_cache(self.cache, part, table, batch_idx=row)
        finally:
            if part is not hidden:
                ns.deallocate(part)

    def post_process_prefill_output(
        self, hidden: Any, last: Any, last_token_slice: Any = None, last_token_index: Any = None
    ) -> Any:
        ns = self._ns
        self.extractions.append((last, last_token_slice is not None, last_token_index is not None))
        if last_token_slice is None:
            tile = last // TILE * TILE
            return ns.slice(hidden, (0, 0, tile, 0), (1, 1, tile + TILE, VOCAB))
        start, end = last_token_slice
        cut = ns.slice(hidden, start, end, slice_dim=2, num_devices=hidden.shape[2] // TILE)
        if last_token_index is None:
            return cut
        try:
            rows = ns.untilize(cut, use_multicore=True)
        finally:
            ns.deallocate(cut)
        try:
            row = ns.embedding(last_token_index, rows, layout=ns.TILE_LAYOUT)
        finally:
            ns.deallocate(rows)
        return ns.unsqueeze_to_4D(row)

    def post_process_batched_prefill_output(self, hidden: Any, last: list[int], padded_batch: int, length: int) -> Any:
        ns = self._ns
        self.extractions.append((list(last), padded_batch, length))
        wanted = np.zeros((1, TILE), np.uint32)
        wanted[0, :padded_batch] = np.arange(padded_batch) * length + np.array(last)
        index = ns.to_device(ns.Tensor(wanted, ns.uint32), device=self.config.mesh_device)
        rows = None
        try:
            rows = ns.untilize(hidden, use_multicore=True)
            picked = ns.embedding(index, rows, layout=ns.TILE_LAYOUT)
        finally:
            ns.deallocate(index)
            if rows is not None:
                ns.deallocate(rows)
        return ns.unsqueeze_to_4D(picked)


class EchoLane:
    """A prefill runtime over an echo model with the acceptance matrix's defaults, and helpers to drive it."""

    def __init__(self, model: EchoModel, **changes: Any) -> None:
        self.model = model
        self.mesh = model.config.mesh_device
        layout = PageTableLayout(block_size=32, raw_capacity_width=256, prefill_width=264, decode_width=256)
        options: dict[str, Any] = {
            "model": model,
            "output_reader": OutputReader(self.mesh),
            "page_table_layout": layout,
            "max_batch_size": model.config.max_batch_size,
            "max_prefill_chunk_size": 2048,
            "device_sampling_enabled": True,
            "can_enable_trace": lambda length, cached: length in (128, 1024, 2048),
            "supports_batched_prefill": True,
            "max_prefill_batch_size": 8,
        }
        self.runtime = PrefillRuntime(PrefillRuntimeConfig.resolve(**{**options, **changes}))

    def prompt(self, lengths: list[int], *, width: int | None = None) -> dict[str, Any]:
        """Tokens ``0, 1, 2, ...`` modulo the vocabulary, shifted by the row, and a disjoint page table per row."""
        width = max(lengths) if width is None else width
        rows = len(lengths)
        tokens = (np.arange(width)[None] + 7 * np.arange(rows)[:, None]) % VOCAB
        blocks = -(-max(lengths) // 32)
        table = np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks)
        return {"tokens": tokens.astype(np.int64), "page_table": table, "prompt_lens": np.array(lengths)}

    def eager(self, call: dict[str, Any]) -> Any:
        """Prepare, invoke every request, assemble."""
        prepared = self.runtime.prepare(**call)
        results = [(item, self.runtime.invoke(item)) for item in prepared]
        return self.runtime.assemble(
            results, batch_size=call["tokens"].shape[0], sampling_params=call.get("sampling_params")
        )

    def trace(self, *calls: dict[str, Any]) -> list[EchoTrace]:
        """Compile every request of the calls, allocate for all of them, then capture one trace each."""
        prepared = [item for call in calls for item in self.runtime.prepare(**call)]
        for item in prepared:
            self.runtime._release_transient(self.runtime.invoke(item, count_tokens=False).owned)
        traces = [EchoTrace(self.runtime, item) for item in prepared]
        for trace in traces:
            trace.prime()
        for trace in traces:
            trace.capture()
        return traces

    def replay(self, traces: list[EchoTrace], call: dict[str, Any]) -> Any:
        """Serve a call through captured traces, matched by trace and program signature."""
        prepared = self.runtime.prepare(**call)
        steps = ((item, next(trace for trace in traces if trace.serves(item)).run(item)) for item in prepared)
        return self.runtime.assemble(
            steps, batch_size=call["tokens"].shape[0], sampling_params=call.get("sampling_params")
        )


class EchoTrace:
    """One captured prefill trace with one workspace, driven by hand in the order of the trace registry."""

    def __init__(self, runtime: PrefillRuntime, prepared: Any) -> None:
        self.runtime, self.prepared = runtime, prepared
        self.mesh = runtime.config.mesh_device
        self.plan = runtime.capture_plan(prepared)
        self.persistent = self.plan.prepare_inputs()
        self.workspace = self.plan.prepare_workspace()
        self.trace_id: Any = None
        self.output: Any = None

    def prime(self) -> None:
        if self.plan.prime is not None and self.plan.release_prime_output is not None:
            assert self.plan.release_prime_output(self.plan.prime(self.persistent)) == []
        if self.plan.prime_workspace is not None:
            self.plan.prime_workspace(self.persistent, self.workspace)

    def capture(self) -> None:
        ns = namespace_of(self.mesh)
        self.trace_id = ns.begin_trace_capture(self.mesh, cq_id=0)
        self.output = self.plan.capture(self.persistent)
        ns.end_trace_capture(self.mesh, self.trace_id, cq_id=0)
        # A replay writes its own output before anybody reads it.
        ns.acknowledge_corruptible(self.output)

    def serves(self, prepared: Any) -> bool:
        return (prepared.trace_signature, prepared.program_signatures) == (
            self.prepared.trace_signature,
            self.prepared.program_signatures,
        )

    def run(self, prepared: Any) -> Any:
        ns = namespace_of(self.mesh)
        for chunk in prepared.request.chunks:
            self.runtime.refresh_trace(prepared, self.persistent, self.workspace, chunk)
            ns.execute_trace(self.mesh, self.trace_id, cq_id=0, blocking=False)
        return self.runtime.finish_trace(prepared, self.output, self.workspace)


def make_call(
    lane: EchoLane, lengths: list[int], *, start: int = 0, params: Any = None, shift: int = 0
) -> dict[str, Any]:
    """A call of rows that all start behind ``start`` cached tokens; ``shift`` makes other tokens."""
    call = {**lane.prompt(lengths), "sampling_params": params}
    call["tokens"] = (call["tokens"] + shift) % VOCAB
    if start:
        call["start_pos"] = np.full(len(lengths), start)
    return call


def watch(owner: Any, name: str, events: list[Any], event: Any = None) -> None:
    """Append ``event`` (the method's name by default, or what it returns for the arguments) at each call."""
    method = getattr(owner, name)

    def watched(*args: Any, **options: Any) -> Any:
        events.append(event(*args, **options) if callable(event) else event or name)
        return method(*args, **options)

    setattr(owner, name, watched)
