# SPDX-License-Identifier: Apache-2.0
"""Which device the command line takes, and what it refuses before weights are read."""

from __future__ import annotations

import importlib.util

import pytest

import ttnn_twin
from llm_models.cli_device import DeviceChoice, Execution, check_device, open_device


def test_the_twin_is_opened_and_closed():
    with open_device(DeviceChoice.TWIN, execution=Execution.DEFERRED) as mesh:
        assert isinstance(mesh, ttnn_twin.MeshDevice)
        assert mesh.options.execution == "deferred"
    assert mesh.closed


def test_the_twin_is_closed_after_a_failure():
    with pytest.raises(KeyError), open_device(DeviceChoice.TWIN, execution=Execution.IMMEDIATE) as mesh:
        raise KeyError
    assert mesh.closed


def test_deferred_execution_is_the_twins():
    check_device(DeviceChoice.TWIN, execution=Execution.DEFERRED, traced=True)
    with pytest.raises(ValueError, match="--execution is an option of the twin"):
        check_device(DeviceChoice.TTNN, execution=Execution.DEFERRED, traced=False)


def test_the_mock_cannot_trace(monkeypatch):
    monkeypatch.setenv("TT_METAL_MOCK_CLUSTER_DESC_PATH", "board.yaml")
    with pytest.raises(ValueError, match="use --trace none"):
        check_device(DeviceChoice.TTNN, execution=Execution.IMMEDIATE, traced=True)


def test_absent_ttnn_is_one_clear_line(monkeypatch):
    monkeypatch.delenv("TT_METAL_MOCK_CLUSTER_DESC_PATH", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="ttnn is not installed; llm-runtime doctor"):
        check_device(DeviceChoice.TTNN, execution=Execution.IMMEDIATE, traced=True)
