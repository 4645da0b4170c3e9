# SPDX-License-Identifier: Apache-2.0
"""A small server over one decode lane: requests in slots, blocks from a pool, at most two steps in flight.

It does what a scheduler has to do and no more: known tokens are given to the lane only when its contract asks for them,
otherwise the lane gets stale ones. Every token that comes back is compared with `attending_model` recomputed from the
request's first token.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_models.llama.sampling import Sampling1D, Sampling1DConfig
from llm_runtime.prefill.sampling_helpers import SamplingParams
from support.attending_model import AttendingModel, logits_of
from support.seeded_draw import may_draw
from support.tiny_decode_model import VOCAB, DecodeLane

BLOCK = 32
TABLE_WIDTH = 8
MAX_TOKENS = BLOCK * TABLE_WIDTH
#: A token that no request holds when it is given instead of the real one.
STALE_TOKEN = 63


@dataclass(frozen=True)
class Sampling:
    """How one request picks its tokens; temperature 0 takes the largest logit."""

    temperature: float = 0.0
    top_k: int = 1
    top_p: float = 1.0
    seed: int | None = None


@dataclass(eq=False)
class Request:
    """Tokens that were read back (None where a step is still in flight), and the blocks that hold their keys."""

    tokens: list[int | None]
    sampling: Sampling
    blocks: list[int] = field(default_factory=list)
    checked: int = 0
    used: dict[int, Sampling] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """Where the next step consumes a token."""
        return len(self.tokens) - 1

    def take(self, index: int, token: int) -> None:
        """Store the token behind position `index - 1` and check every token whose history is complete."""
        assert self.tokens[index] is None
        self.tokens[index] = token
        while self.checked < len(self.tokens) and self.tokens[self.checked] is not None:
            self.checked += 1
            if self.checked - 1 in self.used:
                self._check(self.checked - 1)

    def _check(self, index: int) -> None:
        how, token = self.used.pop(index), self.tokens[index]
        history = [known for known in self.tokens[:index] if known is not None]
        logits = logits_of(history)
        if how.temperature == 0.0:
            assert logits[token] >= logits.max() - 1e-4, (index, token, int(logits.argmax()))
        else:
            assert may_draw(
                token,
                logits,
                top_k=how.top_k,
                top_p=how.top_p,
                temperature=how.temperature,
                seed=how.seed,
                position=index - 1,
            ), (index, token, how)


@dataclass(eq=False)
class Flight:
    """A submitted step: what to read, and which request's token each row is."""

    raw: Any
    host: Any
    rows: dict[int, tuple[Request, int]]


