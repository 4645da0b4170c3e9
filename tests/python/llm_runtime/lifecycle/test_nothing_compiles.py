# SPDX-License-Identifier: Apache-2.0
"""After warmup a real lane serves every length, start, wave and sampling path without compiling or capturing."""

from __future__ import annotations

import numpy as np
import pytest

from support.one_layer_lane import BLOCK, OneLayerLane, sampling_params

ROWS, LONGEST = 4, 256
PATHS = ("logits", "argmax", "topk")


class Served:
    """A warmed lane on which a compile is an error; counts calls."""

    def __init__(self, trace_mode, **options):
        self.lane = OneLayerLane(trace_mode=trace_mode, rows=ROWS, length=LONGEST, sampling=True, used=False, **options)
        self.lane.llama.warm_up()
        self.executor, self.mesh = self.lane.executor, self.lane.mesh
        self.mesh.set_program_cache_misses_allowed(False)
        self.before = self.counts()
        self.calls = 0

    def counts(self):
        summary = self.executor.traced_executor.runtime_summary()
        return {
            "compiles": self.mesh.counters.compiles,
            "captures": self.mesh.counters.captures,
            "programs": summary["semantic_program_count"],
            "device programs": summary["ttnn_program_cache_count"],
            "traces": summary["semantic_trace_count"],
            "misses": summary["strict_coverage_misses"],
            "rejections": summary["rejected_post_activation_compile_attempts"],
        }

    def prefill(self, lengths, path, *, starts=None, slots=None):
        rows = len(lengths)
        self.executor.prefill_forward(
            np.ones((rows, max(lengths)), np.int64),
            self.lane.table()[:rows],
            prompt_lens=np.array(lengths),
            start_pos=None if starts is None else np.array(starts),
            empty_slots=slots,
            sampling_params=sampling_params(path, rows),
        )
        self.calls += 1

    def decode(self, position, path, *, width, idle=()):
        positions = np.full(ROWS, position)
        positions[list(idle)] = -1
        self.executor.decode_forward(
            np.ones(ROWS, np.int64),
            positions,
            self.lane.table()[:, :width],
            sampling_params=sampling_params(path, ROWS),
            reset_batch=True,
        )
        self.calls += 1

    def finish(self):
        assert self.counts() == self.before
        self.lane.close()


@pytest.fixture(params=["all", "decode_only"])
def served(request):
    served = Served(request.param)
    yield served
    served.finish()


@pytest.mark.covers("W01", "W04", "T23")
def test_single_rows(served):
    """Every length from 0, and behind every cached prefix; in `decode_only` the prefill programs run eagerly."""
    step = 1 if served.executor.config.trace.mode == "all" else 5
    for length in range(1, LONGEST + 1, step):
        for index, path in enumerate(PATHS):
            served.prefill([length], path, slots=[length % ROWS])
            starts = list(range(BLOCK, length, BLOCK))
            # Logits behind every prefix; the sampled paths behind one, another one for each length.
            for start in starts if path == "logits" else starts[(length + index) % len(starts) :][:1] if starts else ():
                served.prefill([length], path, starts=[start])
    eager = served.executor.eager_executor.eager_prefill_count
    assert eager == (0 if step == 1 else served.calls)


@pytest.mark.covers("W01", "W02", "W06")
def test_waves(served):
    generator = np.random.default_rng(0)
    for length in range(1, LONGEST + 1, 9):
        for index, path in enumerate(PATHS):
            for rows in range(2, ROWS + 1):
                served.prefill([length] * rows, path)
            mixed = generator.integers(1, LONGEST + 1, ROWS).tolist()
            served.prefill(mixed, path, slots=generator.permutation(ROWS).tolist())
            starts = [(size - 1) // BLOCK * BLOCK if row % 2 == index % 2 else 0 for row, size in enumerate(mixed)]
            served.prefill(mixed, path, starts=starts)


@pytest.mark.covers("W01")
def test_decode_steps(served):
    for position in range(0, LONGEST, 5):
        for path in PATHS:
            served.decode(position, path, width=LONGEST // BLOCK)
            served.decode(position, path, width=position // BLOCK + 1, idle=(position % ROWS,))
    assert served.calls > 300
