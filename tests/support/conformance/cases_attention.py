# SPDX-License-Identifier: Apache-2.0
"""Calls of the ops around attention: heads, rotary embedding, caches, scaled dot products."""

from __future__ import annotations

from collections.abc import Iterator

from support.conformance.calls import Call, HeightShards, T, Value
from support.ttnn_lane import MODELS

BLOCK, TILE = 32, 32
BLOCKS, WIDTH = 64, 32
DECODE_ROWS = (1, 8, 32)
PREFILL_LENGTHS = (128, 1024)
UNCHECKED_LAYOUT = "the kernel reads tiles where rows lie, or rows where tiles lie: nobody checks the layout"
DRAM = Value("DRAM_MEMORY_CONFIG")
L1_SHARDS = Value("L1_HEIGHT_SHARDED_MEMORY_CONFIG")


def table(rows: int, width: int = WIDTH, dtype: str = "int32", layout: str = "ROW_MAJOR") -> T:
    """A page table whose rows name every block up to its width."""
    return T((rows, width), dtype, layout, values=(*range(width),) * rows)


def positions(rows: int) -> T:
    """Positions of decode slots."""
    return T((rows,), "int32", "ROW_MAJOR")


def attention_calls() -> Iterator[Call]:
    """Every call, for each model and number of rows."""
    for config in MODELS.values():
        heads, groups, size = config.n_heads, config.n_kv_heads, config.head_dim
        width = (heads + 2 * groups) * size
        cache = T((BLOCKS, groups, BLOCK, size))
        for rows in DECODE_ROWS:
            yield from _decode(heads, groups, size, width, rows, cache)
        for length in PREFILL_LENGTHS:
            yield from _prefill(heads, groups, size, width, length, cache)