class DecodeServer:
    """See the module. `reload` selects the explicit contract, `lane` may be rebuilt after a failure."""

    def __init__(self, mesh: Any, *, reload: bool, slots: int = 4, num_blocks: int = 40) -> None:
        self.mesh, self.reload, self.slots = mesh, reload, slots
        sampler = Sampling1D(Sampling1DConfig(mesh_device=mesh, vocab_size=VOCAB))
        sampler.load_device_buffers()
        self.model = AttendingModel(mesh, lane_capacity=slots, num_blocks=num_blocks, block_size=BLOCK, sampler=sampler)
        self.baseline = mesh.counters.live_tensors
        # Block 0 is an ordinary block: an idle row that wrote anywhere would write there.
        self.free = deque(range(num_blocks))
        self.requests: dict[int, Request] = {}
        self.flights: list[Flight] = []
        self.expected_writes: Counter[tuple[int, int]] = Counter()
        # One array for life, edited in place between steps.
        self.table = np.full((slots, TABLE_WIDTH), num_blocks - 1, np.int32)
        self.open_lane()

    def open_lane(self) -> None:
        """Build and capture a lane over the model; nothing is resident in it."""
        self.lane = DecodeLane(self.model)
        call = self.call({0: Request([1], Sampling())})
        params = {"temperature": [0.0], "top_k": [1], "top_p": [1.0]}
        greedy = SamplingParams(**params)
        stochastic = SamplingParams(**{**params, "temperature": [1.0]})
        self.lane.capture({**call, "sampling_params": greedy}, {**call, "sampling_params": stochastic}, call)
        self.resident: tuple[Any, ...] = ()
        self.known: dict[int, Request] = {}
        self.remap: list[int] | None = None
        self.parameters: Any = None
        self.submitted_table: Any = None
        self.reset = True
        self.mesh.ledger.clear()
        self.expected_writes.clear()

    def close(self) -> None:
        """Release the lane; nothing but the model's own tensors may be left."""
        self.lane.close()
        assert len(self.lane.decode._readout.leases) == 0
        assert self.mesh.counters.live_tensors == self.baseline

    # What requests do.

    def join(self, slot: int, prompt: Sequence[int], sampling: Sampling) -> Request:
        """Give a prompt to an empty slot: its keys are written, its last token is the next step's input."""
        self.finish()
        request = Request(list(prompt), sampling, checked=len(prompt))
        self.requests[slot] = request
        self._grow(slot, request)
        self.model.prefill(prompt, request.blocks)
        self.reset = True
        return request

    def leave(self, slot: int, *, reset: bool = True) -> None:
        """End a request; its blocks are free for others at once. Tokens in flight are dropped when they arrive."""
        if self.reload or reset:
            self.finish()
            self.reset = True
        self.free.extend(self.requests.pop(slot).blocks)

    def move(self, order: Sequence[int]) -> None:
        """Let slot i hold what slot `order[i]` held."""
        self.finish()
        moved = {slot: self.requests[source] for slot, source in enumerate(order) if source in self.requests}
        self.requests = moved
        table = self.table.copy()
        for slot, source in enumerate(order):
            self.table[slot] = table[source]
        held = list(range(self.slots)) if self.remap is None else self.remap
        self.remap = [held[source] for source in order]

    def change(self, slot: int, **changes: Any) -> None:
        """Change a request's temperature, top_k or top_p from its next token on."""
        self.requests[slot].sampling = replace(self.requests[slot].sampling, **changes)

    def fail(self, op: str, at: int, **how: Any) -> None:
        """Take a step during which the `at`-th call of `op` fails, and go on: with the same lane or a new one."""
        self._attempt(RuntimeError(f"call {at} of {op} fails"), op, at, how)
        try:
            self.lane.decode.prepare(**self.call(self.requests))
        except RuntimeError as refusal:
            assert "rebuild" in str(refusal)
        else:
            return
        gc.collect()  # the frames of a failed body hold its intermediate tensors
        self.rebuild()

    def _attempt(self, error: RuntimeError, op: str, at: int, how: dict[str, Any]) -> None:
        self.mesh.faults.fail(op, at=at, error=error)
        try:
            self.step(**how)
        except RuntimeError as raised:
            assert raised is error
        finally:
            self.mesh.faults.clear()

    def rebuild(self) -> None:
        """Leave a failed lane behind, with all that it delivered before, and serve the same requests from a new one."""
        while self.flights:
            self.complete()
        self.lane.close()
        assert self.mesh.counters.live_tensors == self.baseline
        self.open_lane()
        for request in self.requests.values():
            # A token that no read delivered is computed again.
            while request.tokens[-1] is None:
                request.used.pop(len(request.tokens) - 1)
                request.tokens.pop()
            self.model.prefill([token for token in request.tokens if token is not None], request.blocks)

    # Steps.

    def step(self, *, traced: bool = True, sampled: bool = True, read: str = "async") -> None:
        """Submit one step for every request; `read` is blocking, async or late (leased until the next step)."""
        path = self.path if sampled else "logits"
        steady = self.is_steady(traced, path)
        if not steady:
            self.finish()
        elif len(self.flights) == 2:
            self.complete()
        for flight in self.flights:
            self._submit_read(flight)
        for slot, request in self.requests.items():
            self._grow(slot, request)
        call = self.call(self.requests, stale=steady)
        params = self.sampling_params() if sampled else None
        commands = self._commands(steady, sampled, params)
        executor = self.lane.traced if traced else self.lane.eager
        options = {"sampling_params": params, "slot_remap": self.remap, **commands}
        blocking = read == "blocking" or not sampled
        copies = self.mesh.counters.calls["copy_host_to_device_tensor"]
        raw = executor.decode_forward(**call, **options, read_from_device=blocking)
        # At the end of a block the lane looks one block ahead, which is a change of its table.
        crosses = any(request.position % BLOCK == BLOCK - 1 for request in self.requests.values())
        if steady and path == "argmax" and not (crosses or self._table_changed() or params != self.parameters):
            assert self.mesh.counters.calls["copy_host_to_device_tensor"] == copies
        rows = {}
        for slot, request in self.requests.items():
            index = len(request.tokens)
            self.expected_writes[request.blocks[request.position // BLOCK], request.position % BLOCK] += 1
            request.used[index] = request.sampling if sampled else Sampling()
            request.tokens.append(None)
            rows[slot] = (request, index)
        self._note(traced, path, params)
        flight = Flight(raw, None, rows)
        if not blocking:
            self.flights.append(flight)
            if read == "async" and traced:
                self._submit_read(flight)
            if not traced:
                self.finish()
        else:
            self._store(flight, raw[0], sampled)

    @property
    def path(self) -> str:
        """The sampling path of the next sampled step."""
        return "argmax" if all(item.sampling.temperature == 0.0 for item in self.requests.values()) else "topk"

    def is_steady(self, traced: bool, path: str) -> bool:
        """Whether the lane can go on from what it has on the device."""
        grown = not set(self.requests.values()) <= set(self.known.values())
        return (
            self.resident == (traced, path)
            and traced
            and path != "logits"
            and not (self.reset or grown or self.remap is not None)
            and (not self.reload or self.known == self.requests)
        )

    def complete(self, which: int = 0, *, thread: bool = False) -> None:
        """Read one step in flight, maybe on another thread."""
        flight = self.flights[which]
        self._submit_read(flight)
        output = _call(lambda: self.lane.decode.process_decode_output_host(flight.host, is_tokens=True), thread)
        self.flights.remove(flight)
        self._store(flight, output[0], True)

    def finish(self) -> None:
        """Read every step in flight; the cache must have been written where requests stand, and nowhere else."""
        while self.flights:
            self.complete()
        ledger = self.mesh.ledger
        assert Counter((w.block, w.offset) for w in ledger.writes if w.kind == "update") == self.expected_writes
        ledger.clear()
        self.expected_writes.clear()

    def call(self, requests: dict[int, Request], *, stale: bool = False) -> dict[str, Any]:
        """Arguments of a step; `stale` hides what a scheduler with a step in flight cannot know."""
        tokens = np.zeros(self.slots, np.int64)
        positions = np.full(self.slots, -1, np.int64)
        for slot, request in requests.items():
            token = request.tokens[-1]
            tokens[slot] = STALE_TOKEN if stale or token is None else token
            # Under the explicit contract positions are as old as the tokens.
            positions[slot] = request.position - (1 if stale and self.reload else 0)
        return {"tokens": tokens, "start_pos": positions, "page_table": self.table}

    def sampling_params(self) -> SamplingParams:
        """One row per slot; those of empty slots are out of range on purpose."""
        rows = [self.requests.get(slot) for slot in range(self.slots)]
        chosen = [Sampling(-1.0, 999, 9.0, None) if row is None else row.sampling for row in rows]
        return SamplingParams(
            temperature=[item.temperature for item in chosen],
            top_k=[item.top_k for item in chosen],
            top_p=[item.top_p for item in chosen],
            seed=[item.seed for item in chosen],
        )

    def _commands(self, steady: bool, sampled: bool, params: Any) -> dict[str, Any]:
        if not self.reload:
            return {"reset_batch": self.reset and sampled}
        changed = sampled and params != self.parameters
        reset = sampled and (self.reset or self.known != self.requests)
        return {
            "reload_inputs": not steady,
            "reload_page_table": steady and self._table_changed(),
            "reload_sampling_params": changed or reset,
            "reset_sampling_state": reset,
        }

    def _table_changed(self) -> bool:
        return self.submitted_table is None or not np.array_equal(self.submitted_table, self.table)

    def _note(self, traced: bool, path: str, params: Any) -> None:
        self.resident, self.remap = (traced, path), None
        self.submitted_table = self.table.copy()
        if path != "logits":
            self.known, self.parameters, self.reset = dict(self.requests), params, False

    def _grow(self, slot: int, request: Request) -> None:
        while len(request.blocks) * BLOCK <= request.position:
            request.blocks.append(self.free.popleft())
        self.table[slot] = (request.blocks + [request.blocks[-1]] * TABLE_WIDTH)[:TABLE_WIDTH]

    def _submit_read(self, flight: Flight) -> None:
        if flight.host is None:
            flight.host, events = self.lane.decode.read_decode_output(flight.raw, async_read=True)
            assert len(events) == 1

    def _store(self, flight: Flight, rows: npt.NDArray[Any], sampled: bool) -> None:
        for slot, (request, index) in flight.rows.items():
            if not sampled:
                known = [token for token in request.tokens[:index] if token is not None]
                np.testing.assert_allclose(rows[slot, 0], logits_of(known), rtol=0, atol=1e-4)
            token = int(rows[slot]) if sampled else int(rows[slot, 0, :VOCAB].argmax())
            request.take(index, token)


def _call(function: Callable[[], Any], thread: bool) -> Any:
    if not thread:
        return function()
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # re-raised in the caller's thread
            results.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]
