# SPDX-License-Identifier: Apache-2.0
"""Weights of a checkpoint on the device: converted on the host, uploaded one by one, and released together.

Shapes and layouts follow chapter 40, section F.1, interleaved in DRAM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.config import LlamaConfig
from llm_models.llama.model_config import TILE_ROWS
from llm_models.llama.weight_cache import WeightCache
from llm_runtime.device import namespace_of
from llm_runtime.tensor_resources import best_effort_deallocate_owned_tensors, raise_cleanup_failures

FloatArray = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]

_TRANSPOSED_AT_ONCE = 128


class DeviceWeights:
    """Owns every device tensor that it uploads; `mesh_device`, `checkpoint` and `cache` are borrowed.

    `dtype` is the device type of the matrices. `progress(done, total)` is called after each of `total` tensors. What
    `cache` holds is neither read from the checkpoint nor converted.
    """

    def __init__(
        self,
        checkpoint: LlamaCheckpoint,
        mesh_device: Any,
        *,
        dtype: Any,
        total: int,
        progress: Progress | None = None,
        cache: WeightCache | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._mesh = mesh_device
        self._ns = namespace_of(mesh_device)
        self._dtype = dtype
        self._total = total
        self._progress = progress
        self._cache = cache
        self._tensors: list[Any] = []
        self._released: set[int] = set()

    @property
    def architecture(self) -> LlamaConfig:
        """What the checkpoint says about itself."""
        return self._checkpoint.config

    def matrix(self, *names: str) -> Any:
        """[1, 1, input, outputs] in tiles: the named weights side by side, transposed for `x @ w`."""
        read = self._checkpoint.tensor
        return self._upload(
            "+".join(names),
            lambda: transposed([read(name) for name in names])[None, None],
            self._ns.TILE_LAYOUT,
            self._dtype,
        )

    def row(self, *names: str) -> Any:
        """[1, 1, 1, outputs] bfloat16 in tiles: the named biases one behind the other."""
        read = self._checkpoint.tensor
        return self._upload(
            "+".join(names),
            lambda: np.concatenate([read(name) for name in names])[None, None, None],
            self._ns.TILE_LAYOUT,
            self._ns.bfloat16,
        )

    def norm(self, name: str) -> Any:
        """[1, 1, width / 32, 32] row-major bfloat16."""
        read = self._checkpoint.tensor
        return self._upload(
            name, lambda: read(name).reshape(1, 1, -1, TILE_ROWS), self._ns.ROW_MAJOR_LAYOUT, self._ns.bfloat16
        )

    def table(self, name: str) -> Any:
        """[1, 1, rows, width] row-major bfloat16, for lookups."""
        read = self._checkpoint.tensor
        return self._upload(name, lambda: read(name)[None, None], self._ns.ROW_MAJOR_LAYOUT, self._ns.bfloat16)

    def release(self) -> None:
        """Free every tensor. Idempotent; after a failure (raised, others attached) it can be called again."""
        failures = best_effort_deallocate_owned_tensors(self._tensors, self._released)
        if failures:
            raise_cleanup_failures(failures)
        self._tensors.clear()
        self._released.clear()

    def _upload(self, name: str, read: Callable[[], FloatArray], layout: Any, dtype: Any) -> Any:
        host = None if self._cache is None else self._cache.load(name, layout=layout, dtype=dtype)
        if host is None:
            host = convert(self._ns, read(), layout=layout, dtype=dtype)
            if self._cache is not None:
                self._cache.store(name, host)
        tensor = self._ns.to_device(host, device=self._mesh, memory_config=self._ns.DRAM_MEMORY_CONFIG)
        self._tensors.append(tensor)
        if self._progress is not None:
            self._progress(len(self._tensors), self._total)
        return tensor


def transposed(parts: Sequence[FloatArray]) -> FloatArray:
    """[input, sum of outputs]: the parts [output, input] transposed, side by side.

    In strips that stay in the processor's cache: copying whole large matrices takes five times as long.
    """
    made = np.empty((parts[0].shape[1], sum(len(part) for part in parts)), np.float32)
    column = 0
    for part in parts:
        for first in range(0, len(part), _TRANSPOSED_AT_ONCE):
            strip = part[first : first + _TRANSPOSED_AT_ONCE]
            made[:, column : column + len(strip)] = strip.T
            column += len(strip)
    return made


def convert(ns: Any, array: npt.NDArray[Any], *, layout: Any, dtype: Any) -> Any:
    """A host tensor of `array`'s shape. The host converts, block formats too: nothing but the result is uploaded."""
    # A mapped checkpoint gives read-only views, which the device library does not take.
    return ns.Tensor(array if array.flags.writeable else array.copy(), dtype, layout=layout)


def upload(ns: Any, mesh_device: Any, array: npt.NDArray[Any], *, layout: Any, dtype: Any) -> Any:
    """A device tensor of `array`'s shape in interleaved DRAM, owned by the caller."""
    host = convert(ns, array, layout=layout, dtype=dtype)
    return ns.to_device(host, device=mesh_device, memory_config=ns.DRAM_MEMORY_CONFIG)
