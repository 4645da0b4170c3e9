# SPDX-License-Identifier: Apache-2.0
"""`llm-runtime profile` on its synthetic model: a table of phases and a Chrome trace."""

from __future__ import annotations

import json
import sys

import pytest

from llm_models import cli


def run(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["llm-runtime", "profile", *arguments])
    code = 0
    try:
        cli.main()
    except SystemExit as leave:
        code = int(leave.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("trace", ["none", "all"])
def test_the_table_counts_every_step_and_the_trace_has_every_span(capsys, monkeypatch, tmp_path, trace):
    path = tmp_path / "trace.json"
    code, out, _ = run(capsys, monkeypatch, "--rows", "2", "--steps", "5", "--trace", trace, "--output", str(path))
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert {"call", "prepare", "stage", "submit", "read", "normalise", "assemble"} <= rows.keys()
    # One prefill of two rows, then a decode step for each token after the first.
    events = json.loads(path.read_text())["traceEvents"]
    steps = [event for event in events if event["name"].endswith("decode_forward")]
    assert len(steps) == 4
    assert int(rows["prepare"][0]) == len([event for event in events if event["cat"] == "prepare"]) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--steps", "0"), "--steps must be at least 1"),
        (("--rows", "33"), "--rows must be in 1 to 32"),
        (("--temperature", "-1"), "--temperature must be"),
        (("hello",), "--model"),
        (("--steps", "9000"), "context of 8192"),
        (("--model", "nothing"), "unknown model"),
    ],
)
def test_a_users_mistake_is_one_line(capsys, monkeypatch, arguments, said):
    code, _, err = run(capsys, monkeypatch, *arguments)
    assert code == 2
    assert said in err and err.count("\n") == 1
