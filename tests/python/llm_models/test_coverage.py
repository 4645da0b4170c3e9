# SPDX-License-Identifier: Apache-2.0
"""The coverage of a model before and after its warmup, and `llm-runtime coverage`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import ttnn_twin
from llm_models import cli_coverage
from llm_models.checkpoints import LlamaCheckpoint
from llm_models.cli_coverage import CoverageOptions, run_coverage
from llm_models.cli_generate import TraceChoice
from llm_models.coverage import Coverage, coverage_of, plan_coverage
from llm_models.llama.executor import Llama, LlamaOptions
from support.llama import smollm2, tiny_checkpoint, tiny_config


def lane(**changes: Any) -> LlamaOptions:
    options: dict[str, Any] = {"max_batch_size": 2, "max_seq_len": 256, "max_prefill_chunk_size": 128}
    return LlamaOptions(**{**options, **changes})


def warmed(checkpoint: LlamaCheckpoint, options: LlamaOptions, *, region: int = 1 << 30) -> Coverage:
    """The coverage of the model itself, warmed up on a twin that runs."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=region)
    try:
        llama = Llama.open(checkpoint, mesh, options)
        try:
            llama.warm_up()
            coverage = coverage_of(llama)
            assert coverage.total.trace_bytes == mesh.trace_region_used
            traced = llama.executor.trace_compiler
            if traced is not None:
                assert (coverage.total.traces, coverage.total.aliases) == (
                    traced.trace_count,
                    traced.trace_association_count,
                )
            assert coverage.total.programs == len(llama.executor.program_compiler.compiled_programs)
            return coverage
        finally:
            llama.cleanup()
    finally:
        ttnn_twin.close_mesh_device(mesh)


@pytest.fixture
def unreadable() -> LlamaCheckpoint:
    """A checkpoint whose weights must not be read."""

    def read(name: str) -> Any:
        raise AssertionError(f"weight {name} was read")

    return replace(tiny_checkpoint(), read=read)


@pytest.mark.parametrize("mode", ["none", "decode_only", "all"])
@pytest.mark.parametrize("sampling", [False, True])
def test_the_plan_is_what_the_model_itself_comes_to(unreadable: LlamaCheckpoint, mode: Any, sampling: bool) -> None:
    options = lane(trace_mode=mode, device_sampling=sampling)
    planned = plan_coverage(unreadable, options)
    assert planned == warmed(tiny_checkpoint(), options)
    assert planned.total.programs > 0
    assert (planned.total.traces > 0) == (mode != "none")


@pytest.mark.parametrize(
    "changes", [{"n_heads": 6, "n_kv_heads": 3, "dim": 96}, {"n_layers": 4, "tied_embeddings": False}, {"ffn_dim": 640}]
)
def test_widths_change_nothing_and_depth_does(changes: dict[str, Any]) -> None:
    checkpoint = tiny_checkpoint(tiny_config(**changes))
    planned = plan_coverage(checkpoint, lane(device_sampling=False))
    assert planned == warmed(checkpoint, lane(device_sampling=False))
    usual = plan_coverage(tiny_checkpoint(), lane(device_sampling=False))
    assert (planned.total.trace_bytes == usual.total.trace_bytes) == ("n_layers" not in changes)


@pytest.mark.slow
def test_the_plan_of_the_real_model() -> None:
    options = LlamaOptions(max_batch_size=2, max_seq_len=128, max_prefill_chunk_size=128, device_sampling=False)
    assert plan_coverage(smollm2(), options) == warmed(smollm2(), options)


def test_families_and_sums(unreadable: LlamaCheckpoint) -> None:
    coverage = plan_coverage(unreadable, lane())
    families = {family.family: family for family in coverage.families}
    assert list(families) == ["prefill regular-single", "prefill regular-batched", "prefill chunked", "decode"]
    assert families["prefill regular-batched"].programs == 2
    assert families["prefill regular-single"].aliases == 9
    assert families["prefill regular-single"].traces == 3, "tile ends share a trace"
    total = coverage.total
    assert total.trace_bytes == sum(family.trace_bytes for family in families.values())
    assert total.aliases == total.programs == sum(entry.programs for entry in coverage.entries)
    assert {(entry.rows, entry.length) for entry in coverage.entries if entry.family == "decode"} == {(2, 1)}


