# SPDX-License-Identifier: Apache-2.0
"""The bundle in `examples/vllm_bundle` registers the class as the plugin's rules say: metadata, path, lazy import."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BUNDLES = Path(__file__).resolve().parents[3] / "examples" / "vllm_bundle"


def register(extra_models_dir: Path) -> dict[str, str]:
    """Every bundle's architecture and `module:Class`; its folder goes on the import path."""
    registered = {}
    for metadata in sorted(extra_models_dir.glob("*/vllm_metadata.json")):
        values = json.loads(metadata.read_text(encoding="utf-8"))
        registered[values["arch"]] = values["main_class"]
        sys.path.append(str(metadata.parent))
    return registered


def test_the_bundle_names_the_llama_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    ((architecture, entry),) = register(BUNDLES).items()
    assert architecture == "TT" + "LlamaForCausalLM"
    module, _, name = entry.partition(":")
    found = getattr(importlib.import_module(module), name)
    from llm_models.llama.vllm import LlamaForCausalLM

    assert found is LlamaForCausalLM
    assert found.model_capabilities["supports_sample_on_device"] and found.decode_input_update_contract == 1


def test_resolving_the_class_opens_no_device() -> None:
    script = (
        "import json, pathlib, sys\n"
        "sys.path[:0] = ['python']\n"
        "folder = next(pathlib.Path('examples/vllm_bundle').glob('*/vllm_metadata.json')).parent\n"
        "sys.path.append(str(folder))\n"
        "module, _, name = json.loads((folder / 'vllm_metadata.json').read_text())['main_class'].partition(':')\n"
        "getattr(__import__(module), name)\n"
        "assert not {'torch', 'ttnn', 'ttnn_twin', 'vllm'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=BUNDLES.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
