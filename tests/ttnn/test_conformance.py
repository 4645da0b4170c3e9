# SPDX-License-Identifier: Apache-2.0
"""The twin and real ttnn, asked the same: shapes, types, layouts, placement, and what they refuse."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ttnn_twin
from support.conformance import table
from support.conformance.calls import run
from support.conformance.cases import TRACE_CALLS, calls
from support.conformance.usage import attributes, namespace_uses

PAGE = Path(__file__).resolve().parents[2] / "docs" / "twin.md"
CALLS = [call for call in calls() if not call.fatal]
FATAL = list({call.title: call for call in calls() if call.fatal}.values())

# Not functions: looked up and passed on.
CONSTANTS = {
    "DRAM_MEMORY_CONFIG",
    "L1_HEIGHT_SHARDED_MEMORY_CONFIG",
    "ROW_MAJOR_LAYOUT",
    "TILE_LAYOUT",
    "ShardOrientation.ROW_MAJOR",
    "ShardStrategy.HEIGHT",
    "StorageType.HOST",
    "UnaryOpType.SILU",
    "__name__",
    "bfloat16",
    "bfloat4_b",
    "bfloat8_b",
    "float32",
    "int32",
    "uint32",
}
# Asked for by name, and done without where a device library lacks them, as the twin does.
OPTIONAL = {"BufferType.DRAM", "MeshCoordinate", "get_memory_view", "tools"}
# Names that tensors and meshes share with other objects, none of which the packages ask of a tensor or mesh.
OTHER_OBJECTS = {"arch", "deallocate", "device", "devices", "pad", "reshape", "tile", "to"}
TESTED_ELSEWHERE = {"host_buffer", "num_program_cache_entries"}


@pytest.fixture(scope="module")
def compared(ttnn, mesh, tmp_path_factory):
    """Every call with what ttnn and what the twin made of it.

    The twin's work is enqueued and never runs: the mock computes nothing either.
    """
    folder = tmp_path_factory.mktemp("files")
    real_given = {"mesh": mesh, "file": str(folder / "real.tensorbin")}
    outcomes = []
    for call in CALLS:
        real = run(call, ttnn, real_given)
        twin_mesh = ttnn_twin.open_mesh_device(execution="deferred")
        twin = run(call, ttnn_twin, {"mesh": twin_mesh, "file": str(folder / "twin.tensorbin")})
        ttnn_twin.close_mesh_device(twin_mesh)
        outcomes.append((call, real, twin))
    return outcomes


def test_ttnn_and_the_twin_agree(compared):
    wrong = [
        f"{call.title}: ttnn {real}, twin {twin}"
        for call, real, twin in compared
        if real != twin and not call.differs
    ]
    assert not wrong, "\n".join(wrong)


def test_known_differences_are_real_and_the_twin_is_the_stricter_one(compared):
    known = [(call, real, twin) for call, real, twin in compared if call.differs]
    assert known
    assert [call.title for call, real, twin in known if real == twin] == []
    assert [call.title for call, real, _ in known if real.refused] == []


def test_every_function_is_accepted_somewhere_with_every_keyword_that_the_packages_use(compared):
    accepted: dict[str, set[str]] = {}
    for call, real, _ in compared:
        if not real.refused and not call.differs:
            accepted.setdefault(call.function, set()).update(call.kwargs)
    unknown = {
        name: sorted(keywords - accepted.get(name, set()))
        for name, keywords in namespace_uses().items()
        if name not in CONSTANTS | OPTIONAL | set(TRACE_CALLS)
        and (name not in accepted or keywords - accepted[name])
    }
    assert not unknown, f"add these functions and keywords to tests/support/conformance: {unknown}"


def test_constants_exist_in_both(ttnn):
    for namespace in (ttnn, ttnn_twin):
        for name in sorted(CONSTANTS) + list(TRACE_CALLS):
            value = namespace
            for part in name.split("."):
                value = getattr(value, part)


def test_every_member_of_tensors_and_meshes_that_the_packages_use_is_compared(ttnn):
    compared = {call.function.partition(".")[2] for call in CALLS} | OTHER_OBJECTS | TESTED_ELSEWHERE
    members = {name for kind in (ttnn.Tensor, ttnn.MeshDevice) for name in dir(kind) if not name.startswith("_")}
    assert sorted((attributes() & members) - compared) == []


def test_compiled_programs_are_counted_alike(ttnn, mesh):
    twin_mesh = ttnn_twin.open_mesh_device()
    counts = []
    for namespace, where in ((ttnn, mesh), (ttnn_twin, twin_mesh)):
        before = where.num_program_cache_entries()
        for dtype in (namespace.bfloat16, namespace.bfloat16, namespace.float32):
            options = {"dtype": dtype, "layout": namespace.TILE_LAYOUT, "device": where}
            tensor = namespace.zeros((1, 1, 32, 2080), **options)
            namespace.subtract(tensor, tensor)
        counts.append(where.num_program_cache_entries() - before)
    ttnn_twin.close_mesh_device(twin_mesh)
    assert counts == [2, 2]


@pytest.mark.parametrize("call", FATAL, ids=lambda call: call.title)
def test_what_ends_a_process_on_ttnn_is_refused_by_the_twin(ttnn, call, tmp_path):
    twin_mesh = ttnn_twin.open_mesh_device()
    assert run(call, ttnn_twin, {"mesh": twin_mesh}).refused
    ttnn_twin.close_mesh_device(twin_mesh)
    tests = Path(__file__).resolve().parents[1]
    ended = subprocess.run(
        [sys.executable, "-m", "support.conformance.fatal", call.title],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode < 0, ended.stdout + ended.stderr[-500:]
    assert "survived" not in ended.stdout


def test_the_page_holds_the_table(ttnn, compared, pytestconfig):
    made = table.table(compared, FATAL, version=importlib.metadata.version("ttnn"))
    if pytestconfig.getoption("write_conformance"):
        table.write(PAGE, made)
    assert table.documented(PAGE) == made, "run: scripts/test-ttnn --write-conformance"
