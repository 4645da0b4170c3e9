# SPDX-License-Identifier: Apache-2.0
"""A continuous-batching server that drives the vLLM facade with the arguments of the protocol (chapter 40, D.7-D.12).

One scheduler, front-packed rows on one lane or stable rows on several; prefix cache, preemption, asynchronous decode
with two steps in flight, and sampling that moves between device and host.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime.device import namespace_of
from support.serving.blocks import BlockManager, WriteAudit
from support.serving.sampling import pick_on_host, sampling_params
from support.serving.traffic import Request


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Geometry and modes, by the operator's names."""

    trace_mode: str
    sample_on_device_mode: str | None
    rows: int
    lanes: int = 1
    block_size: int = 32
    num_blocks: int = 20
    max_model_len: int = 320
    async_scheduling: bool = True
    seed: int = 0
    as_torch: bool = False

    @property
    def table_width(self) -> int:
        """Columns of every page table that is sent."""
        return min(-(-self.max_model_len // self.block_size), self.num_blocks)


@dataclass(eq=False)
class Flight:
    """A submitted step: its rows at submission, and how its tokens come back."""

    rows: dict[int, Request]
    is_tokens: bool
    host: Any = None
    events: Sequence[Any] = ()
    future: Future[Any] | None = None


class Server:
    """Serves requests through `model`, a warm facade; borrows it, its cache and its meshes."""

    def __init__(self, model: Any, kv_cache: Any, meshes: Sequence[Any], options: ServerOptions) -> None:
        self.model, self.kv_cache, self.options = model, kv_cache, options
        self.rng = np.random.default_rng(options.seed)
        handles = kv_cache if options.lanes > 1 else [kv_cache]
        self.lanes = [
            BlockManager(
                mesh,
                [tensor for layer in handle for tensor in layer],
                num_blocks=options.num_blocks,
                block_size=options.block_size,
            )
            for mesh, handle in zip(meshes, handles, strict=True)
        ]
        self.audits = [WriteAudit(lane, layers=len(handles[0])) for lane in self.lanes]
        self.rows: list[Request | None] = [None] * options.rows
        self.table: npt.NDArray[np.int32] = np.zeros((options.rows, options.table_width), np.int32)
        self.sent_table = self.table.copy()
        self.waiting: deque[Request] = deque()
        self.flights: deque[Flight] = deque()
        self.counts: Counter[str] = Counter()
        self.max_flights = 0
        self.last_layout: tuple[int, ...] | None = None
        self.last_device: bool | None = None
        self.workers = ThreadPoolExecutor(1)
        self.namespace = namespace_of(meshes[0])

    # The loop.

    def serve(self, traffic: Sequence[Request]) -> list[Request]:
        """Run all requests to their end; returns them."""
        coming, clock = deque(traffic), 0
        while coming or self.waiting or self.running or self.flights:
            if not (self.waiting or self.running or self.flights):
                clock = max(clock, coming[0].arrival)
            while coming and coming[0].arrival <= clock:
                self.waiting.append(coming.popleft())
            if not (self.waiting and (self.rng.random() < 0.5 or not self.running) and self.prefill()) and self.running:
                self.decode()
            clock += 1
        self.workers.shutdown()
        return list(traffic)

    @property
    def running(self) -> list[Request]:
        """Requests that have a row."""
        return [request for request in self.rows if request is not None]

    # Prefill.

    def prefill(self) -> bool:
        """Prefill waiting requests that fit; False when none does."""
        self.drain()
        batch: list[tuple[int, Request, int]] = []
        limit = int(self.rng.integers(1, self.options.rows + 1))
        while self.waiting and len(batch) < limit:
            request = self.waiting[0]
            row = self.free_row(request)
            if row is None:
                break
            self.waiting.popleft()
            self.rows[row] = request
            start = len(self.lanes[request.lane].cached_prefix(request.tokens)) * self.options.block_size
            self.lanes[request.lane].start(request, self.lanes[request.lane].cached_prefix(request.tokens))
            self.write_table(row, request)
            batch.append((row, request, start))
        if not batch:
            return False
        self.rng.shuffle(batch)  # type: ignore[arg-type]
        self.run_prefill([(int(row), request, int(start)) for row, request, start in batch])
        return True

    def free_row(self, request: Request) -> int | None:
        """A row whose lane has room for the request (which is then of that lane), or None."""
        per_lane = self.options.rows // self.options.lanes
        order = self.rng.permutation(self.options.lanes) if self.options.lanes > 1 else [0]
        for lane in map(int, order):
            free = [row for row in range(lane * per_lane, (lane + 1) * per_lane) if self.rows[row] is None]
            manager = self.lanes[lane]
            tokens = request.tokens
            if free and manager.missing(tokens, manager.cached_prefix(tokens)) <= manager.available:
                request.lane = lane
                return free[0] if self.options.lanes == 1 else int(self.rng.choice(free))
        return None

    def run_prefill(self, batch: list[tuple[int, Request, int]]) -> None:
        requests = [request for _, request, _ in batch]
        lengths = [len(request.tokens) for request in requests]
        # Columns behind a row's end hold whatever was there before.
        tokens = self.rng.integers(0, 256, (len(batch), max(lengths))).astype(np.int32)
        for index, request in enumerate(requests):
            tokens[index, : lengths[index]] = request.tokens
        device = self.samples_on_device(requests, phase="prefill")
        self.choose_slots(batch)
        for _, request, start in batch:
            self.audits[request.lane].expect_prefill(request, start)
            self.counts["prefix hits"] += start > 0
            self.counts["resumes"] += bool(request.generated)
        output = self.model.prefill_forward(
            tokens=self.host(tokens),
            page_table=self.host(self.table[[row for row, _, _ in batch]]),
            kv_cache=self.kv_cache,
            enable_trace=self.options.trace_mode == "all",
            prompt_lens=np.array(lengths, np.int64),
            start_pos=np.array([start for _, _, start in batch], np.int32),
            empty_slots=[request.slot for request in requests],
            **({"sampling_params": sampling_params(requests)} if device else {}),
        )
        self.last_layout = None
        self.counts["prefills"] += 1
        self.counts["prefill rows"] += len(batch)
        values = output[0] if isinstance(output, tuple) else output
        for index, request in enumerate(requests):
            self.lanes[request.lane].seal(request, lengths[index])
            self.take(request, values[index], device=device)
        self.check_writes()
        self.reap()

    def choose_slots(self, batch: list[tuple[int, Request, int]]) -> None:
        """Where each request's per-slot state goes: its row, unless another live request's state is there."""
        joining = {id(request) for _, request, _ in batch}
        taken = {request.slot for request in self.running if id(request) not in joining}
        for row, request, _ in batch:
            free = [slot for slot in range(self.options.rows) if slot not in taken]
            request.slot = row if row not in taken else int(self.rng.choice(free))
            taken.add(request.slot)

    # Decode.

    def decode(self) -> None:
        """One step of all rows, or what has to happen before it."""
        if self.rng.random() < 0.01:
            victim = self.running[int(self.rng.integers(len(self.running)))]
            victim.outcome = victim.outcome or "abort"
        device = self.samples_on_device(self.running, phase="decode")
        layout = tuple(-1 if request is None else request.number for request in self.rows)
        transition = self.last_layout != layout or self.last_device != device
        traced = self.options.trace_mode in ("all", "decode_only")
        steady = self.options.async_scheduling and traced and device and not transition
        ending = any(
            request.outcome is not None or len(request.generated) + request.in_flight >= request.budget
            for request in self.running
        )
        if self.flights and (ending or not steady):
            self.drain()
            return
        if len(self.flights) == 2:
            self.complete(self.flights.popleft())
            return
        if self.reap() or not self.reserve():
            return
        reload_inputs = not device or transition or not self.options.async_scheduling or not traced
        self.submit(device=device, traced=traced, transition=transition, reload_inputs=reload_inputs)

    def reserve(self) -> bool:
        """A block for every row's next position; False when a request had to give up its own for that."""
        for row, request in enumerate(self.rows):
            if request is None or request.next_position < len(request.blocks) * self.options.block_size:
                continue
            manager = self.lanes[request.lane]
            if not manager.available:
                self.drain()
                if not self.reap():
                    mates = [mate for mate in self.running if mate.lane == request.lane]
                    self.preempt(max(mates, key=lambda mate: mate.number))
                return False
            manager.extend(request)
            self.write_table(row, request)
            self.counts["new blocks"] += 1
        return True

    def submit(self, *, device: bool, traced: bool, transition: bool, reload_inputs: bool) -> None:
        rows = {row: request for row, request in enumerate(self.rows) if request is not None}
        tokens = np.zeros((self.options.rows, 1), np.int32)
        positions = np.full(self.options.rows, -1, np.int32)
        table = np.zeros_like(self.table)
        for row, request in rows.items():
            # What the host knows: behind the device by the steps in flight.
            tokens[row] = request.tokens[-1]
            positions[row] = len(request.tokens) - 1
            table[row] = self.table[row]
            self.audits[request.lane].expect_decode(request)
        table_changed = not np.array_equal(table, self.sent_table)
        np.copyto(self.sent_table, table)  # the same array again: nobody may keep it
        commands = {
            "reload_inputs": reload_inputs,
            "reload_page_table": not reload_inputs and table_changed,
            "reload_sampling_params": device and transition,
            "reset_sampling_state": device and transition,
        }
        remap = self.slot_remap(rows)
        if remap is not None:
            commands["slot_remap"] = remap
        blocking = self.options.lanes > 1 and not (device and traced and self.options.async_scheduling)
        output = self.model.decode_forward(
            tokens=self.host(tokens),
            start_pos=self.host(positions),
            page_table=self.host(self.sent_table),
            kv_cache=self.kv_cache,
            enable_trace=traced,
            read_from_device=blocking,
            **({"sampling_params": sampling_params(self.rows)} if device else {}),
            **commands,
        )
        self.counts["decodes"] += 1
        self.counts["resident steps"] += not reload_inputs
        self.counts["page-table refreshes"] += commands["reload_page_table"]
        self.counts["side changes"] += self.last_device is not None and self.last_device != device
        self.last_layout = tuple(-1 if request is None else request.number for request in self.rows)
        self.last_device = device
        for row, request in rows.items():
            request.slot = row
            request.in_flight += 1
        flight = Flight(rows, device)
        if blocking:
            self.finish(flight, output)
        elif device and traced and self.options.async_scheduling:
            self.counts["overlapped"] += bool(self.flights)
            flight.host, flight.events = self.model.read_decode_output(output, async_read=True)
            if self.rng.random() < 0.5:
                flight.future = self.workers.submit(self.process, flight)
            self.flights.append(flight)
            self.max_flights = max(self.max_flights, len(self.flights))
        else:
            self.finish(flight, self.model.process_decode_output_host(output, is_tokens=device))

    def slot_remap(self, rows: dict[int, Request]) -> Any:
        """A permutation that brings each request's state to its row; left out now and then when it is the identity."""
        identity = list(range(self.options.rows))
        if self.options.lanes > 1:
            return self.host(np.array(identity, np.int32))
        sources: list[int] = [-1] * self.options.rows
        for row, request in rows.items():
            sources[row] = request.slot
        rest = iter(sorted(set(identity) - set(sources)))
        sources = [next(rest) if source < 0 else source for source in sources]
        if sources == identity and self.rng.random() < 0.5:
            return None
        self.counts["remaps"] += sources != identity
        return self.host(np.array(sources, np.int32))

    # Results.

    def process(self, flight: Flight) -> Any:
        for event in flight.events:
            self.namespace.event_synchronize(event)
        return self.model.process_decode_output_host(flight.host, is_tokens=flight.is_tokens)

    def complete(self, flight: Flight) -> None:
        """Take the tokens of a step in flight; it may have been completed on another thread."""
        self.finish(flight, flight.future.result() if flight.future is not None else self.process(flight))

    def finish(self, flight: Flight, output: Any) -> None:
        values, _log_probs = output
        for row, request in flight.rows.items():
            request.in_flight -= 1
            if request.outcome is None:
                self.take(request, values[row], device=flight.is_tokens)
                self.lanes[request.lane].seal(request, len(request.tokens) - 1)
            else:
                self.counts["dropped tokens"] += 1

    def take(self, request: Request, value: Any, *, device: bool) -> None:
        position = len(request.tokens) - 1
        token = int(value) if device else pick_on_host(value[-1], request.sampling, position)
        request.accept(token, "device" if device else "host")
        self.counts[f"{request.sides[-1]} tokens"] += 1

    def drain(self) -> None:
        """Complete every step in flight, then look at what was written."""
        while self.flights:
            self.complete(self.flights.popleft())
        self.check_writes()

    def check_writes(self) -> None:
        for lane, audit in zip(self.lanes, self.audits, strict=True):
            self.namespace.synchronize_device(lane.mesh)
            audit.check()

    # Rows.

    def reap(self) -> bool:
        """Let finished requests go; True when rows changed. Nothing is in flight then."""
        done = [row for row, request in enumerate(self.rows) if request is not None and request.outcome is not None]
        if done and self.flights:
            self.drain()
        for row in reversed(done):
            self.vacate(row)
        return bool(done)

    def vacate(self, row: int) -> None:
        request = self.rows[row]
        assert request is not None and request.in_flight == 0
        self.lanes[request.lane].release(request)
        request.slot, self.rows[row] = -1, None
        if self.options.lanes == 1 and row < len(self.running):
            # The last row moves into the gap; its table row stays behind as it was.
            last = len(self.running)
            self.rows[row], self.rows[last] = self.rows[last], None
            moved = self.rows[row]
            assert moved is not None
            self.write_table(row, moved)

    def preempt(self, request: Request) -> None:
        """Take a request's blocks; it comes back with a prefill of everything it has."""
        self.vacate(self.rows.index(request))
        request.preemptions += 1
        self.counts["preemptions"] += 1
        self.waiting.appendleft(request)

    def write_table(self, row: int, request: Request) -> None:
        """Block ids of a row; what lies behind them is left from earlier requests."""
        self.table[row, : len(request.blocks)] = request.blocks

    # Small things.

    def samples_on_device(self, requests: Sequence[Request], *, phase: str) -> bool:
        """Chosen for the whole step; now and then a step goes to the host for reasons of the server's own."""
        mode = self.options.sample_on_device_mode
        allowed = mode == "all" or (mode == "decode_only" and phase == "decode")
        if phase == "decode" and self.flights:
            return bool(self.last_device)
        return allowed and all(request.sampling.fits_device for request in requests) and self.rng.random() > 0.05

    def host(self, array: npt.NDArray[np.int32]) -> Any:
        if not self.options.as_torch:
            return array
        import torch

        return torch.from_numpy(array)
