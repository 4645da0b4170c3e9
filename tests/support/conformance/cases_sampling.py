# SPDX-License-Identifier: Apache-2.0
"""Calls of the sampling module: largest candidates, draws, seeds, and the counters of a step."""

from __future__ import annotations

from collections.abc import Iterator

from support.conformance.calls import Call, T, Value
from support.ttnn_lane import MODELS

TILE, TOP = 32, 32


def ids(rows: int = TILE, dtype: str = "uint32") -> T:
    """One number per sampler row."""
    return T((rows,), dtype, "ROW_MAJOR")


def sampling_calls() -> Iterator[Call]:
    """Every call, for each vocabulary."""
    for config in MODELS.values():
        half = config.vocab_size // 2
        for rows in (1, 8, TILE):
            yield Call("topk", (T((1, 1, rows, half)),), {"k": TOP, "dim": -1})
            logits = T((1, 1, rows, config.vocab_size), layout="ROW_MAJOR")
            yield Call("argmax", (logits,), {"dim": -1, "keepdim": False})
        best = Call("topk", (T((1, 1, TILE, half)),), {"k": TOP, "dim": -1})
        yield best.changed("a vocabulary above 65536", a0=T((1, 1, TILE, 131072)))
        yield best.changed("row major", a0=T((1, 1, TILE, half), layout="ROW_MAJOR"))
        yield best.changed("integers", a0=T((1, 1, TILE, half), "int32"))
        yield best.changed("more than there are", a0=T((1, 1, TILE, 64)), k=65)
        yield best.changed("no such dimension", dim=4)
    largest = Call("argmax", (T((1, 1, TILE, 1024), layout="ROW_MAJOR"),), {"dim": -1, "keepdim": False})
    yield largest.changed("kept dimension", keepdim=True)
    yield largest.changed("in tiles", a0=T((1, 1, TILE, 1024)))
    yield largest.changed("no such dimension", dim=4)
    yield largest.changed("block floats", a0=T((1, 1, TILE, 1024), "bfloat8_b"))
    yield largest.changed("on the host", a0=T((1, 1, TILE, 1024), layout="ROW_MAJOR", place="host"))
    yield Call("reshape", (T((1, 1, TILE), "uint32", "ROW_MAJOR"), (1, 1, 1, TILE)))
    yield Call("reshape", (T((1, 1, 1), "uint32", "ROW_MAJOR"), (1, 1, 1, 1)))
    yield Call("add", (T((1, 1, TILE, 64), "int32"), T((1, 1, TILE, 64), "int32")))
    yield Call("untilize", (T((1, 1, TILE, 64), "int32"),), {"use_multicore": True})
    seed = Call("manual_seed", (), {"seeds": ids(), "user_ids": ids()})
    yield seed
    yield seed.changed("fewer users", user_ids=ids(16))
    yield seed.changed("int32 seeds", seeds=ids(dtype="int32"))
    yield seed.changed("int32 users", user_ids=ids(dtype="int32"))
    yield seed.changed("no users", user_ids=...)
    yield seed.changed("seeds in tiles", seeds=T((TILE,), "uint32"))
    yield from _draws()
    yield from _log_probs()
    yield from _penalties()
    for shape, dtype in (((1,), "int32"), ((8,), "int32"), ((TILE,), "int32"), ((1, TILE), "uint32")):
        yield Call("plus_one", (T(shape, dtype, "ROW_MAJOR"),))
    count = Call("plus_one", (ids(dtype="int32"),), {"skip_negative_entries": True})
    yield count
    yield count.changed("floats", a0=T((TILE,), "float32", "ROW_MAJOR"))
    yield count.changed("in tiles", a0=T((TILE,), "int32"))
    yield count.changed("on the host", a0=T((TILE,), "int32", "ROW_MAJOR", place="host"))


