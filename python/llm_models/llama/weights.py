# SPDX-License-Identifier: Apache-2.0
"""Weights of a checkpoint on the device: uploaded one by one, and released together.

Shapes and layouts follow chapter 40, section F.1, interleaved in DRAM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.model_config import TILE_ROWS
from llm_runtime.device import namespace_of
from llm_runtime.tensor_resources import best_effort_deallocate_owned_tensors, raise_cleanup_failures

Progress = Callable[[int, int], None]


class DeviceWeights:
    """Owns every device tensor that it uploads; `mesh_device` and `checkpoint` are borrowed.

    `dtype` is the device type of the matrices. `progress(done, total)` is called after each of `total` tensors.
    """

    def __init__(
        self,
        checkpoint: LlamaCheckpoint,
        mesh_device: Any,
        *,
        dtype: Any,
        total: int,
        progress: Progress | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._mesh = mesh_device
        self._ns = namespace_of(mesh_device)
        self._dtype = dtype
        self._total = total
        self._progress = progress
        self._tensors: list[Any] = []
        self._released: set[int] = set()

    def matrix(self, *names: str) -> Any:
        """[1, 1, input, outputs] in tiles: the named weights side by side, transposed for `x @ w`."""
        parts = [self._checkpoint.tensor(name) for name in names]
        array = np.concatenate([part.T for part in parts], axis=1)
        del parts
        return self._upload(array[None, None], self._ns.TILE_LAYOUT, self._dtype)

    def norm(self, name: str) -> Any:
        """[1, 1, width / 32, 32] row-major bfloat16."""
        array = self._checkpoint.tensor(name)
        return self._upload(array.reshape(1, 1, -1, TILE_ROWS), self._ns.ROW_MAJOR_LAYOUT, self._ns.bfloat16)

    def table(self, name: str) -> Any:
        """[1, 1, rows, width] row-major bfloat16, for lookups."""
        array = self._checkpoint.tensor(name)
        return self._upload(array[None, None], self._ns.ROW_MAJOR_LAYOUT, self._ns.bfloat16)

    def release(self) -> None:
        """Free every tensor. Idempotent; after a failure (raised, others attached) it can be called again."""
        failures = best_effort_deallocate_owned_tensors(self._tensors, self._released)
        if failures:
            raise_cleanup_failures(failures)
        self._tensors.clear()
        self._released.clear()

    def _upload(self, array: npt.NDArray[np.float32], layout: Any, dtype: Any) -> Any:
        tensor = upload(self._ns, self._mesh, array, layout=layout, dtype=dtype)
        self._tensors.append(tensor)
        if self._progress is not None:
            self._progress(len(self._tensors), self._total)
        return tensor


def upload(ns: Any, mesh_device: Any, array: npt.NDArray[Any], *, layout: Any, dtype: Any) -> Any:
    """A device tensor of `array`'s shape in interleaved DRAM, owned by the caller.

    Block formats are made on the device from bfloat16, since the host side has no rows of them.
    """
    on_host = dtype if dtype in (ns.float32, ns.int32, ns.uint32) else ns.bfloat16
    # A mapped checkpoint gives read-only views, which the device library does not take.
    host = ns.Tensor(array if array.flags.writeable else array.copy(), on_host)
    if layout != ns.ROW_MAJOR_LAYOUT:
        host = ns.to_layout(host, layout)
    tensor = ns.to_device(host, device=mesh_device, memory_config=ns.DRAM_MEMORY_CONFIG)
    if dtype == on_host:
        return tensor
    try:
        return ns.typecast(tensor, dtype)
    finally:
        ns.deallocate(tensor)
