# SPDX-License-Identifier: Apache-2.0
"""Weights for a device, from NumPy alone: values after conversion, files, and what a lane needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llm_models.llama.weight_cache import WeightCache
from llm_models.llama.weights import DeviceWeights, convert
from llm_runtime.device import numpy_of

VALUES = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)


def bfloat16(values):
    """Nearest bfloat16, ties to even, as float32."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def bfloat8(values):
    """Nearest value of seven bits under the largest exponent of 16 neighbours, as float32."""
    groups = values.reshape(*values.shape[:-1], -1, 16)
    exponent = np.floor(np.log2(np.abs(groups).max(axis=-1, keepdims=True)))
    step = np.exp2(exponent - 6)
    return (np.rint(groups / step).clip(-127, 127) * step).reshape(values.shape)


@pytest.mark.parametrize("layout", ["TILE_LAYOUT", "ROW_MAJOR_LAYOUT"])
def test_bfloat16_is_rounded_to_nearest(ttnn, layout):
    host = convert(ttnn, VALUES, layout=getattr(ttnn, layout), dtype=ttnn.bfloat16)
    assert (host.dtype, host.layout) == (ttnn.bfloat16, getattr(ttnn, layout))
    assert np.array_equal(numpy_of(host), bfloat16(VALUES))


def test_block_floats_share_the_exponent_of_16_values(ttnn):
    host = convert(ttnn, VALUES, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat8_b)
    assert (host.dtype, host.layout) == (ttnn.bfloat8_b, ttnn.TILE_LAYOUT)
    assert np.array_equal(numpy_of(host), bfloat8(VALUES))


def test_read_only_views_of_a_mapped_file_are_taken(ttnn):
    values = VALUES.copy()
    values.flags.writeable = False
    host = convert(ttnn, values, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16)
    assert np.array_equal(numpy_of(host), bfloat16(VALUES))


@pytest.mark.parametrize("dtype", ["bfloat16", "bfloat8_b"])
def test_the_second_load_reads_files_only(ttnn, mesh, checkpoints, tmp_path, allocated, dtype):
    before = allocated(mesh)
    reads = []
    source = checkpoints["smollm2"]
    checkpoint = replace(source, read=lambda name: (reads.append(name), source.read(name))[1])
    cache = WeightCache(tmp_path, checkpoint, ttnn)
    specs = []
    for _ in range(2):
        weights = DeviceWeights(checkpoint, mesh, dtype=getattr(ttnn, dtype), total=2, cache=cache)
        tensors = [weights.matrix("layers.0.wq", "layers.0.wk", "layers.0.wv"), weights.norm("final_norm")]
        specs.append([(tuple(t.shape), t.dtype, t.layout, t.memory_config()) for t in tensors])
        weights.release()
    assert reads == ["layers.0.wq", "layers.0.wk", "layers.0.wv", "final_norm"]
    assert specs[0] == specs[1]
    assert specs[0] == [
        ((1, 1, 576, 960), getattr(ttnn, dtype), ttnn.TILE_LAYOUT, ttnn.DRAM_MEMORY_CONFIG),
        ((1, 1, 18, 32), ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT, ttnn.DRAM_MEMORY_CONFIG),
    ]
    assert allocated(mesh) == before


def test_cached_values_are_the_converted_ones(ttnn, checkpoints, tmp_path):
    cache = WeightCache(tmp_path, checkpoints["smollm2"], ttnn)
    host = convert(ttnn, VALUES, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat8_b)
    cache.store("some.weight", host)
    loaded = cache.load("some.weight", layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat8_b)
    assert np.array_equal(numpy_of(loaded), bfloat8(VALUES))
    assert cache.load("some.weight", layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16) is None


def test_a_file_that_is_not_whole_counts_as_absent(ttnn, checkpoints, tmp_path):
    cache = WeightCache(tmp_path, checkpoints["smollm2"], ttnn)
    cache.store("some.weight", convert(ttnn, VALUES, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16))
    (file,) = tmp_path.rglob("*.tensorbin")
    file.write_bytes(file.read_bytes()[:-1])
    assert cache.load("some.weight", layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16) is None
