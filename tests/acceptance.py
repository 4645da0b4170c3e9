# SPDX-License-Identifier: Apache-2.0
"""Which acceptance rows and public cases the tests cover: a table, or JSON with `--json`.

`acceptance_ids.txt` beside this file lists every id with its tag; a test claims ids with
`@pytest.mark.covers("PLAN-07", …)`. An id that a decision replaced is listed apart.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
FAMILY_SEPARATOR = "-"


class CoverCollector:
    """A pytest plugin that remembers the `covers` marks of every collected test."""

    def __init__(self) -> None:
        self.tests_of: dict[str, list[str]] = defaultdict(list)
        self.errors: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("covers"):
                for identifier in mark.args:
                    self.tests_of[identifier].append(item.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(str(report.longrepr))


def known_ids() -> dict[str, tuple[str, str]]:
    """Every id with its tag and the decision that replaces it ('' when none does)."""
    result = {}
    for line in (TESTS / "acceptance_ids.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            identifier, tag, *decision = line.split()
            result[identifier] = (tag, decision[0] if decision else "")
    return result


def collect() -> dict[str, list[str]]:
    """Test ids by claimed acceptance id; refuses unknown ids and collection errors."""
    collector = CoverCollector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(TESTS)], [collector])
    if status != pytest.ExitCode.OK:
        raise SystemExit("collection failed:\n" + "\n".join(collector.errors or [output.getvalue()]))
    unknown = sorted(set(collector.tests_of) - set(known_ids()))
    if unknown:
        raise SystemExit(f"tests claim ids that acceptance_ids.txt does not list: {', '.join(unknown)}")
    return dict(collector.tests_of)


def report() -> dict[str, object]:
    """The three groups: covered (with test ids), missing, replaced by a decision."""
    ids, tests_of = known_ids(), collect()
    covered = {identifier: sorted(set(tests_of[identifier])) for identifier in ids if identifier in tests_of}
    replaced = {identifier: decision for identifier, (_, decision) in ids.items() if decision}
    missing = [identifier for identifier in ids if identifier not in covered and identifier not in replaced]
    return {"covered": covered, "missing": missing, "replaced": replaced}


def family(identifier: str) -> str:
    return identifier.split(FAMILY_SEPARATOR)[0] if FAMILY_SEPARATOR in identifier else identifier[0] + "nn"


def print_table(result: dict[str, object]) -> None:
    """One line a family: rows, covered, replaced and the ids that are missing (tag X needs no test)."""
    ids = known_ids()
    covered, replaced = result["covered"], result["replaced"]
    assert isinstance(covered, dict) and isinstance(replaced, dict)
    groups: dict[str, list[str]] = defaultdict(list)
    for identifier in ids:
        groups[family(identifier)].append(identifier)
    print(f"{'family':8}{'rows':>6}{'covered':>9}{'replaced':>10}  missing (without X rows)")
    for name, members in groups.items():
        absent = [i for i in members if i not in covered and i not in replaced and ids[i][0] != "X"]
        print(
            f"{name:8}{len(members):6}{sum(i in covered for i in members):9}"
            f"{sum(i in replaced for i in members):10}  {' '.join(absent)}"
        )
    print(f"{'all':8}{len(ids):6}{len(covered):9}{len(replaced):10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    result = report()
    if arguments.json:
        json.dump(result, sys.stdout)
        print()
    else:
        print_table(result)


if __name__ == "__main__":
    main()
