# SPDX-License-Identifier: Apache-2.0
"""The tiny checkpoint that the serving tests load."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.serving.deployment import write_tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama as a Hugging Face folder."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"))