def _draws() -> Iterator[Call]:
    values, places = T((1, 1, TILE, 2 * TOP)), T((1, 1, TILE, 2 * TOP), "int32", "ROW_MAJOR")
    floats = T((TILE,), "bfloat16", "ROW_MAJOR")
    draw = Call("sampling", (values, places), {"k": ids(), "p": floats, "temp": floats})
    yield draw
    yield draw.changed("into an output", output_tensor=T((1, 1, 1, TILE), "uint32", "ROW_MAJOR"))
    yield draw.changed("into another output", output_tensor=T((1, 1, 1, TILE), "int32", "ROW_MAJOR"))
    yield draw.changed("one half", a0=T((1, 1, TILE, TOP)), a1=T((1, 1, TILE, TOP), "int32", "ROW_MAJOR"))
    yield draw.changed("8 rows", a0=T((1, 1, 8, 2 * TOP)), a1=T((1, 1, 8, 2 * TOP), "int32", "ROW_MAJOR"))
    yield draw.changed("int32 k", k=ids(dtype="int32"))
    yield draw.changed("float32 p", p=T((TILE,), "float32", "ROW_MAJOR"))
    yield draw.changed("float32 temperature", temp=T((TILE,), "float32", "ROW_MAJOR"))
    yield draw.changed("fewer k", k=ids(16))
    yield draw.changed("places in tiles", a1=T((1, 1, TILE, 2 * TOP), "int32"))
    yield draw.changed("values in rows", a0=T((1, 1, TILE, 2 * TOP), layout="ROW_MAJOR"))
    yield draw.changed("other widths", a1=T((1, 1, TILE, TOP), "int32", "ROW_MAJOR"))
    yield draw.changed("float places", a1=T((1, 1, TILE, 2 * TOP), "bfloat16", "ROW_MAJOR"))
    yield draw.changed("a width without tiles", a0=T((1, 1, TILE, 48)), a1=T((1, 1, TILE, 48), "int32", "ROW_MAJOR"))


def _log_probs() -> Iterator[Call]:
    for config in MODELS.values():
        for rows in (1, 8, TILE):
            exact = T((1, 1, rows, config.vocab_size), "float32")
            yield Call("typecast", (T((1, 1, rows, config.vocab_size)), Value("float32")))
            yield Call("softmax", (exact,), {"dim": -1})
            yield Call("gather", (exact, 3, T((1, 1, rows, 1), "uint32")))
            yield Call("log", (T((1, 1, rows, 1), "float32"),))
    softmax = Call("softmax", (T((1, 1, TILE, 64)),), {"dim": -1})
    yield softmax
    yield softmax.changed("integers", a0=T((1, 1, TILE, 64), "int32"))
    gather = Call("gather", (T((1, 1, TILE, 64)), 3, T((1, 1, TILE, 1), "uint32")))
    yield gather
    yield gather.changed("places in rows", a2=T((1, 1, TILE, 1), "uint32", "ROW_MAJOR"))
    yield gather.changed("signed places", a2=T((1, 1, TILE, 1), "int32"))
    yield gather.changed("more rows of places", a2=T((1, 1, 64, 1), "uint32"))
    log = Call("log", (T((1, 1, TILE, 1)),))
    yield log
    yield log.changed("in rows", a0=T((1, 1, TILE, 64), layout="ROW_MAJOR"))
    yield log.changed("block floats", a0=T((1, 1, TILE, 64), "bfloat8_b"))
    yield log.changed("integers", a0=T((1, 1, TILE, 64), "int32"))
    yield log.changed("on the host", fatal=True, a0=T((1, 1, TILE, 64), place="host"))
    column = T((1, 1, TILE, 1), "uint32")
    yield Call("reshape", (T((1, 1, 1, TILE), "uint32", "ROW_MAJOR"), (1, 1, TILE, 1)))
    yield Call("to_layout", (T((1, 1, TILE, 1), "uint32", "ROW_MAJOR"), Value("TILE_LAYOUT")))
    yield Call("slice", (column, (0, 0, 0, 0), (1, 1, 8, 1)))
    yield Call("pad", (T((1, 1, 8, 1), "float32"), [(0, 0), (0, 0), (0, TILE - 8), (0, 0)]), {"value": 1.0})


def _penalties() -> Iterator[Call]:
    for config in MODELS.values():
        counts = T((1, 1, TILE, config.vocab_size), "float32")
        weights = T((1, 1, TILE, 1), "float32")
        ids = T((1, 1, 1, config.vocab_size), "float32")
        yield Call("minimum", (counts, 1.0))
        yield Call("minimum", (counts, counts))
        yield Call("maximum", (counts, counts))
        yield Call("maximum", (counts, 0.0))
        yield Call("multiply", (counts, weights))
        yield Call("add", (counts, 1.0))
        yield Call("add", (counts, counts), {"output_tensor": counts})
        yield Call("eq", (ids, weights))
        yield Call("typecast", (counts, Value("bfloat16")))
        yield Call("copy_host_to_device_tensor", (T(counts.shape, "float32", place="host"), counts))
        rows = T((1, 1, 8, config.vocab_size))
        yield Call("pad", (rows, [(0, 0), (0, 0), (0, TILE - 8), (0, 0)]), {"value": 0.0})
    yield Call("typecast", (T((1, 1, TILE, 1), "uint32"), Value("float32")))
    for name in ("minimum", "maximum", "eq"):
        call = Call(name, (T((1, 1, TILE, 64)), T((1, 1, TILE, 64))))
        yield call
        yield call.changed("widths that do not fit", a1=T((1, 1, TILE, 96)))
