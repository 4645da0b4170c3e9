# SPDX-License-Identifier: Apache-2.0
"""The command line on ttnn: what the doctor sees on the mock, and a real model's whole way through `generate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_models.llama.executor import Llama, LlamaOptions
from llm_models.llama.memory import free_memory, require_memory


def run_cli(*arguments):
    """A run of `llm-runtime` in a process of its own."""
    command = [sys.executable, "-c", "from llm_models.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_doctor_knows_the_mock(ttnn):
    answer = run_cli("doctor", "--json")
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert (report["ttnn"], report["target"], report["devices"]) == ("0.81.1", "mock", 2)
    assert report["arch"] == "wormhole_b0"
    assert report["compiler"]["stand_in"]
    assert report["missing"] == []
    assert report["torch"] is None


def test_the_doctor_says_that_there_is_no_device(ttnn, monkeypatch):
    monkeypatch.delenv("TT_METAL_MOCK_CLUSTER_DESC_PATH")
    if Path("/dev/tenstorrent").exists():
        pytest.skip("this machine has a device")
    report = json.loads(run_cli("doctor", "--json").stdout)
    assert report["target"] == "none"
    assert any("there is no device" in sentence for sentence in report["missing"])


def test_generate_takes_the_first_mesh(ttnn):
    model = os.environ.get("LLM_RUNTIME_SMOLLM2")
    if not model:
        pytest.skip("SmolLM2 is not installed beside the lane")
    answer = run_cli(
        *("generate", "What is the capital of France?", "--device", "ttnn", "--trace", "none", "--json"),
        *("--model", model, "--max-new-tokens", "4", "--weights", "bfloat8_b"),
    )
    assert answer.returncode == 0, answer.stderr
    outcome = json.loads(answer.stdout.splitlines()[-1])
    # The mock reads zeros: token 0 is the end of text.
    assert set(outcome["results"][0]["new_ids"]) <= {0}
    assert outcome["stats"]["device"] == "ttnn"
    assert outcome["stats"]["programs"] > 0


def test_traces_are_refused_on_the_mock(ttnn):
    answer = run_cli("generate", "x", "--device", "ttnn")
    assert answer.returncode == 2
    assert "use --trace none" in answer.stderr


@pytest.mark.parametrize("weights", ["bfloat16", "bfloat8_b"])
def test_the_memory_that_is_said_is_what_ttnn_allocates(ttnn, mesh, checkpoints, weight_cache, weights):
    checkpoint = checkpoints["smollm2"]
    options = LlamaOptions(
        max_batch_size=2, max_seq_len=512, trace_mode="none", weight_dtype=weights, weight_cache=weight_cache
    )
    needed, before = options.device_memory(checkpoint.config).total, free_memory(ttnn, mesh)
    llama = Llama.open(checkpoint, mesh, options)
    llama.model.rope_setup.load_device_weights()
    used = before - free_memory(ttnn, mesh)
    llama.cleanup()
    # Pages go to 12 banks in turn, and every bank is taken to hold as much as the fullest one.
    assert needed <= used < 1.02 * needed
    assert free_memory(ttnn, mesh) == before


def test_a_lane_that_does_not_fit_is_refused(ttnn, mesh, checkpoints):
    options = LlamaOptions(max_batch_size=32, max_seq_len=8192, num_blocks=500_000, trace_mode="none")
    needed = options.device_memory(checkpoints["smollm2"].config)
    with pytest.raises(ValueError, match=r"needs .* MiB on the device.*MiB are free"):
        require_memory(needed, ttnn, mesh)
