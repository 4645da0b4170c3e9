# SPDX-License-Identifier: Apache-2.0
"""What people see: one prompt streams, several come as blocks, a table at the end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from llm_models.cli_output import TextOutput


class Letters:
    """A tokenizer whose ids are code points and which holds the last character back until the end."""

    def stream_decoder(self) -> Letters:
        decoder = Letters()
        decoder.held = ""
        return decoder

    def push(self, token: int) -> str:
        released, self.held = self.held, chr(token)
        return released

    def finish(self) -> str:
        return self.held


@pytest.fixture
def shown():
    return io.StringIO()


@pytest.fixture
def output(shown) -> TextOutput:
    return TextOutput(Console(file=shown, width=80))


def test_one_prompt_streams_as_it_comes(output: TextOutput, shown: io.StringIO) -> None:
    with output.answers(["hello"], Letters()) as on_token:
        on_token(0, ord("a"), None)
        on_token(0, ord("["), None)
        assert shown.getvalue() == "a"
        on_token(0, ord("b"), "stop")
        assert shown.getvalue() == "a[b"


def test_several_prompts_come_as_blocks_in_the_order_they_finish(output: TextOutput, shown: io.StringIO) -> None:
    with output.answers(["first", "second"], Letters()) as on_token:
        for index, letter, finish in [(0, "a", None), (1, "x", None), (1, "y", "stop"), (0, "b", "length")]:
            on_token(index, ord(letter), finish)
    lines = [line.strip("─ ") for line in shown.getvalue().splitlines() if line.strip()]
    assert lines == ["second", "xy", "first", "ab"]


def test_the_table_shows_the_figures(output: TextOutput, shown: io.StringIO) -> None:
    stats = {
        "trace_mode": "all",
        "device": "twin",
        "ttft_ms": 12.5,
        "decode_tokens_per_s": 33.0,
        "programs": 14,
        "traces": 8,
        "prefill_replays": 1,
        "decode_replays": 7,
        "runtime_us_per_decode_step": 99.0,
        "load_s": 1.5,
        "warmup_s": 2.5,
        "kv_blocks_used": 2,
        "kv_blocks_total": 8,
        "peak_rss_mib": 800.0,
    }
    output.finish([{"prompt_ids": [1, 2, 3]}], stats)
    text = shown.getvalue()
    for expected in ("trace mode all", "12.5 ms", "33.0 tokens/s", "2 of 8", "99.0 us", "1.5 s / 2.5 s"):
        assert expected in text
