# SPDX-License-Identifier: Apache-2.0
"""Where the zeros of a new KV cache come from: host tensors that layers share, kept in files where that pays.

Follows chapter 30, section 6.4.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_runtime.paged_kv_cache.dtypes import is_block_format

logger = logging.getLogger(__name__)

Shape = tuple[int, int, int, int]
_SUFFIX = ".tensorbin"  # the device library takes no other one


class HostZeros:
    """Zero tensors on the host, tiled, in the dtype of the cache; made once for all layers of one shape and dtype.

    Packing zeros into a block format takes the host seconds for a large cache. With `folder`, such tensors are kept
    in files `empty_kcache_paged_attention<shape>` and `empty_vcache_…`; but only for a shape that all its layers
    store in one dtype, because the name does not tell the dtype. Nothing about a file can make an allocation fail.
    """

    def __init__(self, namespace: Any, folder: Path | None, layers: Sequence[tuple[Shape, Any]]) -> None:
        self._ns = namespace
        self._folder = folder
        self._dtypes: dict[Shape, set[Any]] = {}
        for shape, dtype in layers:
            self._dtypes.setdefault(shape, set()).add(dtype)
        self._made: dict[Any, Any] = {}

    def tensor(self, kind: str, shape: Shape, dtype: Any) -> Any:
        """The host tensor of `kind` "k" or "v" (borrowed); both kinds share one unless it comes from a file."""
        path = self.path(kind, shape, dtype)
        key = (shape, dtype, path)
        if key not in self._made:
            self._made[key] = self._new(shape, dtype) if path is None else self._kept(path, shape, dtype)
        return self._made[key]

    def path(self, kind: str, shape: Shape, dtype: Any) -> Path | None:
        """The file for `kind`, or `None` where none is used."""
        if self._folder is None or len(self._dtypes[shape]) > 1 or not is_block_format(dtype):
            return None
        return self._folder / f"empty_{kind}cache_paged_attention{shape}{_SUFFIX}"

    def _kept(self, path: Path, shape: Shape, dtype: Any) -> Any:
        tensor = self._read(path)
        if tensor is not None and tuple(tensor.shape) == shape and tensor.dtype == dtype:
            return tensor
        tensor = self._new(shape, dtype)
        self._write(path, tensor)
        return tensor

    def _new(self, shape: Shape, dtype: Any) -> Any:
        return self._ns.zeros(shape, dtype=dtype, layout=self._ns.TILE_LAYOUT)

    def _read(self, path: Path) -> Any | None:
        if not path.exists():
            return None
        try:
            return self._ns.load_tensor(path)
        except (RuntimeError, OSError, ValueError) as error:
            logger.warning("KV cache file %s cannot be read and is made again: %s", path, _first_line(error))
            return None

    def _write(self, path: Path, tensor: Any) -> None:
        """The file appears as a whole or not at all: other processes may read it."""
        partial = path.with_name(f"{path.stem}.{os.getpid()}.partial{_SUFFIX}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._ns.dump_tensor(partial, tensor)
            partial.replace(path)
        except (RuntimeError, OSError) as error:
            logger.warning("KV cache file %s cannot be written: %s", path, _first_line(error))
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
