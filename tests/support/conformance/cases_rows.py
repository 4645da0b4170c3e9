# SPDX-License-Identifier: Apache-2.0
"""Calls of the ops on hidden states and logits: lookups, products, norms, element-wise ops, shapes and layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from support.conformance.calls import Call, T, Value
from support.ttnn_lane import MODELS

TILE = 32
DRAM = Value("DRAM_MEMORY_CONFIG")
TILES, ROWS = Value("TILE_LAYOUT"), Value("ROW_MAJOR_LAYOUT")
BF16 = Value("bfloat16")
LENGTHS = (1, 32, 128, 1024)


def row_calls() -> Iterator[Call]:
    """Every call, for each model."""
    for config in MODELS.values():
        width = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        yield from _lookups(config.dim, config.head_dim)
        yield from _products(config.dim, config.ffn_dim, width, config.vocab_size)
        yield from _norms(config.dim)
        yield from _element_wise(config.dim, config.ffn_dim)
        yield from _shapes(config.dim, config.head_dim, width, config.vocab_size)
        yield from _layouts(config.dim, config.head_dim, config.n_kv_heads)


def _lookups(dim: int, size: int) -> Iterator[Call]:
    tokens, weight = T((1, 1, 1, TILE), "uint32", "ROW_MAJOR"), T((1, 1, 1024, dim), layout="ROW_MAJOR")
    look = Call("embedding", (tokens, weight), {"layout": TILES, "memory_config": DRAM})
    yield look
    for length in (128, 1024, 2048):
        yield look.changed("", a0=T((1, 1, 1, length), "uint32", "ROW_MAJOR"))
    yield Call(
        "embedding",
        (T((1, TILE), "uint32", "ROW_MAJOR"), T((1, 1, 8192, size), layout="ROW_MAJOR")),
        {"layout": TILES},
    )
    yield look.changed("no layout", layout=...)
    yield look.changed("one row", a0=T((1, 1), "uint32", "ROW_MAJOR"))
    yield look.changed("a vector of indices", a0=T((TILE,), "uint32", "ROW_MAJOR"))
    yield look.changed("int32 indices", a0=T((1, 1, 1, TILE), "int32", "ROW_MAJOR"))
    yield look.changed("float indices", a0=T((1, 1, 1, TILE), "float32", "ROW_MAJOR"))
    yield look.changed("weight in tiles", a1=T((1, 1, 1024, dim)))
    yield look.changed("float32 weight", a1=T((1, 1, 1024, dim), "float32", "ROW_MAJOR"))
    yield look.changed("two tables", a1=T((1, 2, 1024, dim), layout="ROW_MAJOR"))
    two = T((1, 1, 2, TILE), "uint32", "ROW_MAJOR")
    yield look.changed("rows of indices", a0=two, differs="only the first row is looked up, the others are lost")
    yield look.changed("indices on the host", a0=T((1, 1, 1, TILE), "uint32", "ROW_MAJOR", place="host"))
    yield look.changed("freed weight", a1=T((1, 1, 1024, dim), layout="ROW_MAJOR", place="freed"))
    yield Call("unsqueeze_to_4D", (T((1, TILE, dim)),))
    yield Call("unsqueeze_to_4D", (T((TILE, dim)),))
    yield Call("unsqueeze_to_4D", (T((1, 1, TILE, dim)),))
    yield Call("unsqueeze_to_4D", (T((1, 1, 1, TILE, dim)),), label="rank 5")


def _products(dim: int, ffn: int, width: int, vocabulary: int) -> Iterator[Call]:
    options = {"dtype": BF16, "memory_config": DRAM}
    for rows in LENGTHS:
        yield Call("linear", (T((1, 1, rows, dim)), T((1, 1, dim, width))), options)
        yield Call("linear", (T((1, 1, rows, ffn)), T((1, 1, ffn, dim))), options)
        biased = {**options, "bias": T((1, 1, 1, width))}
        yield Call("linear", (T((1, 1, rows, dim)), T((1, 1, dim, width))), biased, label="bias")
    product = Call("linear", (T((1, 1, TILE, dim)), T((1, 1, dim, ffn))), options)
    biased = replace(product, kwargs={**options, "bias": T((1, 1, 1, ffn))})
    yield biased.changed("bias in a full tile", bias=T((1, 1, TILE, ffn)), differs="the twin adds one row only")
    yield biased.changed("bias of another width", bias=T((1, 1, 1, ffn + TILE)))
    unseen = "ttnn does not check; what it adds cannot be seen without a chip"
    yield biased.changed("row-major bias", bias=T((1, 1, 1, ffn), layout="ROW_MAJOR"), differs=unseen)
    yield biased.changed("integer bias", bias=T((1, 1, 1, ffn), "int32"), differs=unseen)
    yield biased.changed("block-float bias", bias=T((1, 1, 1, ffn), "bfloat8_b"))
    yield biased.changed("bias of rank 1", bias=T((ffn,)), differs="the twin takes ranks 2 to 4")
    yield biased.changed("bias of rank 2", bias=T((1, ffn)))
    yield biased.changed("freed bias", bias=T((1, 1, 1, ffn), place="freed"))
    yield product.changed("block-float weight", a1=T((1, 1, dim, ffn), "bfloat8_b"))
    yield product.changed("output head", a1=T((1, 1, dim, vocabulary)))
    yield product.changed("other inner size", a1=T((1, 1, dim + TILE, ffn)))
    yield product.changed("row-major weight", a1=T((1, 1, dim, ffn), layout="ROW_MAJOR"))
    yield product.changed("row-major rows", a0=T((1, 1, TILE, dim), layout="ROW_MAJOR"))
    yield product.changed("integer weight", a1=T((1, 1, dim, ffn), "int32"))
    yield product.changed("weight on the host", a1=T((1, 1, dim, ffn), place="host"))
    yield product.changed("freed rows", a0=T((1, 1, TILE, dim), place="freed"))
    yield product.changed("two weights", a1=T((1, 2, dim, ffn)))
    yield product.changed("own dtype", dtype=...)
    yield product.changed("integer result", dtype=Value("int32"), differs="the twin has no products of integers")


def _norms(dim: int) -> Iterator[Call]:
    weight = T((1, 1, dim // TILE, TILE), layout="ROW_MAJOR")
    for rows in LENGTHS:
        yield Call("rms_norm", (T((1, 1, rows, dim)),), {"epsilon": 1e-5, "weight": weight, "memory_config": DRAM})
    norm = Call("rms_norm", (T((1, 1, TILE, dim)),), {"epsilon": 1e-5, "weight": weight, "memory_config": DRAM})
    yield norm.changed("no weight", weight=...)
    yield norm.changed("row-major rows", a0=T((1, 1, TILE, dim), layout="ROW_MAJOR"))
    yield norm.changed("integers", a0=T((1, 1, TILE, dim), "int32"))
    yield norm.changed("weight of another width", weight=T((1, 1, dim // TILE + 1, TILE), layout="ROW_MAJOR"))
    yield norm.changed("weight in one row", weight=T((1, 1, 1, dim), layout="ROW_MAJOR"))
    yield norm.changed("weight in tiles", weight=T((1, 1, TILE, dim)))
    yield norm.changed("integer weight", weight=T((1, 1, dim // TILE, TILE), "int32", "ROW_MAJOR"))
    yield norm.changed("weight on the host", weight=T((1, 1, dim // TILE, TILE), layout="ROW_MAJOR", place="host"))


def _element_wise(dim: int, ffn: int) -> Iterator[Call]:
    for rows in LENGTHS:
        both = (T((1, 1, rows, dim)), T((1, 1, rows, dim)))
        yield Call("add", both, {"memory_config": DRAM})
        gate = (T((1, 1, rows, ffn)), T((1, 1, rows, ffn)))
        options = {"input_tensor_a_activations": [Value("UnaryOpType.SILU")], "dtype": BF16, "memory_config": DRAM}
        yield Call("mul", gate, options)
    total = Call("add", (T((1, 1, TILE, dim)), T((1, 1, TILE, dim))), {"memory_config": DRAM})
    yield total.changed("one row to all", a1=T((1, 1, 1, dim)))
    yield total.changed("other width", a1=T((1, 1, TILE, dim + TILE)))
    yield total.changed("mixed floats", a1=T((1, 1, TILE, dim), "bfloat8_b"))
    yield total.changed("float32", a0=T((1, 1, TILE, dim), "float32"))
    yield total.changed("row-major operand", a1=T((1, 1, TILE, dim), layout="ROW_MAJOR"))
    yield total.changed("row-major operands", **dict.fromkeys(("a0", "a1"), T((1, 1, TILE, dim), layout="ROW_MAJOR")))
    yield total.changed("int32", **dict.fromkeys(("a0", "a1"), T((1, 1, TILE, 64), "int32")))
    yield total.changed("mixed integers", a0=T((1, 1, TILE, dim), "int32"), a1=T((1, 1, TILE, dim), "uint32"))
    yield total.changed("float and integer", a1=T((1, 1, TILE, dim), "int32"))
    yield total.changed("on the host", a1=T((1, 1, TILE, dim), place="host"))
    yield total.changed("freed", a1=T((1, 1, TILE, dim), place="freed"))
    yield total.changed("other rank", a1=T((TILE, dim)))


def _shapes(dim: int, size: int, width: int, vocabulary: int) -> Iterator[Call]:
    for rows in (1, 8, 31, 32):
        yield Call("reshape", (T((1, 1, TILE, width)), (1, 1, rows, width), (1, 1, TILE, width)), label=f"{rows} rows")
    for batch, length in ((2, 128), (8, 128), (32, 128), (2, 1024)):
        folded, rows = T((1, 1, batch * length, width)), T((batch, 1, length, width))
        yield Call("reshape", (folded, (batch, 1, length, width)))
        yield Call("reshape", (rows, (1, 1, batch * length, width)))
    shape = Call("reshape", (T((1, 1, TILE, dim)), (1, TILE, dim)))
    yield shape
    yield shape.changed("the same", a1=(1, 1, TILE, dim))
    yield shape.changed("rest", a1=(1, 1, -1, dim))
    yield shape.changed("other volume", a1=(1, 1, TILE, dim + 1))
    yield Call("reshape", (T((1, 1, 1, TILE), "uint32", "ROW_MAJOR"), (1, TILE)))
    yield Call("reshape", (T((1, 1, 1, TILE), "uint32", "ROW_MAJOR"), Value("Tensor")), label="no shape")
    yield Call("transpose", (T((1, 1, TILE, size)), 1, 2))
    yield Call("transpose", (T((1, 1, 4 * TILE, size)), 1, 2))
    yield Call("transpose", (T((1, 1, TILE, size)), 1, 4), label="no such dimension")
    cut = Call("slice", (T((1, 1, 128, dim)), (0, 0, 32, 0), (1, 1, 64, dim)))
    yield cut
    yield cut.changed("a few rows", a2=(1, 1, 40, dim))
    yield cut.changed("inside a tile", a1=(0, 0, 3, 0), a2=(1, 1, 4, dim))
    yield cut.changed("beyond the end", a2=(1, 1, 160, dim))
    yield cut.changed("backwards", a1=(0, 0, 64, 0), a2=(1, 1, 32, dim))
    empty = {"a1": (0, 0, 64, 0), "a2": (1, 1, 64, dim)}
    yield cut.changed("nothing", **empty, differs="a tensor without elements is a mistake of the caller")
    yield cut.changed("everything", a1=(0, 0, 0, 0), a2=(1, 1, 128, dim))
    yield cut.changed("three bounds", a1=(0, 0, 32), a2=(1, 1, 64))
    yield cut.changed("on the host", a0=T((1, 1, 128, dim), place="host"))
    yield cut.changed("slots", a0=T((1, TILE, 1, size)), a1=(0, 0, 0, 0), a2=(1, 8, 1, size))
    yield cut.changed("a row of a wave", a0=T((8, 3, 128, size)), a1=(2, 0, 0, 0), a2=(3, 3, 64, size))
    for length in (128, 1024, 2048):
        bounds = (
            T((4,), "uint32", "ROW_MAJOR", values=(0, 0, 32, 0)),
            T((4,), "uint32", "ROW_MAJOR", values=(1, 1, 64, dim)),
        )
        tile = Call(
            "slice", (T((1, 1, length, dim)), *bounds), {"slice_dim": 2, "num_devices": length // TILE}
        )
        yield tile
    yield tile.changed("int32 bounds", a1=T((4,), "int32", "ROW_MAJOR"), a2=T((4,), "int32", "ROW_MAJOR"))
    three = T((3,), "uint32", "ROW_MAJOR")
    yield tile.changed("three bounds", a1=three, a2=three, differs="the bound of the fourth dimension is other memory")
    yield tile.changed("one bound", a2=(1, 1, 64, dim))
    yield tile.changed("parts that do not divide", num_devices=7)
    yield tile.changed("no parts", num_devices=...)
    yield tile.changed("no dimension", slice_dim=...)
    for rows in (1, 8, 32):
        yield Call("untilize", (T((1, 1, rows, vocabulary)),), {"use_multicore": True})
        yield Call("split", (T((1, 1, rows, vocabulary)), vocabulary // 2), {"dim": 3})
        halves = [T((1, 1, rows, TILE)), T((1, 1, rows, TILE))]
        yield Call("concat", (halves,), {"dim": -1})
        missing = [(0, 0), (0, 0), (0, 32 - rows), (0, 0)]
        yield Call("pad", (T((1, 1, rows, 64)), missing), {"value": 0.0}, label=f"{rows} rows")
        yield Call("pad", (T((1, 1, rows, 64), "int32"), missing), {"value": 0}, label=f"{rows} int32 rows")
        row = T((1, 1, rows), "uint32", "ROW_MAJOR")
        yield Call("pad", (row, [(0, 0), (0, 0), (0, 32 - rows)]), {"value": 0}, label=f"{rows} ids")
    grown = Call("pad", (T((1, 1, 1, 64)), [(0, 0), (0, 0), (0, 31), (0, 0)]), {"value": 0.0})
    yield grown.changed("before", a1=[(0, 0), (0, 0), (31, 0), (0, 0)])
    yield grown.changed("negative", a1=[(0, 0), (0, 0), (0, -1), (0, 0)])
    yield grown.changed("too many", a1=[(0, 0)] * 5)
    joined = Call("concat", ([T((1, 1, 8, TILE)), T((1, 1, 8, TILE))],), {"dim": -1})
    yield joined.changed("one", a0=[T((1, 1, 8, TILE))])
    yield joined.changed("none", a0=[])
    yield joined.changed("other rows", a0=[T((1, 1, 8, TILE)), T((1, 1, 9, TILE))])
    yield joined.changed("other dtype", a0=[T((1, 1, 8, TILE)), T((1, 1, 8, TILE), "float32")])
    yield joined.changed("indices", a0=[T((1, 1, 8, TILE), "uint16"), T((1, 1, 8, TILE), "uint16")])
    yield joined.changed("no such dimension", dim=4)
    parts = Call("split", (T((1, 1, 8, 128)), 64), {"dim": 3})
    yield parts.changed("sizes", a1=[32, 96])
    yield parts.changed("sizes that do not add up", a1=[32, 32])
    yield parts.changed("one part", a1=128)
    yield parts.changed("no such dimension", dim=4)


def _layouts(dim: int, size: int, groups: int) -> Iterator[Call]:
    for length in (32, 128, 1024):
        yield Call("to_layout", (T((1, 1, length, dim)), ROWS))
        yield Call("to_layout", (T((1, 1, length, dim), layout="ROW_MAJOR"), TILES))
    yield Call("to_layout", (T((1, 1, TILE, dim)), TILES), label="the same")
    yield Call("to_layout", (T((1, 1, 8, 64), place="host"), ROWS), label="on the host")
    yield Call("to_layout", (T((1, 1, 8, 64), layout="ROW_MAJOR", place="host"), TILES), label="on the host")
    yield Call("to_layout", (T((1, 1, TILE, dim), "bfloat8_b"), ROWS), label="block floats")
    yield Call("untilize", (T((1, 1, TILE, dim), layout="ROW_MAJOR"),), {"use_multicore": True}, label="row major")
    yield Call("untilize", (T((1, 1, TILE, 64), "int32"),), {"use_multicore": True}, label="int32")
    yield Call("untilize", (T((1, 1, TILE, 64), "bfloat8_b"),), {"use_multicore": True}, label="block floats")
    host = T((1, 1, TILE, 64), place="host")
    yield Call("untilize", (host,), {"use_multicore": True}, label="on the host", fatal=True)
    for source, target in (
        ("bfloat16", "bfloat8_b"),
        ("bfloat8_b", "bfloat16"),
        ("bfloat16", "float32"),
        ("uint16", "int32"),
        ("uint32", "int32"),
        ("bfloat16", "int32"),
    ):
        kind = f"{source} to {target}"
        yield Call("typecast", (T((1, groups, 128, size), source), Value(target)), label=kind)
    rows = T((1, 1, TILE, 64), layout="ROW_MAJOR")
    yield Call("typecast", (rows, Value("bfloat8_b")), label="row major to block floats")
    yield Call("typecast", (rows, Value("float32")), label="row major to float32")
