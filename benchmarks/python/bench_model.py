# SPDX-License-Identifier: Apache-2.0
"""A tensor model of as few device operations as the runtime's contract allows, for every device namespace.

It computes nothing of use: each body is one addition, so that host work is what a benchmark over it sees.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from llm_runtime.device import namespace_of
from llm_runtime.seed_buffer import DeviceSeedBuffer

VOCAB = 256
ROWS = 32
TOP_K = 32


class Sampler:
    """Returns ids `[1, 1, 1, rows]` made without a look at the logits."""

    def __init__(self, mesh: Any) -> None:
        self._ns, self._mesh = namespace_of(mesh), mesh
        self.config = SimpleNamespace(
            allow_force_argmax=True, max_top_k=TOP_K, max_batch_size=ROWS, seeds=DeviceSeedBuffer(mesh, ROWS)
        )
        ns = self._ns
        self._ids = ns.to_device(ns.Tensor(np.zeros((1, 1, 1, ROWS), np.int32), ns.int32), device=mesh)

    def decode_forward(self, logits: Any, *, tt_out_tok: Any = None, **_options: Any) -> tuple[Any, None]:
        if tt_out_tok is not None:
            return tt_out_tok, None
        return self._ns.typecast(self._ids, self._ns.uint32), None


class Rope:
    """No rotation; `cos_matrix` only tells the capacity."""

    def __init__(self, positions: int) -> None:
        self.cos_matrix = SimpleNamespace(shape=(1, 1, positions, VOCAB))

    def load_device_weights(self) -> None:
        pass

    def decode_forward(self, indices: Any) -> None:
        return None


class BenchModel:
    """The model contract of prefill and decode over one resident tile of logits."""

    vocab_size = VOCAB

    def __init__(self, mesh: Any, *, positions: int = 8448) -> None:
        ns = namespace_of(mesh)
        self._ns, self._mesh = ns, mesh
        self.config = SimpleNamespace(mesh_device=mesh, dim=VOCAB, max_batch_size=ROWS)
        self.sampling = Sampler(mesh)
        self.rope_setup = Rope(positions)
        rows = np.zeros((1, 1, ROWS, VOCAB), np.float32)
        self._tile = ns.to_device(ns.Tensor(rows, ns.float32), device=mesh)
        if hasattr(ns, "to_layout"):
            self._tile = ns.to_layout(self._tile, ns.TILE_LAYOUT)

    def iter_executor_named_modules(self) -> tuple[()]:
        return ()

    def embed_decode(self, tokens: Any) -> None:
        return None

    def decode_forward(self, x: Any, current_pos: Any, rot_mats: Any, page_table: Any = None) -> Any:
        return self._ns.add(self._tile, self._tile)

    def gather_and_untilize_logits(self, logits: Any) -> Any:
        return self._ns.untilize(logits, use_multicore=True)

    def increment_positions(self, current_pos: Any, rotary_indices: Any) -> None:
        self._ns.plus_one(current_pos, skip_negative_entries=True)
        self._ns.plus_one(rotary_indices)

    def embed_prefill(self, tokens: Any) -> None:
        return None

    def prepare_prefill_rot_mats(self, positions: Any) -> tuple[Any, Any]:
        return self._ns.add(self._tile, self._tile), self._ns.add(self._tile, self._tile)

    def prefill_forward(self, x: Any, rot_mats: Any, **_options: Any) -> Any:
        return self._ns.add(self._tile, self._tile)

    def post_process_prefill_output(self, hidden: Any, last: Any, **_options: Any) -> Any:
        return self._ns.add(self._tile, self._tile)

    def post_process_batched_prefill_output(self, hidden: Any, last: Any, padded_batch: int, length: int) -> Any:
        return self._ns.add(self._tile, self._tile)
