# SPDX-License-Identifier: Apache-2.0
"""Small random Llamas as lanes on submeshes of one twin mesh, and a loop that serves prompts over any executor."""

from __future__ import annotations

import functools
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import ttnn_twin
from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.executor import Llama, LlamaOptions
from llm_runtime.lane_group import LaneGroupExecutor
from llm_runtime.prefill.sampling_params import SamplingParams
from support.llama import tiny_checkpoint, tiny_config

Array = npt.NDArray[Any]
BLOCK = 32
LENGTH = 128


@functools.cache
def checkpoint() -> LlamaCheckpoint:
    """Two layers, 2 query heads and 1 key head of 32, width 32, vocabulary 256."""
    config = tiny_config(dim=32, n_heads=2, n_kv_heads=1, ffn_dim=32, tied_embeddings=False, max_context_len=8192)
    return tiny_checkpoint(config, seed=3)


class TwinLanes:
    """`count` lanes of `capacity` rows with room for `length` tokens each, and the group over them.

    Traced decode covers greedy sampling, and with `stochastic` any other.
    Owns everything. `close` checks that cleanup leaves no device tensor behind.
    """

    def __init__(
        self,
        count: int,
        capacity: int,
        *,
        trace_mode: Any = "none",
        execution: Any = "immediate",
        device_sampling: bool = True,
        stochastic: bool = False,
        length: int = LENGTH,
        block: int = BLOCK,
        chunk: int = LENGTH,
    ) -> None:
        self.parent = ttnn_twin.open_mesh_device(
            ttnn_twin.MeshShape(1, count), trace_region_size=50_000_000, execution=execution
        )
        options = LlamaOptions(
            max_batch_size=capacity,
            max_seq_len=length,
            block_size=block,
            max_prefill_chunk_size=chunk,
            trace_mode=trace_mode,
            device_sampling=device_sampling,
            device_stochastic_sampling=stochastic,
        )
        self.meshes = self.parent.create_submeshes(ttnn_twin.MeshShape(1, 1))
        self.llamas = [Llama.open(checkpoint(), mesh, options) for mesh in self.meshes]
        self.lanes = [llama.executor for llama in self.llamas]
        self.kv_cache = [llama.kv_cache for llama in self.llamas]
        self.group = LaneGroupExecutor(self.lanes, mesh_device=self.parent)
        self.width = length // block
        self.trace_mode = trace_mode
        self.device_sampling = device_sampling

    @property
    def serving(self) -> Serving:
        """The group as a target; block ids count from 0 in every lane."""
        rows = self.group.per_lane_max_batch_size
        return Serving(self.group, np.concatenate([block_ids(rows, self.width)] * len(self.lanes)))

    def warm_up(self) -> None:
        """Compile and capture everything on every lane."""
        sampled = self.device_sampling
        self.group.warmup_model_prefill(
            kv_cache=self.kv_cache, can_sample_on_device=sampled, enable_trace=self.trace_mode == "all"
        )
        self.group.warmup_model_decode(
            kv_cache=self.kv_cache,
            max_batch_size=self.group.max_batch_size,
            num_blocks=self.width,
            can_sample_on_device=sampled,
            enable_trace=self.trace_mode != "none",
        )

    def close(self) -> None:
        """Release everything, in the order group, weights, mesh."""
        self.group.cleanup()
        for llama in self.llamas:
            llama.model.release()
        gc.collect()  # frames of a failed call hold tensors until its error is gone
        left = [mesh.live_tensors() for mesh in self.meshes]
        ttnn_twin.close_mesh_device(self.parent)
        assert not any(left), f"cleanup left device tensors behind: {left}"


class OneLane:
    """The same model as a single lane of `capacity` rows, without a group. Owns everything."""

    def __init__(self, capacity: int) -> None:
        self.mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1))
        self.llama = Llama.open(
            checkpoint(),
            self.mesh,
            LlamaOptions(
                max_batch_size=capacity,
                max_seq_len=LENGTH,
                block_size=BLOCK,
                max_prefill_chunk_size=LENGTH,
                trace_mode="none",
            ),
        )
        self.serving = Serving(self.llama.executor, block_ids(capacity))

    def close(self) -> None:
        """Release everything."""
        self.llama.cleanup()
        ttnn_twin.close_mesh_device(self.mesh)


