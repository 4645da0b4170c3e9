# SPDX-License-Identifier: Apache-2.0
"""`llm-runtime generate` on the real model: one JSON object with ids, reasons and figures that agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_models.cli import main
from support.real_model import golden_cases

pytestmark = pytest.mark.slow

STATS = {
    "trace_mode",
    "device",
    "programs",
    "traces",
    "prefill_replays",
    "decode_replays",
    "decode_steps",
    "prefill_requests",
    "waves",
    "ttft_ms",
    "decode_tokens_per_s",
    "runtime_us_per_decode_step",
    "load_s",
    "warmup_s",
    "kv_blocks_used",
    "kv_blocks_total",
    "peak_rss_mib",
}


def test_json_holds_results_and_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Write one sentence about the sea.\n")
    arguments = ["What is the capital of France?", "--prompt-file", str(prompts), "--max-new-tokens", "12", "--json"]
    monkeypatch.setattr("sys.argv", ["llm-runtime", "generate", *arguments])
    main()
    printed = json.loads(capsys.readouterr().out)

    capital, sea = (golden_cases()[name] for name in ("capital", "sea"))
    assert printed["results"] == [
        {
            "prompt": "What is the capital of France?",
            "prompt_ids": list(capital.prompt_ids),
            "new_ids": list(capital.new_ids),
            "text": "The capital of France is Paris.",
            "finish_reason": "stop",
        },
        {
            "prompt": "Write one sentence about the sea.",
            "prompt_ids": list(sea.prompt_ids),
            "new_ids": list(sea.new_ids[:12]),
            "text": "The sea is a vast and mysterious realm, teeming with life",
            "finish_reason": "length",
        },
    ]
    stats = printed["stats"]
    assert set(stats) == STATS
    assert (stats["trace_mode"], stats["device"]) == ("all", "twin")
    assert (stats["prefill_requests"], stats["waves"], stats["prefill_replays"]) == (1, [2], 1)
    assert stats["decode_steps"] == stats["decode_replays"] == 11
    assert stats["kv_blocks_used"] == 4 <= stats["kv_blocks_total"]
    assert stats["programs"] >= stats["traces"] > 0
