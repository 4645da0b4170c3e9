# SPDX-License-Identifier: Apache-2.0
"""A Llama on a twin mesh with a bound KV cache, driven step by step without the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import ttnn_twin
from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.model import LlamaModel

Array = npt.NDArray[Any]
BLOCK = 32
TILE = 32


class TwinLane:
    """Owns a twin mesh, a model and its cache. Host arrays in, host arrays out; nothing made on the way stays."""

    def __init__(
        self,
        checkpoint: LlamaCheckpoint,
        *,
        batch: int = 2,
        max_seq_len: int = 512,
        num_blocks: int = 32,
        n_layers: int | None = None,
        **mesh: Any,
    ) -> None:
        self.mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), **mesh)
        self.batch = batch
        self.model = LlamaModel.from_checkpoint(
            checkpoint,
            self.mesh,
            max_batch_size=batch,
            max_seq_len=max_seq_len,
            block_size=BLOCK,
            max_num_blocks=num_blocks,
            n_layers=n_layers,
        )
        config = checkpoint.config
        shape = (num_blocks, config.n_kv_heads, BLOCK, config.head_dim)
        self.cache = [
            [
                ttnn_twin.zeros(shape, dtype=ttnn_twin.bfloat16, layout=ttnn_twin.TILE_LAYOUT, device=self.mesh)
                for _ in range(2)
            ]
            for _ in range(self.model.n_layers)
        ]
        self.model.set_kv_cache(self.cache)
        self.model.rope_setup.load_device_weights()

    def close(self) -> None:
        """Release everything."""
        self.model.set_kv_cache(None)
        self.model.release()
        ttnn_twin.close_mesh_device(self.mesh)

    def upload(self, values: Any, dtype: Any) -> Any:
        """A row-major device tensor."""
        kinds = {ttnn_twin.uint32: np.uint32, ttnn_twin.int32: np.int32}
        array = np.ascontiguousarray(values, kinds.get(dtype, np.float32))
        return ttnn_twin.to_device(ttnn_twin.Tensor(array, dtype), device=self.mesh)

    def read(self, tensor: Any) -> Array:
        """Values of a device tensor, which is freed."""
        host: Array = tensor.cpu(blocking=True).to_numpy().copy()
        ttnn_twin.deallocate(tensor)
        return host

    def prefill(self, prompts: Sequence[Sequence[int]], table: Any, *, length: int, **options: Any) -> Any:
        """Hidden states (device) of a wave of prompts padded to `length`; table int32 [wave, width]."""
        tokens = np.zeros((len(prompts), length), np.uint32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        start = options.pop("start", 0)
        token_input = self.upload(tokens.reshape(1, 1, 1, -1), ttnn_twin.uint32)
        positions = self.upload(np.arange(start, start + length)[None], ttnn_twin.uint32)
        rotation = list(self.model.prepare_prefill_rot_mats(positions))
        page_table = self.upload(table, ttnn_twin.int32)
        try:
            return self.model.prefill_forward(
                self.model.embed_prefill(token_input),
                rotation,
                page_table=page_table,
                batch_size=len(prompts),
                **{"user_id": list(range(len(prompts))) if len(prompts) > 1 else 0, **options},
            )
        finally:
            for tensor in (token_input, positions, *rotation, page_table):
                ttnn_twin.deallocate(tensor)

    def bounds(self, last: int) -> tuple[Any, Any]:
        """Device bounds of the tile that holds row `last`."""
        first = last // TILE * TILE
        return (
            self.upload([0, 0, first, 0], ttnn_twin.uint32),
            self.upload([1, 1, first + TILE, self.model.config.dim], ttnn_twin.uint32),
        )

    def chunk(
        self,
        prompt: Sequence[int],
        table: Sequence[int],
        *,
        start: int,
        length: int,
        last: int,
        as_tensor: bool = True,
        row_only: bool = False,
    ) -> Array:
        """Logits of one eager chunk at `start` (a multiple of the block): the tile of row `last`, or its row."""
        blocks = [*table, *[-1] * (length // BLOCK + len(table))]
        options: dict[str, Any] = {
            "chunk_start_idx": start,
            "last_token_slice": self.bounds(last),
            "chunk_page_table": self.upload([blocks[start // BLOCK : (start + length) // BLOCK]], ttnn_twin.int32),
        }
        if as_tensor:
            options["chunk_start_idx_tensor"] = self.upload([start], ttnn_twin.int32)
        if row_only:
            options["last_token_index"] = self.upload([[last % TILE]], ttnn_twin.uint32)
        wide = [[*table, *[0] * max(0, (start + length) // BLOCK - len(table))]]
        logits = self.prefill([prompt[start : start + length]], wide, length=length, start=start, **options)
        for tensor in (*options["last_token_slice"], *(options[k] for k in options if k not in _HOST)):
            ttnn_twin.deallocate(tensor)
        return self.read(logits)

    def decode(self, tokens: Sequence[int], positions: Sequence[int], table: Any) -> Array:
        """Logits [batch, vocabulary] of one step."""
        row = np.zeros((1, 1, 1, TILE), np.uint32)
        row[..., : len(tokens)] = tokens
        rotary = np.zeros((1, TILE), np.uint32)
        rotary[0, : len(positions)] = np.maximum(positions, 0)
        inputs = [
            self.upload(row, ttnn_twin.uint32),
            self.upload(positions, ttnn_twin.int32),
            self.upload(rotary, ttnn_twin.uint32),
            self.upload(table, ttnn_twin.int32),
        ]
        model = self.model
        rotation = model.rope_setup.decode_forward(inputs[2])
        logits = model.decode_forward(model.embed_decode(inputs[0]), inputs[1], rotation, page_table=inputs[3])
        result = self.read(model.gather_and_untilize_logits(logits))
        for tensor in (*inputs, *rotation):
            ttnn_twin.deallocate(tensor)
        return result[0, 0, : self.batch]

    def written(self) -> set[tuple[int, int]]:
        """(block, offset) of every cache write since the last `mesh.ledger.clear()`."""
        return {(write.block, write.offset) for write in self.mesh.ledger.writes}


_HOST = ("chunk_start_idx", "last_token_slice")
