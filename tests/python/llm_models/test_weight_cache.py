# SPDX-License-Identifier: Apache-2.0
"""Converted weights on disk: used instead of the checkpoint, never trusted for another one, never in the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ttnn_twin
from llm_models.llama.weight_cache import WeightCache
from llm_models.llama.weights import DeviceWeights, transposed
from support.llama import tiny_checkpoint


@pytest.fixture
def mesh():
    mesh = ttnn_twin.open_mesh_device()
    yield mesh
    ttnn_twin.close_mesh_device(mesh)


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint with a file of its own, and the names that were read from it."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    tiny = tiny_checkpoint()
    reads = []

    def read(name):
        reads.append(name)
        return tiny.read(name)

    return replace(tiny, path=path, read=read), reads


def load(checkpoint, mesh, folder, *, dtype=ttnn_twin.bfloat16):
    """Values of a matrix, a norm and a table, loaded through a cache in `folder`."""
    cache = WeightCache(folder, checkpoint, ttnn_twin)
    weights = DeviceWeights(checkpoint, mesh, dtype=dtype, total=3, cache=cache)
    tensors = [
        weights.matrix("layers.0.wq", "layers.0.wk"),
        weights.norm("final_norm"),
        weights.table("token_embedding"),
    ]
    assert tensors[0].dtype is dtype
    values = [tensor.cpu().to_numpy().copy() for tensor in tensors]
    weights.release()
    return values


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_second_load_reads_no_checkpoint(checkpoint, mesh, tmp_path):
    source, reads = checkpoint
    first = load(source, mesh, tmp_path / "cache")
    assert len(reads) == 4
    second = load(source, mesh, tmp_path / "cache")
    assert len(reads) == 4
    assert same(first, second)


def test_a_changed_checkpoint_is_converted_again(checkpoint, mesh, tmp_path):
    source, reads = checkpoint
    load(source, mesh, tmp_path / "cache")
    source.path.write_bytes(b"other weights")
    load(source, mesh, tmp_path / "cache")
    assert len(reads) == 8


def test_types_have_files_of_their_own(checkpoint, mesh, tmp_path):
    source, reads = checkpoint
    load(source, mesh, tmp_path / "cache")
    load(source, mesh, tmp_path / "cache", dtype=ttnn_twin.bfloat8_b)
    assert reads[4:] == ["layers.0.wq", "layers.0.wk"]


def test_a_file_that_is_not_whole_is_made_again(checkpoint, mesh, tmp_path, caplog):
    source, reads = checkpoint
    first = load(source, mesh, tmp_path / "cache")
    (file,) = (tmp_path / "cache").rglob("final_norm.*")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert same(load(source, mesh, tmp_path / "cache"), first)
    assert reads[4:] == ["final_norm"]
    assert "is made again" in caplog.text
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_does_not_stop_the_load(checkpoint, mesh, tmp_path, caplog):
    source, _ = checkpoint
    (tmp_path / "cache").write_text("a file, where the folder should be")
    assert len(load(source, mesh, tmp_path / "cache")) == 3
    assert "cannot be cached" in caplog.text


@pytest.mark.parametrize("heights", [(5,), (128,), (300, 7, 129)])
def test_transposed_parts_lie_side_by_side(heights):
    parts = [np.random.default_rng(h).standard_normal((h, 6)).astype(np.float32) for h in heights]
    assert np.array_equal(transposed(parts), np.concatenate(parts).T)
