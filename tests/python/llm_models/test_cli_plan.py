# SPDX-License-Identifier: Apache-2.0
"""`llm-runtime plan`: the JSON against the planner, the tables, and one line for every mistake."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llm_models.cli import main
from llm_runtime import _core as core
from support.planner import core_plan

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `llm-runtime plan ARGUMENTS…` and returns what it printed."""

    def run_one(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["llm-runtime", "plan", *arguments])
        main()
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run_one


@pytest.fixture
def planned(run: Run) -> Callable[..., dict[str, Any]]:
    """The JSON object of `llm-runtime plan ARGUMENTS… --json`."""
    return lambda *arguments: json.loads(run(*arguments, "--json"))


LANE = ["--max-seq-len", "4096", "--num-blocks", "128"]


def test_json_is_the_plan_of_the_planner(planned: Callable[..., dict[str, Any]]) -> None:
    result = planned("--lengths", "100,300,3000", "--cached", "0,64,0", "--slots", "3,1,0", *LANE)
    assert result["layout"] == {
        "block_size": 32,
        "raw_capacity_width": 128,
        "prefill_width": 192,
        "decode_width": 128,
    }
    wanted = core_plan(
        tokens=np.zeros((3, 3000), np.int32),
        page_table=np.arange(3 * 128).reshape(3, 128),
        prompt_lens=np.array([100, 300, 3000]),
        empty_slots=[3, 1, 0],
        start_pos=np.array([0, 64, 0]),
        block_size=32,
        max_batch_size=32,
        max_prefill_chunk_size=2048,
        supports_batched_prefill=True,
        disable_batched_prefill=False,
        max_prefill_batch_size=8,
        max_actual_page_table_width=128,
        canonical_page_table_width=192,
        start_alignment=32,
    )
    assert len(result["requests"]) == len(wanted) == 3
    for shown, request in zip(result["requests"], wanted, strict=True):
        assert shown["kind"] == request.kind
        for name in ("source_rows", "slots", "prompt_lengths", "cached_tokens"):
            assert tuple(shown[name]) == getattr(request, name)
        for name in ("padded_batch_size", "padded_sequence_length", "uses_chunked_prefill"):
            assert shown[name] == getattr(request, name)
        assert shown["page_table"] == request.page_table.tolist()
        for chunk, planned_chunk in zip(shown["chunks"], request.chunks, strict=True):
            table = planned_chunk.chunk_page_table
            assert chunk == {
                "start": planned_chunk.chunk_start_idx,
                "size": planned_chunk.chunk_size,
                "token_slice": [planned_chunk.token_slice.start, planned_chunk.token_slice.stop],
                "contains_last_token": planned_chunk.contains_last_token,
                "page_table": None if table is None else table.tolist(),
            }
        (program,) = core.build_program_signatures(request, "logits", static_q128_topk_supported=False)
        trace = core.build_trace_signature(request, trace_enabled=True)
        for digest, kind, signature in (("program_digest", "program", program), ("trace_digest", "trace", trace)):
            data = signature.key.canonical_json(domain=f"tttv2.llm-runtime.{kind}", schema_version=1)
            assert shown[digest] == hashlib.sha256(data).hexdigest()


def test_rows_own_consecutive_blocks(planned: Callable[..., dict[str, Any]]) -> None:
    (wave,) = planned("--lengths", "100,60,33", *LANE)["requests"]
    assert [row[:5] for row in wave["page_table"]] == [
        [0, 1, 2, 3, -1],
        [128, 129, -1, -1, -1],
        [256, 257, -1, -1, -1],
        [-1] * 5,
    ]


def test_numbers_of_a_cached_and_a_long_row(planned: Callable[..., dict[str, Any]]) -> None:
    short, long = planned("--lengths", "160,4097", "--cached", "128,0", "--max-seq-len", "8192")["requests"]
    assert [(chunk["start"], chunk["size"]) for chunk in short["chunks"]] == [(128, 128)]
    assert short["chunks"][0]["page_table"] == [[4, -1, -1, -1]]
    assert [(chunk["start"], chunk["contains_last_token"]) for chunk in long["chunks"]] == [
        (0, False),
        (2048, False),
        (4096, True),
    ]
    assert min(long["page_table"][0]) == 0