def _decode(heads: int, groups: int, size: int, width: int, rows: int, cache: T) -> Iterator[Call]:
    split = Call(
        "experimental.nlp_create_qkv_heads_decode",
        (T((1, 1, rows, width)),),
        {"num_heads": heads, "num_kv_heads": groups, "memory_config": L1_SHARDS},
    )
    yield split
    yield split.changed("row major", a0=T((1, 1, rows, width), layout="ROW_MAJOR"))
    yield split.changed("33 rows", a0=T((1, 1, 33, width)))
    yield split.changed("width without heads", a0=T((1, 1, rows, width + 32)))
    yield split.changed("integers", a0=T((1, 1, rows, width), "int32"))
    yield split.changed("rank 3", a0=T((1, rows, width)))
    yield split.changed("on the host", a0=T((1, 1, rows, width), place="host"), fatal=True)

    head_rows = -(-heads // TILE) * TILE
    query = T((1, rows, heads, size), memory=HeightShards((head_rows, size), rows))
    key = T((1, rows, groups, size), memory=HeightShards((TILE, size), rows))
    rotation = T((1, rows, 1, size), memory=HeightShards((TILE, size), rows))
    swap = T((1, 1, TILE * rows, TILE), memory=HeightShards((TILE, TILE), rows))
    turn = Call(
        "experimental.rotary_embedding_llama", (query, rotation, rotation, swap), {"is_decode_mode": True}
    )
    yield turn
    yield turn.changed("keys", a0=key)
    yield turn.changed("interleaved", a0=T((1, rows, heads, size)))
    yield turn.changed("interleaved tables", a1=T((1, rows, 1, size)), a2=T((1, rows, 1, size)))
    yield turn.changed("interleaved matrix", a3=T((1, 1, TILE * rows, TILE)))
    yield turn.changed("prefill mode", is_decode_mode=False)
    yield turn.changed("row major tables", a1=T((1, rows, TILE, size), layout="ROW_MAJOR"))

    update = Call(
        "experimental.paged_update_cache",
        (cache, key),
        {"update_idxs_tensor": positions(rows), "page_table": table(rows)},
    )
    yield update
    yield update.changed("interleaved input", a1=T((1, rows, groups, size)))
    yield update.changed("uint32 positions", update_idxs_tensor=T((rows,), "uint32", "ROW_MAJOR"))
    yield update.changed("uint32 table", page_table=table(rows, dtype="uint32"))
    yield update.changed("table of other rows", page_table=table(rows + 1))
    yield update.changed("positions of other rows", update_idxs_tensor=positions(rows + 1))
    yield update.changed("row-major cache", a0=T((BLOCKS, groups, BLOCK, size), layout="ROW_MAJOR"))
    yield update.changed("freed cache", a0=T((BLOCKS, groups, BLOCK, size), place="freed"))
    yield update.changed("block-float cache", a0=T((BLOCKS, groups, BLOCK, size), "bfloat8_b"))

    attend = Call(
        "transformer.paged_scaled_dot_product_attention_decode",
        (query, cache, cache),
        {"page_table_tensor": table(rows), "cur_pos_tensor": positions(rows), "scale": size**-0.5},
    )
    yield attend
    yield attend.changed("interleaved query", a0=T((1, rows, heads, size)))
    yield attend.changed("block-float cache", **dict.fromkeys(("a1", "a2"), T(cache.shape, "bfloat8_b")))
    yield attend.changed("row-major query", a0=T((1, rows, heads, size), layout="ROW_MAJOR"))
    yield attend.changed("table of other rows", page_table_tensor=table(rows + 1))
    yield attend.changed("uint32 table", page_table_tensor=table(rows, dtype="uint32"))
    yield attend.changed("positions of other rows", cur_pos_tensor=positions(rows + 1))
    yield attend.changed("other head size", a0=T((1, rows, heads, size + TILE)))
    yield attend.changed("no positions", cur_pos_tensor=...)

    joined = Call(
        "experimental.nlp_concat_heads_decode",
        (T((1, rows, heads, size), memory=HeightShards((head_rows, size), rows)),),
        {"num_heads": heads},
    )
    yield joined
    yield joined.changed("interleaved", a0=T((1, rows, heads, size)))
    yield joined.changed("too many heads", num_heads=TILE + 1)
    result = HeightShards((head_rows, size), rows)
    yield Call("to_memory_config", (T((1, rows, heads, size)), result))
    yield Call("to_memory_config", (T((1, rows, heads, size)), HeightShards((head_rows, size), rows + 1)), label="+1")
    yield Call("interleaved_to_sharded", (T((1, rows, 1, size)), HeightShards((TILE, size), rows)))
    yield Call(
        "interleaved_to_sharded",
        (T((1, rows, 1, size)), HeightShards((TILE, size + TILE), rows)),
        label="other width",
    )
    yield Call("interleaved_to_sharded", (T((1, rows, 1, size)), DRAM), label="an interleaved target")
    yield Call("sharded_to_interleaved", (query, DRAM))
    yield Call("sharded_to_interleaved", (T((1, rows, heads, size)), DRAM), label="interleaved")


def _prefill(heads: int, groups: int, size: int, width: int, length: int, cache: T) -> Iterator[Call]:
    for batch in (1, 2, 8):
        split = Call(
            "experimental.nlp_create_qkv_heads",
            (T((batch, 1, length, width)),),
            {"num_heads": heads, "num_kv_heads": groups, "transpose_k_heads": False, "memory_config": DRAM},
        )
        yield split
        yield Call("experimental.nlp_concat_heads", (T((batch, heads, length, size)),), {"memory_config": DRAM})
        yield Call(
            "transformer.scaled_dot_product_attention",
            (T((batch, heads, length, size)), *[T((batch, groups, length, size))] * 2),
            {"is_causal": True, "scale": size**-0.5},
        )
    yield split.changed("row major", a0=T((1, 1, length, width), layout="ROW_MAJOR"))
    yield split.changed("second dimension", a0=T((1, 2, length, width)))
    yield split.changed("width without heads", a0=T((1, 1, length, width + 32)))
    yield split.changed("rank 3", a0=T((1, length, width)))
    yield split.changed("integers", a0=T((1, 1, length, width), "int32"))
    join = Call("experimental.nlp_concat_heads", (T((1, heads, length, size)),), {"memory_config": DRAM})
    yield join.changed("row major", a0=T((1, heads, length, size), layout="ROW_MAJOR"))
    yield join.changed("block floats", a0=T((1, heads, length, size), "bfloat8_b"))

    query, key = T((1, heads, length, size)), T((1, groups, length, size))
    tables, swap = T((1, 1, length, size)), T((1, 1, TILE, TILE))
    turn = Call("experimental.rotary_embedding_llama", (query, tables, tables, swap), {"is_decode_mode": False})
    yield turn
    yield turn.changed("keys", a0=key)
    yield turn.changed("a wave", a0=T((2, heads, length, size)))
    yield turn.changed("longer tables", a1=T((1, 1, 2 * length, size)), a2=T((1, 1, 2 * length, size)))
    short = T((1, 1, length // 2, size))
    yield turn.changed("shorter tables", a1=short, a2=short, differs="rows beyond the tables read other memory")
    yield turn.changed("tables that differ", a2=T((1, 1, 2 * length, size)))
    yield turn.changed("block-float query", a0=T((1, heads, length, size), "bfloat8_b"))
    yield turn.changed("float32 query", a0=T((1, heads, length, size), "float32"))
    yield turn.changed("row-major query", a0=T((1, heads, length, size), layout="ROW_MAJOR"))
    yield turn.changed("two matrices", a3=T((1, 1, 2 * TILE, TILE)))

    fill = Call("experimental.paged_fill_cache", (cache, key, table(2)), {"batch_idx": 1})
    yield fill
    yield fill.changed("shorter than a block", a1=T((1, groups, 16, size)))
    yield fill.changed("block-float input", a1=T((1, groups, length, size), "bfloat8_b"))
    yield fill.changed(
        "block floats", a0=T(cache.shape, "bfloat8_b"), a1=T((1, groups, length, size), "bfloat8_b")
    )
    yield fill.changed("other heads", a1=T((1, groups + 1, length, size)))
    yield fill.changed("other head size", a1=T((1, groups, length, size + TILE)))
    yield fill.changed("two rows", a1=T((2, groups, length, size)))
    yield fill.changed("uint32 table", a2=table(2, dtype="uint32"))
    yield fill.changed("table in tiles", a2=table(2, layout="TILE"), differs=UNCHECKED_LAYOUT)
    yield fill.changed("rank of the table", a2=T((1, 2, WIDTH), "int32", "ROW_MAJOR"))
    yield fill.changed("narrow table", a2=table(2, length // BLOCK - 1))
    yield fill.changed("row outside the table", batch_idx=2)
    rows = T((1, groups, length, size), layout="ROW_MAJOR")
    yield fill.changed("row-major input", a1=rows, differs=UNCHECKED_LAYOUT)
    yield fill.changed("input on the host", a1=T((1, groups, length, size), place="host"))

    attend = Call("transformer.scaled_dot_product_attention", (query, key, key), {"is_causal": True, "scale": 0.125})
    yield attend.changed("block-float keys", **dict.fromkeys(("a1", "a2"), T(key.shape, "bfloat8_b")))
    yield attend.changed("shorter keys", **dict.fromkeys(("a1", "a2"), T((1, groups, length // 2, size))))
    yield attend.changed("heads without groups", **dict.fromkeys(("a1", "a2"), T((1, groups + 1, length, size))))
    yield attend.changed("other batch", **dict.fromkeys(("a1", "a2"), T((2, groups, length, size))))
    yield attend.changed("row-major query", a0=T(query.shape, layout="ROW_MAJOR"))
    yield attend.changed("keys and values differ", a2=T((1, groups, length, size + TILE)))

    chunk = Call("transformer.chunked_scaled_dot_product_attention", (query, cache, cache, table(1, BLOCKS), BLOCK))
    yield chunk
    by_tensor = Call(
        "transformer.chunked_scaled_dot_product_attention",
        (),
        {
            "input_tensor_q": query,
            "input_tensor_k": cache,
            "input_tensor_v": cache,
            "page_table_tensor": table(1, BLOCKS),
            "chunk_start_idx_tensor": T((1,), "int32", "ROW_MAJOR"),
        },
    )
    yield by_tensor
    floats = T(cache.shape, "bfloat8_b")
    yield by_tensor.changed("block floats", input_tensor_k=floats, input_tensor_v=floats)
    yield by_tensor.changed("uint32 start", chunk_start_idx_tensor=T((1,), "uint32", "ROW_MAJOR"))
    yield by_tensor.changed("two starts", chunk_start_idx_tensor=T((2,), "int32", "ROW_MAJOR"))
    yield by_tensor.changed("no start", chunk_start_idx_tensor=...)
    yield by_tensor.changed("uint32 table", page_table_tensor=table(1, BLOCKS, "uint32"))
    yield by_tensor.changed("table of two rows", page_table_tensor=table(2, BLOCKS))
    yield by_tensor.changed("narrow table", page_table_tensor=table(1, length // BLOCK - 1))
    yield by_tensor.changed("other head size", input_tensor_q=T((1, heads, length, size + TILE)))
    yield chunk.changed("start inside a block", a4=BLOCK + 1)
    yield chunk.changed("start beyond the table", a4=BLOCKS * BLOCK)
    yield chunk.changed("negative start", a4=-BLOCK)
