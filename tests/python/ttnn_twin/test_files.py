# SPDX-License-Identifier: Apache-2.0
"""Host tensors in files."""

from __future__ import annotations

import numpy as np
import pytest

import ttnn_twin as ttnn


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        (ttnn.bfloat16, ttnn.TILE_LAYOUT),
        (ttnn.bfloat8_b, ttnn.TILE_LAYOUT),
        (ttnn.float32, ttnn.ROW_MAJOR_LAYOUT),
        (ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT),
    ],
    ids=lambda value: value.name,
)
def test_a_tensor_comes_back_as_it_was(tmp_path, dtype, layout):
    tensor = ttnn.Tensor(np.arange(70, dtype=np.float32).reshape(2, 35), dtype, layout=layout)
    ttnn.dump_tensor(tmp_path / "t.tensorbin", tensor)
    loaded = ttnn.load_tensor(tmp_path / "t.tensorbin")
    assert loaded.spec == tensor.spec
    assert loaded.to_numpy().tolist() == tensor.to_numpy().tolist()


def test_device_tensors_are_read_and_written(tmp_path, mesh):
    source = ttnn.to_device(ttnn.Tensor(np.arange(6, dtype=np.int32), ttnn.int32), mesh)
    ttnn.dump_tensor(tmp_path / "t.tensorbin", source)
    loaded = ttnn.load_tensor(tmp_path / "t.tensorbin", device=mesh)
    assert loaded.device() is mesh
    assert loaded.cpu().to_numpy().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kept", [0, 5, 30, -1])
def test_a_file_that_is_not_whole_is_refused(tmp_path, kept):
    path = tmp_path / "t.tensorbin"
    ttnn.dump_tensor(path, ttnn.Tensor(np.ones((4, 4), np.float32)))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RuntimeError, match="not a whole tensor file"):
        ttnn.load_tensor(path)


def test_other_names_and_absent_files_are_refused(tmp_path):
    tensor = ttnn.Tensor(np.ones(4, np.float32))
    with pytest.raises(RuntimeError, match=r"must end in \.tensorbin"):
        ttnn.dump_tensor(tmp_path / "t.bin", tensor)
    with pytest.raises(RuntimeError, match="does not exist"):
        ttnn.load_tensor(tmp_path / "t.tensorbin")
