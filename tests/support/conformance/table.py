# SPDX-License-Identifier: Apache-2.0
"""The conformance table of docs/twin.md, made from outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.conformance.calls import Call, Outcome

BEGIN, END = "<!-- conformance:begin -->", "<!-- conformance:end -->"

Compared = Sequence[tuple[Call, Outcome, Outcome]]
"""Each call with its outcome on ttnn and on the twin."""


def table(compared: Compared, fatal: Sequence[Call], *, version: str) -> str:
    """Markdown: one row per function, then every known difference with its reason."""
    functions = list(dict.fromkeys(call.function for call, _, _ in compared))
    lines = [
        f"Compared with ttnn {version} on its mock device: {len(compared)} calls of {len(functions)} functions and",
        "members, with the shapes of SmolLM2-135M and Llama-3.2-1B. *Accepted* calls agree in logical and padded",
        "shape, dtype, layout, memory config and shards of every result; *refused* ones raise an error in both. Values",
        "are not compared: the mock computes nothing. Trace calls crash the mock and are left out.",
        "",
        "| function | keywords | accepted | refused | differences |",
        "| --- | --- | --- | --- | --- |",
    ]
    for function in functions:
        mine = [(call, real) for call, real, _ in compared if call.function == function]
        agreed = [(call, real) for call, real in mine if not call.differs]
        refused = sum(real.refused for _, real in agreed)
        differences = {call.label for call, _ in mine if call.differs}
        differences |= {call.label for call in fatal if call.function == function}
        keywords = sorted({name for call, real in agreed if not real.refused for name in call.kwargs})
        words = ", ".join(f"`{name}`" for name in keywords)
        lines.append(
            f"| `{function}` | {words} | {len(agreed) - refused} | {refused} | {len(differences) or ''} |"
        )
    lines += [
        "",
        "Known differences: in each of them the twin is the stricter one. Beside them, the twin counts a program for",
        "each shape, where many programs of ttnn take the shape as an argument.",
        "",
    ]
    lines += ["| call | ttnn | twin | reason |", "| --- | --- | --- | --- |"]
    seen = set()
    for call, real, twin in compared:
        if call.differs and call.title not in seen:
            seen.add(call.title)
            answer = "refused" if twin.refused else twin.results[0]
            lines.append(f"| `{call.function}`: {call.label} | {real.results[0]} | {answer} | {call.differs} |")
    for call in fatal:
        if call.title not in seen:
            seen.add(call.title)
            lines.append(f"| `{call.function}`: {call.label} | the process ends | refused | ttnn does not check |")
    return "\n".join(lines) + "\n"


def documented(page: Path) -> str:
    """The table that the page holds now."""
    text = page.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip("\n") + "\n"


def write(page: Path, made: str) -> None:
    """Replace the table of the page."""
    text = page.read_text(encoding="utf-8")
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    page.write_text(f"{head}{BEGIN}\n{made}{tail}", encoding="utf-8")