@pytest.mark.parametrize(
    ("arguments", "rule", "detail"),
    [
        (["--lengths", "80"], "fewer_than_two_rows", "1 row pads to 128 tokens"),
        (["--lengths", "80,80", "--no-batching"], "disabled", "2 rows, but batched prefill is disabled"),
        (["--lengths", "80,80", "--cached", "0,32"], "cached_tokens", "row 1 starts behind 32 cached tokens"),
        (["--lengths", "2049,2049"], "max_prefill_chunk_size", "4096 exceeds max_prefill_chunk_size 2048"),
        (["--lengths", ",".join(["80"] * 9)], "max_prefill_batch_size", "batch of 16, above"),
        (["--lengths", "80,80,80", "--max-batch-size", "3"], "max_batch_size", "of 4, above max_batch_size 3"),
        (
            ["--lengths", ",".join(["4096"] * 32), "--chunk", "4096", "--max-prefill-batch-size", "32"],
            "wave_token_ceiling",
            "131072 padded tokens",
        ),
    ],
)
def test_a_bucket_without_a_wave_tells_the_rule_and_its_numbers(
    planned: Callable[..., dict[str, Any]], arguments: list[str], rule: str, detail: str
) -> None:
    result = planned(*arguments)
    rows = len(arguments[1].split(","))
    (fallback,) = result["fallbacks"]
    assert fallback["rows"] == list(range(rows)) and fallback["rule"] == rule
    assert detail in fallback["detail"]
    assert len(result["requests"]) == rows


def test_the_environment_switch_holds_here_too(
    planned: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned("--lengths", "80,80")["fallbacks"] == []
    monkeypatch.setenv("DISABLE_BATCHED_PREFILL", "1")
    assert planned("--lengths", "80,80")["fallbacks"][0]["rule"] == "disabled"


def test_alignment_rounds_the_start_down(planned: Callable[..., dict[str, Any]]) -> None:
    (request,) = planned("--lengths", "300", "--cached", "96", "--alignment", "64")["requests"]
    assert request["cached_tokens"] == [64]


def test_tables_show_heads_tails_and_sentinels(run: Run) -> None:
    text = run("--lengths", "100,90,80,3000", "--slots", "3,1,0,2", "--max-seq-len", "4096")
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    for wanted in (
        "128 blocks of 32 tokens a sequence; table columns: prefill 192, decode 128",
        "request 0: wave",
        "rows          0 1 2",
        "slots         3 1 0",
        "wave          3 active rows of 4",
        "padded length 128",
        "page table    0 1 2 3 then 188 x -1 (do not write)",
        "              128 129 130 then 189 x -1 (do not write)",
        "              192 x -1 (do not write)",
        "request 1: single, chunked",
        "page table    384 385 386 … 477 then 98 x 0 (any block)",
        "not batched",
    ):
        assert wanted in lines, wanted
    assert any("positions 2048 to 4095, tokens 2048 to 4095" in line for line in lines)
    assert any("fewer_than_two_rows" in line and "4096" in line for line in lines)
    digests = [line.split()[1] for line in lines if line.startswith(("program ", "trace "))]
    assert len(digests) == 4 and all(len(digest) == 64 for digest in digests)


@pytest.mark.covers("P23", "P37")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "5,0,7"], "row 1: the prompt is empty"),
        (["--lengths", "-5"], "row 0: start 0, prompt length -5"),
        (["--lengths", "300", "--cached", "100"], "row 0: start 100 must be block aligned"),
        (["--lengths", "10,20", "--cached", "0"], "start_pos has 1 entries for 2 rows"),
        (["--lengths", "10,20", "--slots", "0,0"], "empty_slots gives slot 0 to more than one row"),
        (["--lengths", "10", "--slots", "32"], "slot 32 is outside the lane's slots 0 to 31"),
        (["--lengths", "257", "--max-seq-len", "256"], "prompt length 257 needs 9 blocks"),
        (["--lengths", "10", "--chunk", "300"], "max_prefill_chunk_size 300"),
        (["--lengths", "10", "--block-size", "48"], "multiple of the block size 48"),
        (["--lengths", "10", "--block-size", "0"], "block_size must be a positive integer"),
        (["--lengths", "10", "--max-seq-len", "0"], "model_max_sequence_length must be a positive integer"),
        (["--lengths", "10", "--max-batch-size", "0"], "max_batch_size must be a positive integer"),
        (["--lengths", "10", "--max-prefill-batch-size", "3"], "max_prefill_batch_size must be one of"),
        (["--lengths", "10", "--alignment", "33"], "prefill_start_alignment 33"),
        (["--lengths", "10", "--max-seq-len", "4096", "--num-blocks", "12"], "physical_num_blocks is 12"),
        (
            ["--lengths", "2561", "--max-seq-len", "4096", "--block-size", "64", "--num-blocks", "40"],
            "needs 41 blocks of 64 tokens but the KV capacity of a sequence is 40 blocks",
        ),
        (["--lengths", "10,x"], "--lengths must be whole numbers separated by commas, got 'x'"),
        (["--lengths", ""], "--lengths must be whole numbers"),
        (["--lengths", "99999999999"], "--lengths must hold numbers of at most 10 digits"),
        (["--lengths", "9999999999"], "model_max_sequence_length must be a positive integer of at most 2147483647"),
        ([], "Missing option '--lengths'"),
    ],
)
def test_a_mistake_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("sys.argv", ["llm-runtime", "plan", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    assert left.value.code == 2 and captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err
