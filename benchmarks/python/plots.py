# SPDX-License-Identifier: Apache-2.0
"""Charts of one report: bars for each set of paths, lines for growth. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

#: Chart name, and what the names of its paths begin with.
PATH_SETS = {
    "planning": ("plan:", "signatures"),
    "prefill-prepare": ("prefill prepare",),
    "decode-prepare": ("decode prepare",),
    "decode-step": ("decode step", "decode output"),
}
_COLOURS = {"own": "#2266aa", "floor": "#dd8833", "oracle": "#999999", "budget": "#cc2233"}


def write_plots(report: dict[str, Any], path: Path) -> list[Path]:
    """One PNG for each set of paths and one for growth, named after `path`; returns what was written."""
    written = []
    for name, prefixes in PATH_SETS.items():
        rows = {key: row for key, row in report["paths"].items() if key.startswith(prefixes)}
        if rows:
            target = path.with_name(f"{path.stem}-{name}.png")
            _bars(name.replace("-", " "), rows, report).savefig(target, dpi=130)
            written.append(target)
    if "growth" in report:
        target = path.with_name(f"{path.stem}-growth.png")
        _growth(report).savefig(target, dpi=130)
        written.append(target)
    plt.close("all")
    return written


def _bars(title: str, rows: dict[str, dict[str, Any]], report: dict[str, Any]) -> Any:
    kinds = [kind for kind in ("own", "floor", "oracle") if any(row[f"{kind}_us"] for row in rows.values())]
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.3 * len(rows) * (len(kinds) + 0.6)), layout="constrained")
    height = 0.8 / len(kinds)
    for at, row in enumerate(rows.values()):
        for place, kind in enumerate(kinds):
            value = row[f"{kind}_us"]
            if value is None:
                continue
            y = at - 0.4 + height * (place + 0.5)
            axes.barh(y, value, height * 0.9, color=_COLOURS[kind], label=kind if at == 0 else None)
            axes.annotate(f"{value:.3g}", (value, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
        if row["budget_us"] is not None:
            axes.plot([row["budget_us"]] * 2, [at - 0.42, at + 0.42], color=_COLOURS["budget"], linewidth=2)
    axes.plot([], [], color=_COLOURS["budget"], linewidth=2, label="budget of own time")
    axes.set_yticks(range(len(rows)), [name.partition(": ")[2] or name for name in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * 1.6)
    axes.set_xlabel("microseconds a call, median (log scale)")
    axes.set_title(f"{title}, device {report['device']}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0 + 0.35 / figure.get_figheight()), ncols=4, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _growth(report: dict[str, Any]) -> Any:
    titles = {
        "step_us_after_steps": ("a decode step", "steps done"),
        "plan_us_by_rows": ("planning", "rows of 128 tokens"),
        "plan_us_by_table_width": ("planning 8 rows", "page-table width"),
        "lookup_us_by_programs": ("finding a program", "programs registered"),
    }
    figure, grid = plt.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
    for axes, (name, (title, variable)) in zip(grid.flat, titles.items(), strict=True):
        points = sorted((int(size), us) for size, us in report["growth"][name].items())
        sizes, values = zip(*points, strict=True)
        axes.plot(sizes, values, marker="o", color=_COLOURS["own"])
        axes.set_ylim(0, max(values) * 1.35)
        if name != "plan_us_by_rows":
            axes.set_xscale("log")
        for size, value in points:
            axes.annotate(f"{value:.3g}", (size, value), (0, 6), textcoords="offset points", ha="center", fontsize=8)
        axes.set_title(title)
        axes.set_xlabel(variable)
        axes.set_ylabel("microseconds")
        axes.spines[["top", "right"]].set_visible(False)
    return figure
