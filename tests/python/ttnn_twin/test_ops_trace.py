# SPDX-License-Identifier: Apache-2.0
"""What all ops have in common: program cache, capture and replay, rounding, and no hold on their operands."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ttnn_twin as ttnn
from support.twin_ops import height_shards, numbers, read, rows, tiles

HEADS, KV_HEADS, SIZE, SLOTS = 9, 3, 64, 4
SHARDS = height_shards((32, SIZE), SLOTS)


def floats(mesh, *shape, seed=0, memory=None):
    return tiles(mesh, numbers(*shape, seed=seed), memory=memory)


def ints(mesh, values, dtype=np.int32):
    return rows(mesh, np.asarray(values, dtype))


def cache(mesh):
    return floats(mesh, 8, KV_HEADS, 32, SIZE)


def scattered(mesh):
    return ints(mesh, [[3, 1, 2, 0]] * SLOTS)


CASES = {
    "add": (lambda m: (floats(m, 1, 1, 32, 64), floats(m, 1, 1, 1, 64)), ttnn.add),
    "multiply": (
        lambda m: (floats(m, 1, 1, 32, 64), floats(m, 1, 1, 32, 64, seed=1)),
        lambda a, b: ttnn.mul(a, b, input_tensor_a_activations=[ttnn.UnaryOpType.SILU]),
    ),
    "silu": (lambda m: (floats(m, 1, 1, 32, 64),), ttnn.silu),
    "typecast": (lambda m: (floats(m, 1, 1, 32, 64),), lambda x: ttnn.typecast(x, ttnn.int32)),
    "plus_one": (lambda m: (ints(m, [3, -1]),), ttnn.plus_one),
    "linear": (
        lambda m: (floats(m, 1, 1, 4, 64), floats(m, 64, 32), floats(m, 1, 32)),
        lambda a, b, c: ttnn.linear(a, b, bias=c),
    ),
    "matmul": (lambda m: (floats(m, 2, 1, 32, 64), floats(m, 2, 1, 64, 32)), ttnn.matmul),
    "rms_norm": (
        lambda m: (floats(m, 1, 1, 32, 64), rows(m, numbers(1, 1, 2, 32))),
        lambda x, w: ttnn.rms_norm(x, epsilon=1e-5, weight=w),
    ),
    "softmax": (lambda m: (floats(m, 1, 1, 32, 64),), ttnn.softmax),
    "reshape": (
        lambda m: (floats(m, 1, 1, 32, 64),),
        lambda x: ttnn.reshape(x, (1, 1, 4, 64), (1, 1, 32, 64)),
    ),
    "transpose": (lambda m: (floats(m, 1, 3, 32, 64),), lambda x: ttnn.transpose(x, 1, 2)),
    "slice": (lambda m: (floats(m, 1, 1, 64, 64),), lambda x: ttnn.slice(x, (0, 0, 32, 0), (1, 1, 64, 64))),
    "split": (lambda m: (floats(m, 1, 1, 32, 64),), lambda x: ttnn.split(x, 32, dim=3)),
    "concat": (lambda m: (floats(m, 1, 1, 32, 32), floats(m, 1, 1, 32, 64)), lambda *x: ttnn.concat(x, dim=3)),
    "pad": (lambda m: (floats(m, 1, 1, 32, 64),), lambda x: ttnn.pad(x, ((0, 0), (0, 64)), -1.0)),
    "untilize": (lambda m: (floats(m, 1, 1, 32, 64),), ttnn.untilize),
    "tilize": (lambda m: (rows(m, numbers(1, 1, 32, 64)),), ttnn.tilize),
    "to_layout": (lambda m: (floats(m, 1, 1, 5, 64),), lambda x: ttnn.to_layout(x, ttnn.ROW_MAJOR_LAYOUT)),
    "to_memory_config": (
        lambda m: (floats(m, 1, 1, 32, 64),),
        lambda x: ttnn.to_memory_config(x, ttnn.L1_MEMORY_CONFIG),
    ),
    "interleaved_to_sharded": (
        lambda m: (floats(m, 1, SLOTS, 1, SIZE),),
        lambda x: ttnn.interleaved_to_sharded(x, SHARDS),
    ),
    "sharded_to_interleaved": (
        lambda m: (floats(m, 1, SLOTS, 1, SIZE, memory=SHARDS),),
        ttnn.sharded_to_interleaved,
    ),
    "embedding": (
        lambda m: (ints(m, [[5, 2]], np.uint32), rows(m, numbers(8, 64))),
        lambda i, w: ttnn.embedding(i, w, layout=ttnn.TILE_LAYOUT),
    ),
    "gather": (
        lambda m: (floats(m, 1, 1, 32, 64), tiles(m, np.zeros((1, 1, 32, 32), np.uint32))),
        lambda x, i: ttnn.gather(x, 3, i),
    ),
    "topk": (lambda m: (floats(m, 1, 1, 4, 256),), lambda x: ttnn.topk(x, 8)),
    "argmax": (lambda m: (floats(m, 1, 1, 4, 256),), lambda x: ttnn.argmax(x, dim=-1)),
    "manual_seed": (
        lambda m: (ints(m, [7, 8], np.uint32), ints(m, [0, 1], np.uint32)),
        lambda s, u: ttnn.manual_seed(s, user_ids=u),
    ),
    "sampling": (
        lambda m: (
            floats(m, 1, 1, 2, 32),
            ints(m, np.zeros((1, 1, 2, 32))),
            ints(m, [1, 1], np.uint32),
            rows(m, numbers(2)),
            rows(m, numbers(2)),
        ),
        ttnn.sampling,
    ),
    "nlp_create_qkv_heads": (
        lambda m: (floats(m, 1, 1, 32, 15 * SIZE),),
        lambda x: ttnn.experimental.nlp_create_qkv_heads(x, num_heads=HEADS, num_kv_heads=KV_HEADS),
    ),
    "nlp_create_qkv_heads_decode": (
        lambda m: (floats(m, 1, 1, SLOTS, 15 * SIZE),),
        lambda x: ttnn.experimental.nlp_create_qkv_heads_decode(x, num_heads=HEADS, num_kv_heads=KV_HEADS),
    ),
    "nlp_concat_heads": (lambda m: (floats(m, 1, HEADS, 32, SIZE),), ttnn.experimental.nlp_concat_heads),
    "nlp_concat_heads_decode": (
        lambda m: (floats(m, 1, SLOTS, HEADS, SIZE, memory=SHARDS),),
        lambda x: ttnn.experimental.nlp_concat_heads_decode(x, num_heads=HEADS),
    ),
    "rotary_embedding_llama": (
        lambda m: (
            floats(m, 1, HEADS, 32, SIZE),
            floats(m, 1, 1, 32, SIZE),
            floats(m, 1, 1, 32, SIZE, seed=1),
            floats(m, 1, 1, 32, 32),
        ),
        ttnn.experimental.rotary_embedding_llama,
    ),
    "paged_fill_cache": (
        lambda m: (cache(m), floats(m, 1, KV_HEADS, 64, SIZE, seed=1), scattered(m)),
        ttnn.experimental.paged_fill_cache,
    ),
    "paged_update_cache": (
        lambda m: (
            cache(m),
            floats(m, 1, SLOTS, KV_HEADS, SIZE, memory=SHARDS),
            ints(m, [5, -1, 40, 0]),
            scattered(m),
        ),
        lambda c, x, i, t: ttnn.experimental.paged_update_cache(c, x, update_idxs_tensor=i, page_table=t),
    ),
    "scaled_dot_product_attention": (
        lambda m: (floats(m, 1, HEADS, 64, SIZE), floats(m, 1, KV_HEADS, 64, SIZE), floats(m, 1, KV_HEADS, 64, SIZE)),
        ttnn.transformer.scaled_dot_product_attention,
    ),
    "chunked_scaled_dot_product_attention": (
        lambda m: (floats(m, 1, HEADS, 64, SIZE), cache(m), cache(m), ints(m, [[3, 1, 2, 0]]), ints(m, [32])),
        lambda q, k, v, t, s: ttnn.transformer.chunked_scaled_dot_product_attention(
            q, k, v, t, chunk_start_idx_tensor=s
        ),
    ),
    "paged_scaled_dot_product_attention_decode": (
        lambda m: (floats(m, 1, SLOTS, HEADS, SIZE), cache(m), cache(m), scattered(m), ints(m, [5, -1, 40, 0])),
        lambda q, k, v, t, p: ttnn.transformer.paged_scaled_dot_product_attention_decode(q, k, v, t, cur_pos_tensor=p),
    ),
}
every_op = pytest.mark.parametrize("name", CASES)


def as_list(result):
    return list(result) if isinstance(result, (list, tuple)) else [result]


def values(result):
    return [read(tensor) for tensor in as_list(result)]


@every_op
def test_an_op_compiles_once_and_is_counted(mesh, name):
    make, call = CASES[name]
    operands = make(mesh)
    call(*operands)
    assert (mesh.num_program_cache_entries(), mesh.counters.calls[name]) == (1, 1)
    call(*make(mesh))
    assert (mesh.num_program_cache_entries(), mesh.counters.calls[name]) == (1, 2)


@every_op
def test_a_replay_gives_what_the_op_gave(mesh, name):
    make, call = CASES[name]
    expected = values(call(*make(mesh)))
    operands = make(mesh)
    trace = ttnn.begin_trace_capture(mesh)
    result = call(*operands)
    ttnn.end_trace_capture(mesh, trace)
    ttnn.execute_trace(mesh, trace, blocking=False)
    for got, wanted in zip(values(result), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@every_op
def test_a_recorded_op_keeps_no_tensor_alive(mesh, name):
    make, call = CASES[name]
    call(*make(mesh))
    operands = make(mesh)
    trace = ttnn.begin_trace_capture(mesh)
    result = call(*operands)
    ttnn.end_trace_capture(mesh, trace)
    ttnn.synchronize_device(mesh)
    assert mesh.live_tensors()
    del operands, result
    gc.collect()
    assert mesh.live_tensors() == []


@every_op
def test_an_injected_fault_stops_the_op_before_it_allocates(mesh, name):
    make, call = CASES[name]
    operands = make(mesh)
    mesh.faults.fail(name)
    allocations = mesh.counters.allocations
    with pytest.raises(RuntimeError, match=name):
        call(*operands)
    assert mesh.counters.allocations == allocations


@every_op
def test_a_freed_operand_is_refused(mesh, name):
    make, call = CASES[name]
    operands = make(mesh)
    operands[0].deallocate()
    with pytest.raises(RuntimeError, match=rf"{name}.*free"):
        call(*operands)


def test_results_are_rounded_on_a_bfloat16_mesh(open_mesh):
    mesh = open_mesh(precision="bfloat16")
    x, w = floats(mesh, 1, 1, 32, 64), floats(mesh, 64, 32, seed=1)
    result = read(ttnn.linear(x, w))
    bits = result.view(np.uint32) & np.uint32(0xFFFF)
    assert (bits == 0).all()
    exact = np.matmul(numbers(1, 1, 32, 64), numbers(64, 32, seed=1))
    np.testing.assert_allclose(result, exact, rtol=0.05, atol=0.2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: ttnn.rms_norm(x, epsilon=1e-5), lambda x: ttnn.rms_norm(x, epsilon=1e-6)),
        (lambda x: ttnn.slice(x, (0, 0, 0, 0), (1, 1, 32, 64)), lambda x: ttnn.slice(x, (0, 0, 32, 0), (1, 1, 64, 64))),
        (lambda x: ttnn.topk(x, 8), lambda x: ttnn.topk(x, 9)),
    ],
)
def test_what_selects_a_program_is_part_of_its_key(mesh, first, second):
    x = floats(mesh, 1, 1, 64, 64)
    first(x)
    second(x)
    assert mesh.num_program_cache_entries() == 2


def test_a_scalar_and_a_batch_index_are_no_part_of_the_program(mesh):
    x = floats(mesh, 1, 1, 32, 64)
    ttnn.add(x, 1.0)
    ttnn.add(x, 2.0)
    assert mesh.num_program_cache_entries() == 1
    for row in range(3):
        ttnn.experimental.paged_fill_cache(
            cache(mesh), floats(mesh, 1, KV_HEADS, 64, SIZE), scattered(mesh), batch_idx=row
        )
    assert mesh.num_program_cache_entries() == 2


def test_a_chunk_start_on_the_host_selects_a_program_and_one_on_the_device_does_not(mesh):
    query, keys, table = floats(mesh, 1, HEADS, 32, SIZE), cache(mesh), ints(mesh, [[3, 1, 2, 0]])
    attend = ttnn.transformer.chunked_scaled_dot_product_attention
    for start in (0, 32, 64):
        attend(query, keys, keys, table, chunk_start_idx_tensor=ints(mesh, [start]))
    assert mesh.num_program_cache_entries() == 1
    for start in (0, 32):
        attend(query, keys, keys, table, start)
    assert mesh.num_program_cache_entries() == 3
