# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint lies on this machine: a path, the demo model, or a model of the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

from llm_models.checkpoints import CheckpointError, find_smollm2

__all__ = ["find_checkpoint"]

#: What a checkpoint is read from; other formats of the same weights stay where they are.
_WANTED_FILES = ["*.json", "*.jinja", "*.safetensors", "*.gguf"]
_UNWANTED_FILES = ["original/*"]


def find_checkpoint(name: str, *, revision: str | None = None, cache_dir: str | Path | None = None) -> Path:
    """The folder or file of `name`: an existing path, `smollm2`, or `organisation/model` of the hub.

    `revision` is a branch, tag or commit of a hub model (`main` by default); a path has none. A snapshot in the local
    cache that has weights is taken as it is. Anything else is downloaded into the cache, unless `HF_HUB_OFFLINE`
    forbids it. `CheckpointError` when nothing is there or comes.
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
    if any(snapshot.glob("*.safetensors")) or any(snapshot.glob("*.gguf")):
        return snapshot
    try:
        return _download(name, revision=wanted, cache_dir=_hub_cache(cache_dir))
    except Exception as error:  # of the library, of HTTP, of the disk: the caller gets one kind
        raise CheckpointError(
            f"model {name!r} (revision {wanted}) is neither a path nor in the local cache {folder}, and could not be "
            f"downloaded: {error}"
        ) from error


def _download(name: str, *, revision: str, cache_dir: Path) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, and mostly not needed

    return Path(
        snapshot_download(
            name,
            revision=revision,
            cache_dir=cache_dir,
            allow_patterns=_WANTED_FILES,
            ignore_patterns=_UNWANTED_FILES,
        )
    )


def _hub_cache(cache_dir: str | Path | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir)
    explicit = os.environ.get("HF_HUB_CACHE")
    if explicit:
        return Path(explicit)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"
