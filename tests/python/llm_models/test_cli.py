# SPDX-License-Identifier: Apache-2.0
"""The command line refuses a user's mistake with one line on stderr, exit code 2 and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_models.cli import main


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs `llm-runtime generate ARGUMENTS…`, which must be refused, and returns the line on stderr."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["llm-runtime", "generate", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompt was given"),
        (["  "], "prompt 0 is empty"),
        (["good", ""], "prompt 1 is empty"),
        (["x", "--top-k", "0"], "--top-k must be at least 1, got 0"),
        (["x", "--max-new-tokens", "-3"], "--max-new-tokens must be at least 1, got -3"),
        (["x", "--max-batch-size", "0"], "--max-batch-size must be at least 1, got 0"),
        (["x", "--max-batch-size", "33"], "--max-batch-size must be at most 32, got 33"),
        (["x", "--block-size", "-32"], "--block-size must be at least 1, got -32"),
        (["x", "--max-seq-len", "-1"], "--max-seq-len must be at least 1, got -1"),
        (["x", "--chunk", "-128"], "--chunk must be at least 1, got -128"),
        (["x", "--temperature", "-1"], "temperature must be a finite number >= 0, got -1.0"),
        (["x", "--top-p", "0"], "top_p must lie in (0, 1], got 0.0"),
        (["x", "--seed", "-5"], "seed must not be negative, got -5"),
        (["x", "--temperature", "1", "--top-k", "33"], "top_k 33 is above the device sampler's 32"),
        (["x", "--max-new-tokens", "many"], "integer"),
        (["x", "--trace", "some"], "decode_only"),
        (["x", "--no-such-option"], "No such option: --no-such-option"),
        (["x", "--model", "no-such-model"], "unknown model 'no-such-model'"),
        (["x", "--max-seq-len", "40"], "prompt 0 has 31 tokens and may add 128, more than the context of 40"),
        (["x", "--max-seq-len", "9000"], "--max-seq-len 9000 is more than the model's context of 8192"),
        (["x", "--max-new-tokens", "9000"], "more than the context of 8192"),
        (["x", "--chunk", "300"], "max_prefill_chunk_size 300"),
        (["x", "--block-size", "48"], "must be a multiple of the block size 48"),
        (["--prompt-file", "no-such-file"], "no-such-file"),
    ],
)
def test_names_the_option_the_value_and_the_limit(refuse, arguments: list[str], message: str) -> None:
    assert message in refuse(*arguments)


def test_refuses_a_file_that_is_no_gguf(refuse, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a model")
    assert str(path) in refuse("x", "--model", str(path))


def test_refuses_a_folder_without_a_model(refuse, tmp_path: Path) -> None:
    assert str(tmp_path) in refuse("x", "--model", str(tmp_path))
