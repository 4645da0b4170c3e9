# SPDX-License-Identifier: Apache-2.0
"""What `llm-runtime generate` shows: text and tables for people, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from llm_models.generation import TokenCallback
from llm_models.generation_request import FinishReason
from llm_models.tokenizer import Tokenizer

ProgressCallback = Callable[[int, int], None]

TABLE_ROWS = (
    ("prompt tokens", "prompt_tokens", ""),
    ("time to first token", "ttft_ms", " ms"),
    ("decode speed", "decode_tokens_per_s", " tokens/s"),
    ("programs compiled", "programs", ""),
    ("traces captured", "traces", ""),
    ("prefill replays", "prefill_replays", ""),
    ("decode replays", "decode_replays", ""),
    ("runtime per decode step", "runtime_us_per_decode_step", " us"),
    ("load / warmup", "load_warmup", ""),
    ("KV blocks", "kv_blocks", ""),
    ("peak memory", "peak_rss_mib", " MiB"),
)


class Output(Protocol):
    """How one run of `generate` reports itself."""

    def note(self, text: str) -> None:
        """One line about what comes."""

    def progress(self, label: str) -> AbstractContextManager[ProgressCallback | None]:
        """A bar for the length of the block; the callback takes (done, total)."""

    def answers(self, prompts: Sequence[str], tokenizer: Tokenizer) -> AbstractContextManager[TokenCallback | None]:
        """Shows tokens as they come."""

    def finish(self, results: Sequence[dict[str, Any]], stats: dict[str, Any]) -> None:
        """Called once, after everything was released."""


def make_output(*, as_json: bool) -> Output:
    """JSON on stdout and nothing else, or text for people."""
    return JsonOutput() if as_json else TextOutput(Console())


class JsonOutput:
    """One JSON object at the end."""

    def note(self, text: str) -> None:
        """Nothing."""
        del text

    def progress(self, label: str) -> AbstractContextManager[ProgressCallback | None]:
        """No bar."""
        del label
        return nullcontext()

    def answers(self, prompts: Sequence[str], tokenizer: Tokenizer) -> AbstractContextManager[TokenCallback | None]:
        """No stream."""
        del prompts, tokenizer
        return nullcontext()

    def finish(self, results: Sequence[dict[str, Any]], stats: dict[str, Any]) -> None:
        """Print the object."""
        print(json.dumps({"results": list(results), "stats": stats}))


class TextOutput:
    """Bars while loading, text as it comes, a table at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        """A line of its own."""
        self._write(text + "\n")

    @contextmanager
    def progress(self, label: str) -> Iterator[ProgressCallback]:
        """A bar that vanishes when the block ends; one line remains."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(label, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)

    @contextmanager
    def answers(self, prompts: Sequence[str], tokenizer: Tokenizer) -> Iterator[TokenCallback]:
        """One prompt streams token by token; several come as blocks, each when it is finished."""
        decoders = [tokenizer.stream_decoder() for _ in prompts]
        texts = ["" for _ in prompts]

        def on_token(index: int, token: int, finish: FinishReason | None) -> None:
            piece = decoders[index].push(token)
            if finish is not None:
                piece += decoders[index].finish()
            if len(prompts) == 1:
                self._write(piece)
                return
            texts[index] += piece
            if finish is not None:
                self._console.rule(prompts[index], align="left", style="dim")
                self._write(texts[index] + "\n")

        yield on_token
        self._write("\n")

    def finish(self, results: Sequence[dict[str, Any]], stats: dict[str, Any]) -> None:
        """Print the table of figures."""
        shown = {
            **stats,
            "prompt_tokens": sum(len(result["prompt_ids"]) for result in results),
            "load_warmup": f"{stats['load_s']} s / {stats['warmup_s']} s",
            "kv_blocks": f"{stats['kv_blocks_used']} of {stats['kv_blocks_total']}",
        }
        table = Table(title=f"trace mode {stats['trace_mode']}, device {stats['device']}", show_header=False)
        for label, name, unit in TABLE_ROWS:
            table.add_row(label, f"{shown[name]}{unit}")
        self._console.print(table)

    def _write(self, text: str) -> None:
        # Model text is data: no markup, no wrapping.
        self._console.out(text, end="", highlight=False)