@pytest.mark.covers("T21")
def test_the_named_region_size_is_exactly_enough(unreadable: LlamaCheckpoint) -> None:
    """Planned, in a warmup that fails, and by opening a mesh with it."""
    options = lane(device_sampling=False)
    planned = plan_coverage(unreadable, options)
    needed = planned.total.trace_bytes
    planned.require_region(needed)
    with pytest.raises(ValueError, match=f"trace_region_size={needed} or more"):
        planned.require_region(needed - 1)
    for size in (needed - 1, 2000):
        with pytest.raises(RuntimeError, match=f"trace_region_size={needed} or more"):
            warmed(tiny_checkpoint(), options, region=size)
    assert warmed(tiny_checkpoint(), options, region=needed) == planned


@pytest.fixture
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model name stands for the tiny checkpoint."""
    monkeypatch.setattr(cli_coverage, "open_checkpoint", lambda model: tiny_checkpoint())


def ask(**changes: Any) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_batch_size": 2, "max_seq_len": 256, "chunk": 128}
    run_coverage(CoverageOptions(**{**options, **changes}))


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize("run", [False, True])
def test_json(capsys: pytest.CaptureFixture[str], run: bool) -> None:
    ask(json=True, run=run)
    report = json.loads(capsys.readouterr().out)
    planned = plan_coverage(tiny_checkpoint(), lane())
    assert {name: report[name] for name in planned.to_json()} == planned.to_json()
    assert report["fits"] is True
    assert report["trace_bytes"] == planned.total.trace_bytes
    assert report["trace_mode"] == "all"
    assert ("manifest" in report) == run
    if run:
        manifest = report["manifest"]
        assert report["trace_region_used"] == report["trace_bytes"]
        assert len(manifest["traces"]) == report["traces"]
        assert len(manifest["aliases"]) == report["aliases"]
        assert manifest["eager_programs"] == []
        assert manifest["aliases"][0]["program"]["operation_variant"] == "regular-single"


@pytest.mark.usefixtures("tiny_model")
def test_without_traces(capsys: pytest.CaptureFixture[str]) -> None:
    ask(json=True, run=True, trace=TraceChoice.NONE, trace_region_size=0)
    report = json.loads(capsys.readouterr().out)
    assert (report["traces"], report["trace_bytes"], report["manifest"]) == (0, 0, None)
    assert report["programs"] == report["eager_programs"] > 0


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize("as_json", [False, True])
def test_too_small_a_region(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """The report comes all the same, and nothing is warmed up in vain."""
    monkeypatch.setattr(cli_coverage, "warm_up", lambda *_arguments: pytest.fail("the real model was loaded"))
    needed = plan_coverage(tiny_checkpoint(), lane()).total.trace_bytes
    with pytest.raises(ValueError, match=f"1000 bytes is too small.*trace_region_size={needed} or more"):
        ask(json=as_json, run=True, trace_region_size=1000)
    shown = capsys.readouterr().out
    if as_json:
        assert json.loads(shown)["fits"] is False
    else:
        assert "of 1 000 bytes" in shown


@pytest.mark.usefixtures("tiny_model")
def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    ask(run=True)
    shown = capsys.readouterr().out
    total = plan_coverage(tiny_checkpoint(), lane()).total
    used = f"{total.trace_bytes:,}".replace(",", " ")
    assert f"trace region: {used} of 50 000 000 bytes" in shown
    assert f"{used} bytes of traces captured" in shown
    (row,) = [line for line in shown.splitlines() if "total" in line]
    assert [cell.strip() for cell in row.split("│")[2:5]] == [
        str(total.programs),
        str(total.traces),
        str(total.aliases),
    ]
    for family in ("prefill regular-single", "prefill regular-batched", "prefill chunked", "decode"):
        assert sum(family in line for line in shown.splitlines()) >= 2


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize(
    ("changes", "essence"),
    [
        ({"max_batch_size": 33}, "--max-batch-size must be at most 32, got 33"),
        ({"chunk": 0}, "--chunk must be at least 1, got 0"),
        ({"trace_region_size": -1}, "--trace-region-size must not be negative, got -1"),
        ({"max_seq_len": 5000}, "--max-seq-len 5000 is more than the model's context of 1024"),
    ],
)
def test_bad_options(changes: dict[str, Any], essence: str) -> None:
    with pytest.raises(ValueError, match=essence):
        ask(**changes)
