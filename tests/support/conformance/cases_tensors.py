# SPDX-License-Identifier: Apache-2.0
"""Calls that make, move and free tensors, and those that wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from support.conformance.calls import Call, HeightShards, Make, T, Value
from support.ttnn_lane import MODELS

MESH, FILE, DRAM = Value("mesh"), Value("file"), Value("DRAM_MEMORY_CONFIG")
CORES = Make("CoreCoord", (8, 8))
TILES, ROWS = Value("TILE_LAYOUT"), Value("ROW_MAJOR_LAYOUT")
BF16, BF8, F32, I32, U32 = (Value(name) for name in ("bfloat16", "bfloat8_b", "float32", "int32", "uint32"))


def tensor_calls() -> Iterator[Call]:
    """Every call."""
    yield from _creation()
    yield from _transfers()
    yield from _placement()
    yield from _waiting()
    yield from _files()


def _creation() -> Iterator[Call]:
    floats, integers = np.zeros((1, 1, 32, 64), np.float32), np.zeros((4, 16), np.int32)
    made = Call("Tensor", (floats, BF16))
    yield made
    yield made.changed("tiles", layout=TILES)
    yield made.changed("block floats", a1=BF8, layout=TILES)
    yield made.changed("block floats without layout", a1=BF8)
    yield made.changed("float32", a1=F32)
    yield Call("Tensor", (integers, I32))
    yield Call("Tensor", (integers.view(np.uint32), U32))
    yield Call("Tensor", (integers, I32), {"layout": TILES}, label="int32 tiles")
    yield Call("Tensor", (integers,), label="no type")
    yield Call("Tensor", (integers, F32), label="int32 to float32")
    yield Call("Tensor", (np.zeros((1,), np.int32), I32), label="one element")
    frozen = np.zeros((4,), np.float32)
    frozen.flags.writeable = False
    yield Call("Tensor", (frozen, BF16), label="read-only")
    yield Call("Tensor", (np.asfortranarray(np.zeros((4, 8), np.float32)), BF16), label="column order")
    yield Call("Tensor", ("text", BF16), label="no array")
    for wide in (np.int64, np.float64):
        for dtype in (F32, BF16, BF8, I32, U32):
            lost = "fractions are lost without a word" if wide is np.float64 and dtype in (I32, U32) else ""
            label = f"{wide.__name__} to {dtype.name}"
            yield Call("Tensor", (np.zeros((32, 32), wide), dtype), label=label, differs=lost)
    for config in MODELS.values():
        for dtype in (BF16, BF8):
            shape = (64, config.n_kv_heads, 32, config.head_dim)
            options = {"dtype": dtype, "layout": TILES, "device": MESH, "memory_config": DRAM}
            yield Call("zeros", (shape,), options)
    yield Call("zeros", ((2, 3),), {"dtype": U32, "layout": ROWS, "device": MESH, "memory_config": DRAM})


def _transfers() -> Iterator[Call]:
    for wanted in (
        T((1, 1, 1, 32), "uint32", "ROW_MAJOR", place="host"),
        T((32,), "int32", "ROW_MAJOR", place="host"),
        T((1, 1, 64, 96), place="host"),
        T((1, 1, 64, 96), "bfloat8_b", place="host"),
    ):
        yield Call("to_device", (wanted,), {"device": MESH})
        yield Call("to_device", (wanted,), {"device": MESH, "memory_config": DRAM})
    on_device = T((4, 16), "int32", "ROW_MAJOR")
    yield Call("to_device", (on_device,), {"device": MESH}, label="there already")
    host = T((4, 16), "int32", "ROW_MAJOR", place="host")
    yield Call("copy_host_to_device_tensor", (host, on_device))
    yield Call("copy_host_to_device_tensor", (host, T((4, 17), "int32", "ROW_MAJOR")), label="other shape")
    yield Call("copy_host_to_device_tensor", (host, T((64,), "int32", "ROW_MAJOR")), label="other rank")
    yield Call("copy_host_to_device_tensor", (host, T((4, 16), "uint32", "ROW_MAJOR")), label="other type")
    yield Call("copy_host_to_device_tensor", (host, T((4, 16), "int32")), label="other layout")
    yield Call("copy_host_to_device_tensor", (host, host), label="to the host", fatal=True)
    yield Call("copy_host_to_device_tensor", (on_device, on_device), label="from the device")
    freed = T((4, 16), "int32", "ROW_MAJOR", place="freed")
    yield Call("copy_host_to_device_tensor", (host, freed), label="to a freed tensor", fatal=True)
    copied = Call("copy", (), {"input_a": T((1, 1, 128, 64)), "input_b": T((1, 1, 128, 64))})
    yield copied
    yield copied.changed("ids", **dict.fromkeys(("input_a", "input_b"), T((1, 1, 1, 32), "uint32", "ROW_MAJOR")))
    yield copied.changed("other shape", input_b=T((1, 1, 160, 64)))
    yield copied.changed("other type", input_b=T((1, 1, 128, 64), "float32"))
    yield copied.changed("other layout", input_b=T((1, 1, 128, 64), layout="ROW_MAJOR"))
    yield copied.changed("to the host", input_b=T((1, 1, 128, 64), place="host"))
    yield copied.changed("from a freed tensor", input_a=T((1, 1, 128, 64), place="freed"))
    for wanted in (on_device, T((1, 1, 64, 96)), T((1, 1, 9, 96)), T((1, 1, 64, 96), "bfloat8_b")):
        yield Call("Tensor.cpu", (wanted,), {"blocking": True})
        yield Call("Tensor.cpu", (wanted,), {"blocking": False})
    yield Call("Tensor.cpu", (freed,), {"blocking": True}, label="freed", fatal=True)
    yield Call("Tensor.cpu", (host,), {"blocking": True}, label="on the host")
    for dtype in ("uint32", "int32", "float32"):
        yield Call("Tensor.to_numpy", (T((1, 1, 2, 32), dtype, "ROW_MAJOR", place="host"),))
    yield Call("Tensor.to_numpy", (T((1, 1, 2, 32), "float32", place="host"),), label="tiles")
    hidden = "a hidden blocking read; the runtime reads with cpu()"
    yield Call("Tensor.to_numpy", (on_device,), label="on the device", differs=hidden)
    unusable = "ttnn gives an array without shape or values; to_dtype to float32 comes first"
    half = T((2, 32), "bfloat16", "ROW_MAJOR", place="host")
    yield Call("Tensor.to_numpy", (half,), label="bfloat16", differs=unusable)
    for dtype in ("bfloat16", "bfloat8_b", "float32"):
        yield Call("to_dtype", (T((1, 1, 32, 64), dtype, place="host"), F32))
    yield Call("to_dtype", (T((2, 32), "bfloat16", "ROW_MAJOR", place="host"), F32), label="rows")
    yield Call("to_dtype", (T((1, 1, 32, 64)), F32), label="on the device")
    yield Call("get_device_tensors", (on_device,))
    yield Call("get_device_tensors", (host,))
    yield Call("deallocate", (on_device,))
    yield Call("deallocate", (host,), label="on the host")
    yield Call("deallocate", (freed,), label="freed before", differs="a double free is a mistake of the caller")
    for wanted in (on_device, host, freed):
        yield Call("Tensor.is_allocated", (wanted,), label=wanted.place)
        yield Call("Tensor.storage_type", (wanted,), label=wanted.place)
    shards = T((1, 8, 3, 64), memory=HeightShards((32, 64), 8))
    for member in ("shape", "dtype", "layout", "spec", "memory_config"):
        for wanted in (on_device, shards, T((1, 1, 9, 70)), T((1, 1, 9, 70), "bfloat8_b", place="host")):
            yield Call(f"Tensor.{member}", (wanted,))
    for member in ("shape", "get_num_devices"):
        yield Call(f"MeshDevice.{member}", (MESH,))
    yield Call("MeshDevice.create_submeshes", (MESH, Make("MeshShape", (1, 1))))
    yield Call("MeshDevice.create_submeshes", (MESH, Make("MeshShape", (1, 2))), label="more than there are")


def _placement() -> Iterator[Call]:
    yield Call("CoreCoord", (8, 8))
    for cores in (1, 7, 8, 9, 31, 32, 64):
        yield Call("num_cores_to_corerangeset", (cores, CORES, True))
    yield Call("num_cores_to_corerangeset", (65, CORES, True), label="more than there are")
    yield Call("num_cores_to_corerangeset", (0, CORES, True), label="none")
    for cores in (1, 8, 32):
        grid = Make("num_cores_to_corerangeset", (cores, CORES, True))
        yield Call(
            "create_sharded_memory_config",
            ((32, 64),),
            {
                "core_grid": grid,
                "strategy": Value("ShardStrategy.HEIGHT"),
                "orientation": Value("ShardOrientation.ROW_MAJOR"),
                "use_height_and_width_as_shard_shape": True,
            },
        )


def _waiting() -> Iterator[Call]:
    event = Make("record_event", (MESH, 0))
    yield Call("record_event", (MESH, 0))
    yield Call("record_event", (MESH, 7), label="no such queue")
    yield Call("event_synchronize", (event,))
    yield Call("synchronize_device", (MESH,))


def _files() -> Iterator[Call]:
    for wanted in (T((1, 1, 32, 64), place="host"), T((1, 1, 32, 64), "bfloat8_b", place="host")):
        yield Call("dump_tensor", (FILE, wanted))
        yield Call("load_tensor", (FILE,))
    yield Call("dump_tensor", ("/dev/null/no.tensorbin", wanted), label="no such folder")
    yield Call("dump_tensor", ("tensor.bin", wanted), label="other name")
    yield Call("load_tensor", ("/nowhere/no.tensorbin",), label="no such file")
