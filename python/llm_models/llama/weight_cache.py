# SPDX-License-Identifier: Apache-2.0
"""Converted weights on disk: what took a conversion once is mapped from a file the next time."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
from pathlib import Path
from typing import Any

from llm_models.checkpoints import LlamaCheckpoint

logger = logging.getLogger(__name__)

_FORMAT = 1
_SUFFIX = ".tensorbin"  # the device library takes no other one


class WeightCache:
    """One file per converted weight of one checkpoint, below `folder`.

    A checkpoint that changed, another architecture, or another version of the device library makes a new subfolder;
    old ones are never touched. Nothing here can make loading fail: what cannot be read counts as absent, and what
    cannot be written is logged.
    """

    def __init__(self, folder: Path, checkpoint: LlamaCheckpoint, namespace: Any) -> None:
        self._ns = namespace
        self.folder = Path(folder) / _identity(checkpoint, namespace)

    def load(self, name: str, *, layout: Any, dtype: Any) -> Any | None:
        """The host tensor of weight `name`, or `None`. Its pages are read from the file as they are used."""
        path = self._path(name, layout, dtype)
        if not path.exists():
            return None
        try:
            tensor = self._ns.load_tensor(path)
        except (RuntimeError, OSError, ValueError) as error:
            logger.warning("cached weight %s cannot be read and is made again: %s", path, str(error).splitlines()[0])
            return None
        return tensor if (tensor.layout, tensor.dtype) == (layout, dtype) else None

    def store(self, name: str, host: Any) -> None:
        """Write `host` (borrowed); the file appears as a whole or not at all."""
        path = self._path(name, host.layout, host.dtype)
        partial = path.with_name(f"{path.stem}.{os.getpid()}.partial{_SUFFIX}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._ns.dump_tensor(partial, host)
            partial.replace(path)
        except (RuntimeError, OSError) as error:
            logger.warning("weight %s cannot be cached: %s", path, str(error).splitlines()[0])
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _path(self, name: str, layout: Any, dtype: Any) -> Path:
        return self.folder / f"{name}.{dtype.name.lower()}.{layout.name.lower()}{_SUFFIX}"


def _identity(checkpoint: LlamaCheckpoint, namespace: Any) -> str:
    """Everything that decides about the bytes of a converted weight, but its name, type and layout."""
    path = checkpoint.path.resolve()
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    library = [namespace.__name__, ""]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the twin is no distribution of its own
        library[1] = importlib.metadata.version(namespace.__name__)
    text = json.dumps([_FORMAT, library, str(path), facts, repr(checkpoint.config)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
