# SPDX-License-Identifier: Apache-2.0
"""What the instruction check accepts and refuses, on counts made by hand and on the committed budgets."""

from __future__ import annotations

import importlib
import json

import pytest


@pytest.fixture(scope="module")
def check():
    return importlib.import_module("check_budgets")


def test_five_percent_are_tolerated_and_no_more(check):
    assert check.over_budget({"a": 1050}, {"a": 1000}) == []
    assert check.over_budget({"a": 1051}, {"a": 1000}) == ["a: 1,051 instructions, 5% over its budget 1,000"]


def test_a_case_without_a_budget_and_a_budget_without_a_case_are_named(check):
    problems = check.over_budget({"new": 1}, {"old": 1})
    assert problems == ["new: no budget; write the budgets anew", "old: the case is gone; write the budgets anew"]


def test_a_line_fits_itself_and_no_square(check):
    assert check.line_fit([(1, 10), (8, 80), (32, 320)]) == pytest.approx(1.0)
    assert check.line_fit([(1, 1), (8, 64), (32, 1024), (64, 4096)]) < check.LINEAR_FIT
    assert check.line_fit([(1, 5), (8, 5)]) == 1.0


def test_growth_that_is_not_allowed_is_named(check):
    counts = json.loads(check.BUDGETS.read_text())["instructions"]
    assert check.bad_growth(counts) == []
    squared = {**counts, "plan_singles/rows:1": 100, "plan_singles/rows:8": 100, "plan_singles/rows:32": 90_000}
    assert [problem.partition(":")[0] for problem in check.bad_growth(squared)] == ["plan_singles"]
    searching = {**counts, "signature_lookup/programs:10000": 90_000}
    assert "signature_lookup: not constant in programs" in check.bad_growth(searching)[0]
    ageing = {**counts, "decode_batch_after_steps/steps:100000": 90_000}
    assert "decode_batch_after_steps: not constant in steps" in check.bad_growth(ageing)[0]


def test_the_budgets_cover_the_promised_sizes(check):
    names = json.loads(check.BUDGETS.read_text())["instructions"]
    for family in ("plan_wave", "decode_table_copy", "decode_batch", "change_detection"):
        for rows in (1, 8, 32):
            for width in (64, 256, 4096):
                assert f"{family}/rows:{rows}/width:{width}" in names
    for family in ("sampling_rows", "seed_draw", "lane_routing", "stage_inputs"):
        assert {f"{family}/rows:{rows}" for rows in (1, 8, 32)} <= names.keys()
    assert {"signature_hash", "refresh_decision"} <= names.keys()
