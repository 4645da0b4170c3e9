# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of decode steps with requests coming and going: nothing grows, and every token is still right."""

from __future__ import annotations

import gc
import random
import sys

import pytest

import ttnn_twin
from support.decode_server import DecodeServer, Sampling

STEPS = 20_000
CHECKPOINT = 2_000
SLOTS = 4
# The allocator and the interpreter's caches breathe; a leak of one small object a step would be far above both.
SPARE_BYTES = 4 << 20
SPARE_BLOCKS = 2_000


def counts(server):
    """What must not grow, counted while nothing is in flight."""
    server.finish()
    gc.collect()
    decode, lane, mesh = server.lane.decode, server.lane, server.mesh
    return {
        "live tensors": mesh.counters.live_tensors,
        "live device bytes": mesh.counters.live_bytes,
        "device programs": mesh.num_program_cache_entries(),
        "programs": len(lane.programs.compiled_programs),
        "traces": len(lane.traces._book.records),
        "pending reads": len(decode.config.output_reader._pending),
        "leases": len(decode._readout.leases),
        "trace signatures": len(decode._trace_signatures),
        "orphans": decode.transient_orphan_count,
        "trace bytes": mesh.trace_region_used,
    }


def sampling(number):
    if number % 3 == 0:
        return Sampling()
    return Sampling(temperature=0.7, top_k=8, top_p=0.9, seed=number if number % 3 == 1 else None)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("reload", [False, True], ids=["inferred", "commanded"])
def test_twenty_thousand_steps_grow_nothing(reload, resident_bytes):
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=1 << 24, execution="deferred")
    server = DecodeServer(mesh, reload=reload, slots=SLOTS)
    plan, number, history = random.Random(11), 0, []
    for step in range(STEPS):
        if step % 17 == 0 and len(server.requests) < SLOTS:
            slot = plan.choice([slot for slot in range(SLOTS) if slot not in server.requests])
            server.join(slot, [plan.randrange(63) for _ in range(plan.choice((1, 31, 32, 50)))], sampling(number))
            number += 1
        longest = max(server.requests, key=lambda slot: server.requests[slot].position)
        if len(server.requests) > 1 and (step % 61 == 60 or server.requests[longest].position > 200):
            server.leave(longest, reset=plan.random() < 0.5)
        if step % 997 == 996:
            server.move(plan.sample(range(SLOTS), SLOTS))
        server.step(
            traced=step % 101 != 100,
            sampled=step % 131 != 130,
            read=plan.choice(("async", "async", "async", "late", "blocking")),
        )
        if (step + 1) % CHECKPOINT == 0:
            history.append((counts(server), resident_bytes(), sys.getallocatedblocks()))
    first, *_, last = history
    assert last[0] == first[0]
    assert last[1] <= first[1] + SPARE_BYTES, [entry[1] for entry in history]
    assert last[2] <= first[2] + SPARE_BLOCKS, [entry[2] for entry in history]
    server.close()
    ttnn_twin.close_mesh_device(mesh)