class Serving:
    """Serves prompts over a group or a single executor whose slot `s` owns the blocks `table[s]`."""

    def __init__(self, target: Any, table: Array) -> None:
        self.target = target
        self.table = table
        self.capacity = len(table)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int], **options: Any) -> Any:
        """The target's prefill of `prompts` at `slots`."""
        return self.target.prefill_forward(
            padded(prompts),
            self.table[list(slots)],
            prompt_lens=np.array([len(prompt) for prompt in prompts]),
            empty_slots=list(slots),
            **options,
        )

    def step(self, tokens: dict[int, int], positions: dict[int, int], **options: Any) -> Any:
        """One decode of the slots that have a token; every other slot is idle."""
        ids, starts = np.zeros(self.capacity, np.int64), np.full(self.capacity, -1, np.int64)
        for slot, token in tokens.items():
            ids[slot], starts[slot] = token, positions[slot]
        return self.target.decode_forward(ids, starts, self.table, **options)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        slots: Sequence[int],
        *,
        steps: int,
        sampled: bool,
        asynchronous: bool = False,
        row_sampling: dict[str, Sequence[Any]] | None = None,
        **options: Any,
    ) -> list[list[int]]:
        """`steps` + 1 tokens of every prompt: sampled on the device (greedy unless `row_sampling`), or by argmax of the
        logits."""
        fields = row_sampling or dict.fromkeys(("temperature", "top_k", "top_p"), None)
        if row_sampling is None:
            fields = {"temperature": [0.0] * len(prompts), "top_k": [1] * len(prompts), "top_p": [1.0] * len(prompts)}
        params = SamplingParams(**fields) if sampled else None
        first = self.prefill(prompts, slots, sampling_params=params, **options)
        rows = first[0].tolist() if sampled else first[:, -1].argmax(-1).tolist()
        made = [[token] for token in rows]
        grid = None if params is None else SamplingParams(**self._grid(fields, slots))
        for step in range(steps):
            output = self.step(
                {slot: made[row][-1] for row, slot in enumerate(slots)},
                {slot: len(prompts[row]) + step for row, slot in enumerate(slots)},
                sampling_params=grid,
                reset_batch=step == 0,
                read_from_device=not asynchronous,
                **options,
            )
            if asynchronous:
                host, _events = self.target.read_decode_output(output, async_read=True)
                output = self.target.process_decode_output_host(host, is_tokens=sampled)
            values, log_probs = output
            assert log_probs is None
            for row, slot in enumerate(slots):
                made[row].append(int(values[slot]) if sampled else int(values[slot, -1].argmax()))
        return made

    def _grid(self, fields: dict[str, Any], slots: Sequence[int]) -> dict[str, list[Any]]:
        """One entry per slot; entries of idle slots are senseless on purpose."""
        grid = {}
        for name, values in fields.items():
            column: list[Any] = [-5] * self.capacity
            for slot, value in zip(slots, values, strict=True):
                column[slot] = value
            grid[name] = column
        return grid


def block_ids(rows: int, width: int = LENGTH // BLOCK) -> Array:
    """All block ids `[rows, width]` of a lane, out of order (`width` is no multiple of 3)."""
    return ((np.arange(rows * width, dtype=np.int32) * 3 + 2) % (rows * width)).reshape(rows, width)


def padded(prompts: Sequence[Sequence[int]]) -> Array:
    """Token ids `[N, longest]`, zeros behind each prompt."""
    tokens = np.zeros((len(prompts), max(map(len, prompts), default=0)), np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    return tokens


def prompts_of(lengths: Sequence[int], *, seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths."""
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 256, length).tolist() for length in lengths]
