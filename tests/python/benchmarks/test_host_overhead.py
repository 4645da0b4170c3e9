# SPDX-License-Identifier: Apache-2.0
"""Every benchmark of host overhead runs once, and its report has the promised form."""

from __future__ import annotations

import importlib
import json

import pytest


@pytest.fixture(scope="module")
def host_overhead():
    return importlib.import_module("host_overhead")


def test_the_report_on_the_null_device_is_complete(host_overhead, tmp_path, capsys):
    target = tmp_path / "figures.json"
    assert host_overhead.main(["--quick", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert {"paths", "machine", "loops", "first_call", "growth", "profiling"} <= report.keys()
    assert {"cpu", "cores", "python", "load"} <= report["machine"].keys()
    for name, row in report["paths"].items():
        assert {"own_us", "floor_us", "ratio", "oracle_us", "budget_us"} <= row.keys(), name
        assert row["own_us"] > 0, name
        if name.startswith("plan:"):
            assert row["oracle_us"] > row["own_us"], name
        if name.startswith("decode step"):
            assert row["ratio"] == pytest.approx(row["own_us"] / row["floor_us"]), name
    assert [size for size in report["growth"]["step_us_after_steps"]] == ["10", "100", "1000"]
    printed = capsys.readouterr().out
    assert all(name in printed for name in report["paths"])


def test_on_a_device_that_costs_time_the_floor_is_subtracted(host_overhead):
    report = host_overhead.measure_all("twin", effort=host_overhead.QUICK, only="decode step")
    assert len(report["paths"]) == 4
    for row in report["paths"].values():
        assert row["own_us"] == pytest.approx(max(0.0, row["total_us"] - row["floor_us"]))


def test_real_hardware_is_never_opened(host_overhead, monkeypatch):
    monkeypatch.delenv("TT_METAL_MOCK_CLUSTER_DESC_PATH", raising=False)
    with pytest.raises(RuntimeError, match="on the mock only"):
        host_overhead.measure_all("ttnn", effort=host_overhead.QUICK)


def test_a_budget_that_does_not_hold_fails_the_check(host_overhead, monkeypatch, capsys):
    monkeypatch.setattr(host_overhead, "holds", lambda name, row, device: False)
    arguments = ["--quick", "--only", "plan: 1 row"]
    assert host_overhead.main([*arguments, "--check"]) == 1
    assert "over budget: plan: 1 row of 100" in capsys.readouterr().err
    assert host_overhead.main(arguments) == 0


@pytest.mark.parametrize(
    ("name", "device", "row", "held"),
    [
        ("plan", "null", {"own_us": 2.0, "budget_us": 2.0}, True),
        ("plan", "null", {"own_us": 2.1, "budget_us": 2.0}, False),
        ("plan", "null", {"own_us": 9.0, "budget_us": None}, True),
        ("plan", "null", {"own_us": 1.0, "budget_us": 2.0, "times_oracle": 20.0}, True),
        ("plan", "null", {"own_us": 1.0, "budget_us": 2.0, "times_oracle": 19.9}, False),
        ("decode step: x", "ttnn", {"own_us": 9.0, "budget_us": 1.0, "total_us": 28.0, "floor_us": 10.0}, True),
        ("decode step: x", "ttnn", {"own_us": 1.0, "budget_us": 9.0, "total_us": 28.1, "floor_us": 10.0}, False),
    ],
)
def test_which_budget_counts(host_overhead, name, device, row, held):
    assert host_overhead.holds(name, row, device) is held


def test_the_steady_step_changes_no_table_and_the_spread_one_does(host_overhead):
    paths_decode = importlib.import_module("paths_decode")
    lane_module = importlib.import_module("lane")
    with importlib.import_module("devices").open_mesh("null") as mesh:
        lane = lane_module.BenchLane(mesh)
        lane.capture()
        for spread, changed in ((False, 0), (True, 30)):
            calls = paths_decode._moving_calls(spread=spread)
            params = lane_module.top_k_params()
            lane.traced.decode_forward(**next(calls), sampling_params=params, reset_batch=True)
            found = 0
            for _ in range(30):
                call = next(calls)
                found += lane.decode.prepare(**call, sampling_params=params).page_table_changed
                lane.traced.decode_forward(**call, sampling_params=params)
            assert found == changed
        lane.close()


def test_plots_are_written_for_each_set_of_paths_and_for_growth(host_overhead, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib (the bench extra)")
    report = host_overhead.measure_all("null", effort=host_overhead.QUICK, steps=100)
    plots = importlib.import_module("plots")
    written = plots.write_plots(report, tmp_path / "out.png")
    assert [path.name for path in written] == [f"out-{name}.png" for name in (*plots.PATH_SETS, "growth")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
