# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint lies on this machine: a path, the demo model, or Hugging Face's local cache. Never downloads."""

from __future__ import annotations

import os
from pathlib import Path

from llm_models.checkpoints import CheckpointError, find_smollm2

__all__ = ["find_checkpoint"]


def find_checkpoint(name: str, *, revision: str | None = None, cache_dir: str | Path | None = None) -> Path:
    """The folder or file of `name`: an existing path, `smollm2`, or `organisation/model` in the local hub cache.

    `revision` is a branch, tag or commit of a cached model (`main` by default); a path has none. `CheckpointError`
    when nothing is there: fetching a model is left to the user's own tools.
    """
    if Path(name).exists():
        if revision is not None:
            raise CheckpointError(f"{name} is a path, which has no revision {revision!r}")
        return Path(name)
    if name == "smollm2":
        return find_smollm2()
    folder = _hub_cache(cache_dir) / f"models--{name.replace('/', '--')}"
    wanted = revision or "main"
    ref = folder / "refs" / wanted
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else wanted
    snapshot = folder / "snapshots" / commit
    if not snapshot.is_dir():
        raise CheckpointError(
            f"model {name!r} (revision {wanted}) is neither a path nor in the local cache {folder}; download it first"
        )
    return snapshot


def _hub_cache(cache_dir: str | Path | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir)
    explicit = os.environ.get("HF_HUB_CACHE")
    if explicit:
        return Path(explicit)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"
