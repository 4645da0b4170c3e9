# SPDX-License-Identifier: Apache-2.0
"""Random programs: both executions, eager and replayed, give what plain Python gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ttnn_twin as ttnn
from ttnn_twin.dispatch import dispatch

SLOTS = 3
slot = st.integers(0, SLOTS - 1)
commands = st.lists(
    st.one_of(
        st.tuples(st.just("write"), slot, st.integers(-9, 9)),
        st.tuples(st.just("step"), slot, slot),
        st.tuples(st.just("replay"), slot, slot),
        st.tuples(st.just("read"), slot, st.booleans()),
        st.tuples(st.just("wait"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


def step(a: ttnn.Tensor, b: ttnn.Tensor) -> None:
    """Do ``b = (b + a) % 97`` in place."""

    def kernel(_out: list[Any], read: list[Any], write: list[Any]) -> None:
        write[0][:] = (write[0] + read[0]) % 97

    dispatch("step", reads=(a,), kernel=kernel, writes=(b,))


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
@settings(max_examples=60, deadline=None)
@given(program=commands)
def test_program_gives_the_values_of_plain_python(execution, program):
    mesh = ttnn.open_mesh_device(execution=execution, trace_region_size=1 << 20)
    slots = [ttnn.zeros((2,), dtype=ttnn.int32, device=mesh) for _ in range(SLOTS)]
    step(slots[0], slots[0])
    traces = {}
    for a in range(SLOTS):
        for b in range(SLOTS):
            traces[a, b] = ttnn.begin_trace_capture(mesh)
            step(slots[a], slots[b])
            ttnn.end_trace_capture(mesh, traces[a, b])
    model, expected, reads = [0] * SLOTS, [], []
    for name, a, b in program:
        if name == "write":
            ttnn.copy_host_to_device_tensor(ttnn.Tensor(np.full(2, b, np.int32)), slots[a])
            model[a] = b
        elif name == "wait":
            ttnn.event_synchronize(ttnn.record_event(mesh))
        elif name == "read":
            reads.append(slots[a].cpu(blocking=b))
            expected.append(model[a])
        else:
            if name == "step":
                step(slots[a], slots[b])
            else:
                ttnn.execute_trace(mesh, traces[a, b], blocking=False)
            model[b] = (model[b] + model[a]) % 97
    ttnn.synchronize_device(mesh)
    assert [read.to_numpy().tolist() for read in reads] == [[value, value] for value in expected]
    assert mesh.num_program_cache_entries() == 1
    ttnn.close_mesh_device(mesh)
