# SPDX-License-Identifier: Apache-2.0
"""What the doctor finds in invented environments. Real ttnn is asked in tests/ttnn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from llm_models import doctor
from llm_models.cli_doctor import lines


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without driver, compiler and ttnn."""
    monkeypatch.setattr(doctor, "DEVICE_FOLDER", tmp_path / "dev")
    monkeypatch.setattr(doctor, "HUGE_PAGES", tmp_path / "huge")
    monkeypatch.setattr(doctor, "SYSTEM_COMPILER_ROOT", tmp_path / "opt")
    monkeypatch.setattr(doctor, "version_of", {"numpy": "2.0", "tt-llm-runtime": "1.2.3"}.get)
    return tmp_path


def put_compiler(root, text):
    """A compiler file below `root`."""
    path = root / doctor.COMPILER
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_bare_machine_lacks_ttnn_and_a_device(bare):
    report = doctor.examine({})
    assert (report.package, report.ttnn, report.compiler, report.target) == ("1.2.3", None, None, "none")
    assert report.core.endswith(".so")
    found = " ".join(report.missing)
    assert "pip install ttnn==0.81.1" in found
    assert "neither TT_METAL_SIMULATOR nor TT_METAL_MOCK_CLUSTER_DESC_PATH is set" in found


@pytest.mark.parametrize(
    ("environment", "target"),
    [
        ({"TT_METAL_SIMULATOR": "."}, "simulator"),
        ({"TT_METAL_MOCK_CLUSTER_DESC_PATH": "."}, "mock"),
        # ttnn, too, looks for the mock first
        ({"TT_METAL_SIMULATOR": ".", "TT_METAL_MOCK_CLUSTER_DESC_PATH": "."}, "mock"),
    ],
)
def test_settings_choose_the_target(bare, environment, target):
    report = doctor.examine(environment)
    assert report.target == target
    assert report.settings == environment


def test_a_device_file_means_hardware_and_wants_huge_pages(bare):
    (bare / "dev").mkdir()
    (bare / "dev" / "0").touch()
    report = doctor.examine({})
    assert (report.target, report.device_files) == ("hardware", ("0",))
    assert any("huge pages" in sentence for sentence in report.missing)
    (bare / "huge").mkdir()
    assert not any("huge pages" in sentence for sentence in doctor.examine({}).missing)


def test_a_setting_that_names_nothing_is_said(bare):
    report = doctor.examine({"TT_METAL_SIMULATOR": "/nowhere/simulator"})
    assert any("/nowhere/simulator, which does not exist" in sentence for sentence in report.missing)


def test_the_compiler_of_the_runtime_root_comes_first(bare):
    put_compiler(bare / "opt", "#!/bin/sh\necho system compiler 1\n")
    root = put_compiler(bare / "root" / "runtime", "#!/bin/sh\necho root compiler 2\n")
    compiler = doctor.find_compiler({"TT_METAL_RUNTIME_ROOT": str(bare / "root")})
    assert (compiler.path, compiler.version, compiler.stand_in) == (str(root), "root compiler 2", True)
    assert doctor.find_compiler({}).version == "system compiler 1"


def test_a_stand_in_compiler_is_no_compiler_for_hardware(bare):
    put_compiler(bare / "opt", "#!/bin/sh\n")
    report = doctor.examine({"TT_METAL_SIMULATOR": "."})
    assert any("is a stand-in" in sentence for sentence in report.missing)
    mock = doctor.examine({"TT_METAL_MOCK_CLUSTER_DESC_PATH": "."})
    assert not any("is a stand-in" in sentence for sentence in mock.missing)


def test_what_ttnn_says_is_shown(bare):
    report = replace(doctor.examine({}), ttnn="0.81.1", target="hardware", problem="no chips")
    assert any("cannot open its devices: no chips" in sentence for sentence in doctor.missing(report))
    other = doctor.missing(replace(report, ttnn="0.90.0"))
    assert any("0.90.0 is installed; only 0.81.1 is tested" in sentence for sentence in other)


def test_text_and_json_say_the_same(bare):
    report = doctor.examine({"TT_METAL_SIMULATOR": "."})
    facts = json.loads(report.as_json())
    assert facts["target"] == "simulator"
    assert facts["missing"] == list(report.missing)
    text = "\n".join(lines(report))
    assert "TT_METAL_SIMULATOR" in text
    assert all(sentence in text for sentence in report.missing)


def test_nothing_missing_means_it_can_serve(bare):
    report = replace(doctor.examine({}), target="hardware", missing=())
    assert list(lines(report))[-1] == "ttnn can serve (hardware): llm-runtime generate --device ttnn"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("noise\nRuntimeError: TT_FATAL @ x.cpp:1: a > b\ninfo:\nNo chips\nbacktrace:\n --- y", "No chips"),
        ("Traceback\nImportError: no such library", "ImportError: no such library"),
        ("", ""),
    ],
)
def test_the_reason_is_found_in_the_librarys_message(text, reason):
    assert doctor._reason(text) == reason
