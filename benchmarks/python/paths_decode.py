# SPDX-License-Identifier: Apache-2.0
"""Hot paths of decode: preparing a step, whole traced steps against their device calls made by hand, and results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from lane import BLOCK, MAX_POSITION, BenchLane, decode_call, top_k_params
from null_device import ROWS
from paths import Path

from llm_runtime.prefill.sampling_params import SamplingParams

_CALLS = 64
#: Outputs that wait to be processed, one after the other.
_QUEUED = 20


def prepare_paths(lane: BenchLane, torch: Any = None) -> list[Path]:
    """`DecodeRuntime.prepare` for 32 rows and a table of 64 blocks; torch inputs may take twice the budget."""
    paths = _prepare_paths(lane, "decode prepare", 1.0, None)
    if torch is not None:
        paths += _prepare_paths(lane, "decode prepare, torch", 2.0, torch.from_numpy)
    return paths


def step_paths(lane: BenchLane) -> list[Path]:
    """Whole traced steps with a blocking read; `lane` has captured its decode traces."""
    reset, resident = partial(_reset, lane), partial(_reload, lane)
    return [
        Path(
            name="decode step: top-k, feedback, inferred refresh",
            call=inferred_step(lane),
            enter=reset,
            floor=_by_hand(lane, sampling_params=top_k_params(), seeds=True),
            budget_us=20.0,
        ),
        Path(
            name="decode step: the same, a row enters a block",
            call=inferred_step(lane, spread=True),
            enter=reset,
            floor=_by_hand(lane, sampling_params=top_k_params(), seeds=True, table=True),
        ),
        Path(
            name="decode step: reload contract, resident inputs",
            call=resident_step(lane),
            enter=resident,
            floor=_by_hand(lane, sampling_params=top_k_params(), seeds=True),
            budget_us=10.0,
        ),
        Path(
            name="decode step: logits, four inputs staged",
            call=logits_step(lane),
            floor=_by_hand(lane, inputs=True),
            budget_us=25.0,
        ),
    ]


def output_path(lane: BenchLane) -> Path:
    """`process_decode_output_host` of 32 tokens whose copy was queued before."""
    step = inferred_step(lane, read_from_device=False)
    decode, ns = lane.decode, _namespace(lane)

    def queued() -> Any:
        return decode.read_decode_output(step(), async_read=True)

    def by_hand(read: Any) -> Any:
        ns.event_synchronize(read[1][0])
        return read[0][0].to_numpy()

    def retired() -> list[Any]:
        decode.drain_external_outputs()
        return [queued() for _ in range(_QUEUED)]

    return Path(
        name="decode output: 32 tokens",
        enter=partial(_reset, lane),
        setup=retired,
        call=lambda read: decode.process_decode_output_host(read[0], is_tokens=True),
        floor=by_hand,
        budget_us=4.0,
    )


def inferred_step(lane: BenchLane, *, spread: bool = False, **options: Any) -> Callable[[], Any]:
    """A steady step with an inferred refresh: positions advance; the page table too with `spread`, nothing else."""
    _reset(lane)
    forward, params, calls = lane.traced.decode_forward, top_k_params(), _moving_calls(spread=spread)
    return lambda: forward(**next(calls), sampling_params=params, **options)


def resident_step(lane: BenchLane, **options: Any) -> Callable[[], Any]:
    """A steady step of the reload contract: nothing is reloaded, positions on the host are stale."""
    _reload(lane)
    forward, params, call = lane.traced.decode_forward, top_k_params(), decode_call()
    return lambda: forward(**call, sampling_params=params, reload_inputs=False, **options)


def logits_step(lane: BenchLane, **options: Any) -> Callable[[], Any]:
    """A step that is sampled on the host, so that all four inputs are copied again."""
    forward, calls = lane.traced.decode_forward, _moving_calls()
    return lambda: forward(**next(calls), **options)


def _prepare_paths(lane: BenchLane, name: str, factor: float, convert: Any) -> list[Path]:
    prepare = lane.decode.prepare
    call = decode_call(convert=convert)
    resident = top_k_params()
    fresh = _fresh_params()
    return [
        Path(name=f"{name}: logits", call=lambda: prepare(**call), budget_us=4.0 * factor),
        Path(
            name=f"{name}: new sampling lists each step",
            call=lambda: prepare(**call, sampling_params=next(fresh)),
            budget_us=12.0 * factor,
        ),
        Path(
            name=f"{name}: resident parameters",
            call=lambda: prepare(**call, sampling_params=resident, reload_inputs=False),
            enter=partial(_reload, lane),
            budget_us=2.0 * factor,
        ),
    ]


def _reset(lane: BenchLane) -> None:
    """Begin a batch with everything from the host, as inferred steps do."""
    lane.decode.drain_external_outputs()
    lane.traced.decode_forward(**next(_moving_calls()), sampling_params=top_k_params(), reset_batch=True)


def _reload(lane: BenchLane) -> None:
    """Begin a batch under the reload contract."""
    lane.decode.drain_external_outputs()
    commands = {"reload_inputs": True, "reload_sampling_params": True, "reset_sampling_state": True}
    lane.traced.decode_forward(**decode_call(), sampling_params=top_k_params(), **commands)


def _fresh_params() -> Iterator[SamplingParams]:
    """Parameter objects of which no two neighbours hold equal values."""
    made = []
    for at in range(_CALLS):
        params = top_k_params()
        made.append(
            SamplingParams(
                temperature=[value + at * 0.001 for value in params.temperature],
                top_k=params.top_k,
                top_p=params.top_p,
                seed=params.seed,
            )
        )
    return itertools.cycle(made)


def _moving_calls(*, spread: bool = False) -> Iterator[dict[str, Any]]:
    """The arguments of steps at advancing positions, from the start again after a block.

    All rows are at one position, so that none enters a block; `spread` over a block, one row enters one at each step
    and the page table grows.
    """
    base = decode_call(position=0)
    offsets = base["start_pos"] if spread else np.zeros_like(base["start_pos"])
    first = MAX_POSITION - 2 * BLOCK
    return itertools.cycle([{**base, "start_pos": offsets + first + at} for at in range(BLOCK - 1)])


def _by_hand(
    lane: BenchLane, *, inputs: bool = False, seeds: bool = False, table: bool = False, **sampling: Any
) -> Callable[[], Any]:
    """The device calls of one step as a straight line: uploads, replay, blocking read."""
    ns, mesh = _namespace(lane), lane.mesh
    artifact = lane.artifact(**decode_call(), **sampling)
    trace, output = artifact.trace_id, artifact.outputs[0]
    device = artifact.persistent_inputs.values.device_inputs.values()
    arrays = (
        np.zeros((1, 1, 1, ROWS), np.uint32),
        np.zeros(ROWS, np.int32),
        np.zeros((1, ROWS), np.uint32),
        decode_call()["page_table"],
    )
    kinds = (ns.uint32, ns.int32, ns.uint32, ns.int32)
    seed_buffer = lane.model.sampling.config.seeds.get_device_buffer()
    seed_values = np.arange(1, ROWS + 1, dtype=np.uint32)

    def staged() -> Any:
        ns.copy_host_to_device_tensor(ns.Tensor(arrays[0], kinds[0]), device[0])
        ns.copy_host_to_device_tensor(ns.Tensor(arrays[1], kinds[1]), device[1])
        ns.copy_host_to_device_tensor(ns.Tensor(arrays[2], kinds[2]), device[2])
        ns.copy_host_to_device_tensor(ns.Tensor(arrays[3], kinds[3]), device[3])
        ns.execute_trace(mesh, trace, cq_id=0, blocking=False)
        return output.cpu(blocking=True).to_numpy()

    def resident() -> Any:
        if seeds:
            ns.copy_host_to_device_tensor(ns.Tensor(seed_values, ns.uint32), seed_buffer)
        if table:
            ns.copy_host_to_device_tensor(ns.Tensor(arrays[3], kinds[3]), device[3])
        ns.execute_trace(mesh, trace, cq_id=0, blocking=False)
        return output.cpu(blocking=True).to_numpy()

    return staged if inputs else resident


def _namespace(lane: BenchLane) -> Any:
    from llm_runtime.device import namespace_of

    return namespace_of(lane.mesh)
