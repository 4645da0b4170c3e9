# SPDX-License-Identifier: Apache-2.0
"""Profiles record every phase of real calls, nest rightly, write a Chrome trace, and leave nothing behind."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ttnn_twin
from llm_runtime import profiling
from llm_runtime.prefill.sampling_params import SamplingParams
from llm_runtime.profiling import PHASES, Profile, profile
from support.prefill_model import EchoLane, EchoModel
from support.tiny_decode_model import DecodeLane, TinyDecodeModel

GREEDY = SamplingParams(temperature=0.0, top_k=1, top_p=1.0)


@pytest.fixture
def meshes():
    meshes = [ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=1 << 24) for _ in range(2)]
    yield meshes
    for mesh in meshes:
        ttnn_twin.close_mesh_device(mesh)


def decode_call(position: int) -> dict:
    return {
        "tokens": np.array([3, 4]),
        "start_pos": np.array([position, position]),
        "page_table": np.arange(16, dtype=np.int32).reshape(2, 8),
        "sampling_params": GREEDY,
    }


def points() -> dict[tuple[str, str], object]:
    """What is installed now at every place that a profile replaces."""
    found = {}
    for places in profiling._POINTS.values():
        for place, names in places:
            owner = profiling._owner(place)
            found |= {(place, name): vars(owner)[name] for name in names.split()}
    return found


def test_every_phase_of_real_calls_is_recorded(meshes):
    prefill = EchoLane(EchoModel(meshes[0], lane_capacity=2, num_blocks=16, max_positions=256))
    decode = DecodeLane(TinyDecodeModel(meshes[1]))
    decode.capture({**decode_call(0), "reset_batch": True})
    with profile() as spans:
        prefill.eager({**prefill.prompt([5, 9]), "sampling_params": GREEDY})
        decode.traced.decode_forward(**decode_call(4), reset_batch=True)
        raw = decode.traced.decode_forward(**decode_call(5), read_from_device=False)
        host, _ = decode.decode.read_decode_output(raw, async_read=True)
        decode.decode.process_decode_output_host(host, is_tokens=True)
    assert [row.phase for row in spans.summary()] == list(PHASES)
    names = [span.name for span in spans.spans]
    assert names.count("TracedDecode.decode_forward") == 2
    assert names.count("TraceCompiler.replay_program") == 2
    assert names.count("OutputReader.submit") == 1
    decode.close()


def test_own_time_leaves_out_the_spans_inside():
    spans = Profile()
    inner = spans.timed("stage", "inner", lambda: sum(range(20_000)))
    outer = spans.timed("submit", "outer", lambda: [inner(), inner()])
    outer()
    first, second, whole = spans.spans
    assert whole.own == whole.duration - first.duration - second.duration
    assert first.own == first.duration > 0
    stage, submit = spans.summary()
    assert (stage.phase, stage.count, submit.count) == ("stage", 2, 1)
    assert submit.own_us == pytest.approx(submit.total_us - stage.total_us)
    assert "stage" in spans.table() and "own share" in spans.table()


def test_threads_nest_separately():
    spans = Profile()
    entered, leave = threading.Event(), threading.Event()
    inside = spans.timed("read", "waits", lambda: (entered.set(), leave.wait(10)))
    thread = threading.Thread(target=inside)
    thread.start()
    assert entered.wait(10)
    spans.timed("read", "meanwhile", lambda: None)()
    leave.set()
    thread.join()
    meanwhile, waits = spans.spans
    assert waits.own == waits.duration >= meanwhile.duration
    assert waits.thread != meanwhile.thread


def test_a_call_that_raises_is_recorded_and_its_error_goes_on():
    spans = Profile()

    def refuse():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        spans.timed("prepare", "refuse", refuse)()
    assert [span.name for span in spans.spans] == ["refuse"]


def test_off_there_is_nothing_and_a_profile_leaves_nothing_behind():
    before = points()
    assert all(not hasattr(method, "__wrapped__") for method in before.values())
    with pytest.raises(KeyError), profile() as spans:
        assert points().keys() == before.keys()
        assert all(points()[place] is not method for place, method in before.items())
        with pytest.raises(RuntimeError, match="do not nest"), profile():
            pass
        raise KeyError
    assert all(points()[place] is method for place, method in before.items())
    assert spans.spans == []


def test_the_file_is_a_chrome_trace_in_microseconds(tmp_path):
    spans = Profile()
    spans.timed("read", "first", lambda: None)()
    spans.timed("submit", "second", lambda: None)()
    spans.write(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    assert [(event["name"], event["cat"], event["ph"]) for event in events] == [
        ("first", "read", "X"),
        ("second", "submit", "X"),
    ]
    assert events[0]["ts"] + events[0]["dur"] <= events[1]["ts"]
    assert events[0]["dur"] == spans.spans[0].duration / 1e3
    assert {event["pid"] for event in events} == {os.getpid()}


@pytest.mark.parametrize("named", [True, False])
def test_the_variable_profiles_a_whole_process(tmp_path, named):
    path = tmp_path / "process.json"
    program = (
        "from llm_runtime.output_reader import OutputReader\n"
        "assert OutputReader(None).read(None) is None\n"
        f"assert hasattr(OutputReader.read, '__wrapped__') is {named}\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != profiling.ENVIRONMENT_VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if named:
        environment[profiling.ENVIRONMENT_VARIABLE] = str(path)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert path.exists() is named
    if named:
        assert [event["name"] for event in json.loads(path.read_text())["traceEvents"]] == ["OutputReader.read"]


def test_importing_the_runtime_does_not_import_the_profiler():
    code = "import sys, llm_runtime.config; sys.exit('llm_runtime.profiling' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop(profiling.ENVIRONMENT_VARIABLE, None)
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    assert Path(importlib.import_module("llm_runtime.profiling").__file__).name == "profiling.py"
