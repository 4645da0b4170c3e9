# SPDX-License-Identifier: Apache-2.0
"""Two steps in flight over hundreds of steps on a device that works only when waited for: the results of blocking ones.

Step n+1 is submitted before n is read, from the device's own tokens. Requests join and leave meanwhile, rows cross
block borders, and blocks go from one request to the next.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import ttnn_twin
from support.decode_server import DecodeServer, Sampling

STEPS = 400
SLOTS = 4


def mixes(number):
    """Greedy and seeded stochastic requests in turn."""
    if number % 3 == 0:
        return Sampling()
    return Sampling(temperature=0.5 + number % 4 / 2, top_k=(5, 32)[number % 2], top_p=0.9, seed=number)


def serve(execution, *, reload, read, how, thread=False):
    """Run the schedule; the tokens of every request in order of arrival, and what was counted."""
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1), trace_region_size=1 << 24, execution=execution)
    server = DecodeServer(mesh, reload=reload, slots=SLOTS)
    plan, requests, seen = random.Random(5), [], Counter()
    for step in range(STEPS):
        if step % 13 == 0 and len(server.requests) < SLOTS:
            slot = next(slot for slot in range(SLOTS) if slot not in server.requests)
            prompt = [plan.randrange(63) for _ in range(plan.choice((1, 2, 29, 31, 32, 61)))]
            requests.append(server.join(slot, prompt, how(len(requests))))
        if step % 31 == 30 and len(server.requests) > 1:
            # Without a reset the others go on in flight, and the row that ended is dropped when it arrives.
            longest = max(server.requests, key=lambda slot: server.requests[slot].position)
            server.leave(longest, reset=step % 2 == 0)
        syncs = mesh.counters.calls["synchronize_device"]
        server.step(read=read)
        assert mesh.counters.calls["synchronize_device"] == syncs
        seen[len(server.flights)] += 1
        if thread and len(server.flights) == 2:
            server.complete(thread=True)
    server.finish()
    tokens = [request.tokens for request in requests]
    server.close()
    ttnn_twin.close_mesh_device(mesh)
    return tokens, seen


@pytest.mark.covers("D20")
@pytest.mark.parametrize("reload", [False, True], ids=["inferred", "commanded"])
@pytest.mark.parametrize("how", [lambda _number: Sampling(), mixes], ids=["greedy", "mixed"])
def test_overlapped_steps_give_what_blocking_ones_give(reload, how):
    blocking, none = serve("immediate", reload=reload, read="blocking", how=how)
    overlapped, seen = serve("deferred", reload=reload, read="async", how=how)
    assert overlapped == blocking
    assert none == {0: STEPS}
    assert seen[2] > STEPS * 0.7
    assert len(blocking) >= 12
    assert max(len(tokens) for tokens in blocking) > 64


def test_results_may_be_taken_on_another_thread_while_steps_go_on():
    blocking, _ = serve("immediate", reload=False, read="blocking", how=mixes)
    assert serve("deferred", reload=False, read="late", how=mixes, thread=True)[0] == blocking
