# SPDX-License-Identifier: Apache-2.0
"""The Llama body on real ttnn's mock device: every call form is accepted, and shapes agree with the contract.

The mock computes nothing, so values are not looked at. Runs only where ttnn is installed and a mock cluster is set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llm_models.llama.model import LlamaModel
from llm_models.qwen3.model import Qwen3Model
from support.llama import tiny_checkpoint, tiny_config

# The extension, because a folder named ttnn on the path would pass for the package.
pytest.importorskip("ttnn._ttnn", reason="ttnn is not installed")
ttnn: Any = sys.modules["ttnn"]
pytestmark = pytest.mark.skipif(
    "TT_METAL_MOCK_CLUSTER_DESC_PATH" not in os.environ, reason="TT_METAL_MOCK_CLUSTER_DESC_PATH names no mock cluster"
)

BLOCK = 32
HEAD_NORMS = ("q_norm", "k_norm")
NUM_BLOCKS = 128


class MockLane:
    """A two-layer Llama with its KV cache on the mock device."""

    def __init__(
        self, mesh: Any, config: dict[str, Any], *, batch: int, dtype: Any, model_type: type[LlamaModel] = LlamaModel
    ) -> None:
        self.mesh, self.batch = mesh, batch
        self.config = tiny_config(**config)
        checkpoint = tiny_checkpoint(self.config)
        head_norm = np.ones(self.config.head_dim, np.float32)
        self.model = model_type.from_checkpoint(
            replace(checkpoint, read=lambda name: head_norm if name[-6:] in HEAD_NORMS else checkpoint.read(name)),
            mesh,
            max_batch_size=batch,
            max_seq_len=1024,
            block_size=BLOCK,
            max_num_blocks=NUM_BLOCKS,
            dtype=dtype,
            kv_cache_dtype=dtype,
        )
        shape = (NUM_BLOCKS, self.config.n_kv_heads, BLOCK, self.config.head_dim)
        self.model.set_kv_cache(
            [
                [ttnn.zeros(shape, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh) for _ in range(2)]
                for _ in range(self.config.n_layers)
            ]
        )

    def upload(self, values: Any, dtype: Any) -> Any:
        kinds = {ttnn.uint32: np.uint32, ttnn.int32: np.int32}
        array = np.ascontiguousarray(values, kinds.get(dtype, np.float32))
        return ttnn.to_device(ttnn.Tensor(array, dtype), device=self.mesh)

    def prefill(self, rows: int, length: int, **options: Any) -> Any:
        tokens = self.upload(np.zeros((1, 1, 1, rows * length)), ttnn.uint32)
        positions = self.upload(np.zeros((1, length)), ttnn.uint32)
        return self.model.prefill_forward(
            self.model.embed_prefill(tokens),
            list(self.model.prepare_prefill_rot_mats(positions)),
            user_id=list(range(rows)) if rows > 1 else 0,
            page_table=self.upload(np.zeros((rows, 1024 // BLOCK)), ttnn.int32),
            batch_size=rows,
            **options,
        )

    def decode(self) -> Any:
        positions, rotary = (
            self.upload(np.zeros(self.batch), ttnn.int32),
            self.upload(np.zeros((1, 32)), ttnn.uint32),
        )
        logits = self.model.decode_forward(
            self.model.embed_decode(self.upload(np.zeros((1, 1, 1, 32)), ttnn.uint32)),
            positions,
            self.model.rope_setup.decode_forward(rotary),
            page_table=self.upload(np.zeros((self.batch, 32)), ttnn.int32),
        )
        self.model.increment_positions(positions, rotary)
        return logits


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield mesh
    ttnn.close_mesh_device(mesh)


SMOLLM2 = {"n_heads": 9, "n_kv_heads": 3, "head_dim": 64, "dim": 576}
LLAMA_1B = {"n_heads": 32, "n_kv_heads": 8, "head_dim": 64, "dim": 2048}
QWEN3_06B = {"n_heads": 16, "n_kv_heads": 8, "head_dim": 128, "dim": 1024}
CASES: dict[str, Any] = {
    "tiny_2_rows": ({}, 2, "bfloat16"),
    "qwen3_0.6b_2_rows": (QWEN3_06B, 2, "bfloat16", Qwen3Model),
    "qwen3_0.6b_32_rows_block_format": (QWEN3_06B, 32, "bfloat8_b", Qwen3Model),
    "smollm2_1_row": (SMOLLM2, 1, "bfloat16"),
    "smollm2_8_rows": (SMOLLM2, 8, "bfloat16"),
    "llama_1b_32_rows_block_format": (LLAMA_1B, 32, "bfloat8_b"),
}


@pytest.fixture(scope="module", params=sorted(CASES))
def lane(mesh: Any, request: pytest.FixtureRequest) -> Iterator[MockLane]:
    config, batch, dtype, *model_type = CASES[request.param]
    lane = MockLane(
        mesh,
        {"vocab_size": 1024, **config},
        batch=batch,
        dtype=getattr(ttnn, dtype),
        model_type=model_type[0] if model_type else LlamaModel,
    )
    yield lane
    lane.model.set_kv_cache(None)
    lane.model.release()


def bounds(lane: MockLane) -> tuple[Any, Any]:
    return (
        lane.upload([0, 0, 32, 0], ttnn.uint32),
        lane.upload([1, 1, 64, lane.config.dim], ttnn.uint32),
    )


@pytest.mark.parametrize("length", [128, 1024])
def test_single_prefill_and_last_token_forms(lane: MockLane, length: int) -> None:
    model, hidden = lane.model, lane.prefill(1, length)
    assert tuple(hidden.shape) == (1, 1, length, lane.config.dim)
    assert tuple(model.post_process_prefill_output(hidden, 49).shape) == (1, 1, 32, 1024)
    tile, row = bounds(lane), lane.upload([[3]], ttnn.uint32)
    assert tuple(model.post_process_prefill_output(hidden, 49, last_token_slice=tile).shape) == (1, 1, 32, 1024)
    one = model.post_process_prefill_output(hidden, 49, last_token_slice=tile, last_token_index=row)
    assert tuple(one.shape) == (1, 1, 1, 1024)
    assert hidden.is_allocated()


def test_chunk_forms(lane: MockLane) -> None:
    start, blocks = lane.upload([32], ttnn.int32), lane.upload(np.zeros((1, 4)), ttnn.int32)
    tile, row = bounds(lane), lane.upload([[3]], ttnn.uint32)
    eager = lane.prefill(
        1,
        128,
        chunk_page_table=blocks,
        chunk_start_idx=32,
        chunk_start_idx_tensor=start,
        last_token_slice=tile,
        last_token_index=row,
    )
    assert tuple(eager.shape) == (1, 1, 1, 1024)
    for options in ({"chunk_start_idx_tensor": start}, {"chunk_start_idx": 32}):
        hidden = lane.prefill(1, 128, chunk_page_table=blocks, **options)
        assert tuple(hidden.shape) == (1, 1, 128, lane.config.dim)


@pytest.mark.parametrize("rows", [2, 32])
def test_waves(lane: MockLane, rows: int) -> None:
    model, hidden = lane.model, lane.prefill(rows, 128)
    assert tuple(hidden.shape) == (1, 1, rows * 128, lane.config.dim)
    logits = model.post_process_batched_prefill_output(hidden, [5] * rows, rows, 128)
    assert tuple(logits.shape) == (1, 1, 32, 1024)
    index = lane.upload(np.zeros((1, 32)), ttnn.uint32)
    for last, options in (([5] * rows, {}), ([37], {"last_token_slice": bounds(lane)})):
        length = rows * 128 // len(last)
        given = model.post_process_batched_prefill_output(
            hidden, last, len(last), length, last_token_index=index, **options
        )
        assert tuple(given.shape) == (1, 1, 32, 1024)
    assert hidden.is_allocated() and index.is_allocated()


def test_decode_samplers_and_feedback(lane: MockLane) -> None:
    logits = lane.decode()
    assert tuple(logits.shape) == (1, 1, lane.batch, 1024)
    assert logits.spec.memory_config == ttnn.DRAM_MEMORY_CONFIG
    sampling = lane.model.sampling
    sampling.load_device_buffers()
    sampling.config.seeds.update(np.arange(40, 72, dtype=np.uint32))
    options = {
        "k": lane.upload([5] * 32, ttnn.uint32),
        "p": lane.upload([1.0] * 32, ttnn.bfloat16),
        "temp": lane.upload([1.0] * 32, ttnn.bfloat16),
    }
    for output in (None, lane.upload(np.zeros((1, 1, 1, 32)), ttnn.uint32)):
        for kpt in ({}, options):
            ids, log_probs = sampling.decode_forward(logits, tt_out_tok=output, **kpt)
            assert tuple(ids.shape) == (1, 1, 1, 32)
            assert log_probs is None
    rows = lane.model.gather_and_untilize_logits(logits)
    assert tuple(rows.shape) == (1, 1, lane.batch, 1024)
    assert not logits.is_allocated()
