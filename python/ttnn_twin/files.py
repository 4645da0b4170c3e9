# SPDX-License-Identifier: Apache-2.0
"""Host tensors in files, under the names ttnn gives these functions; the file format is the twin's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from .dtypes import DataType, Layout, storage_dtype
from .mesh import MeshDevice
from .tensor import Tensor, TensorSpec
from .transfer import to_device

SUFFIX = ".tensorbin"
_LENGTH_BYTES = 8


def dump_tensor(file_name: str | Path, tensor: Tensor) -> None:
    """Write a tensor: shape, element type, layout and elements. A device tensor is read to the host first.

    Raises:
        RuntimeError: the file name does not end in ``.tensorbin``, or the read is refused.
        OSError: the file cannot be written.
    """
    path = _checked("dump_tensor", file_name)
    host = tensor if tensor._mesh is None else tensor.cpu()
    header = json.dumps([list(tensor.shape), list(tensor.padded_shape), tensor.dtype.name, tensor.layout.name])
    with path.open("wb") as file:
        file.write(len(header).to_bytes(_LENGTH_BYTES, "little") + header.encode())
        file.write(np.ascontiguousarray(host._host_array("dump_tensor")).tobytes())


def load_tensor(file_name: str | Path, *, device: MeshDevice | None = None) -> Tensor:
    """Read a tensor that :func:`dump_tensor` wrote, onto the host, or onto ``device`` in interleaved DRAM.

    Raises:
        RuntimeError: the file name does not end in ``.tensorbin``, there is no such file, or it is not whole.
    """
    path = _checked("load_tensor", file_name)
    if not path.exists():
        raise RuntimeError(f"load_tensor: {path} does not exist")
    data = path.read_bytes()
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    try:
        shape, padded, dtype, layout = json.loads(data[_LENGTH_BYTES:end])
        spec = TensorSpec(tuple(shape), DataType[dtype], Layout[layout], padded_shape=tuple(padded))
        array = np.frombuffer(data, storage_dtype(spec.dtype), offset=end).reshape(spec.shape).copy()
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"load_tensor: {path} is not a whole tensor file") from error
    host = Tensor._on_host(array, spec)
    return host if device is None else to_device(host, device)


def _checked(op: str, file_name: str | Path) -> Path:
    path = Path(file_name)
    if path.suffix != SUFFIX:
        raise RuntimeError(f"{op}: {path} must end in {SUFFIX}")
    return path
