# SPDX-License-Identifier: Apache-2.0
"""Penalties on the device: their arithmetic, counts that grow step by step, and what needs a reset."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ttnn_twin
from llm_models.llama.penalties import PenaltyTensors
from llm_models.llama.sampling_state import SamplingStateController1D
from llm_runtime.prefill.sampling_helpers import SamplingParams
from oracle.numpy_llama import NumpyLlama
from support.executors import Bench
from support.llama import tiny_checkpoint

VOCABULARY = 256
ROWS = 32
PROMPTS = ([5, 9, 200, 17], [31, 7, 31])
PENALTIES = {"presence_penalty": [0.5, 0.0], "frequency_penalty": [0.0, 4.0], "repetition_penalty": [9.0, 1.0]}


def penalised(
    logits: npt.NDArray[Any], prompt: Any, output: Any, presence: float, frequency: float, repetition: float
) -> npt.NDArray[Any]:
    """The definition, token by token."""
    result = logits.astype(np.float64).copy()
    for token in {*prompt, *output}:
        result[token] = result[token] / repetition if result[token] > 0 else result[token] * repetition
    for token in set(output):
        result[token] -= frequency * list(output).count(token) + presence
    return result


@pytest.fixture
def mesh() -> Any:
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1))
    yield mesh
    ttnn_twin.close_mesh_device(mesh)


def upload(mesh: Any, array: npt.NDArray[Any], dtype: Any, layout: Any = None) -> Any:
    return ttnn_twin.to_device(ttnn_twin.Tensor(array, dtype, layout=layout), device=mesh)


@pytest.mark.parametrize("rows", [5, ROWS])
def test_logits_after_prompt_output_and_counted_tokens(mesh: Any, rows: int) -> None:
    held = PenaltyTensors(mesh, rows=ROWS, vocab_size=VOCABULARY)
    held.load()
    held.load()
    plan = np.random.default_rng(3)
    prompts = [plan.integers(0, VOCABULARY, 20).tolist() for _ in range(ROWS)]
    outputs = [plan.integers(0, VOCABULARY, row).tolist() for row in range(ROWS)]
    weights = {
        "presence": plan.uniform(-1, 1, ROWS).tolist(),
        "frequency": plan.uniform(-1, 1, ROWS).tolist(),
        "repetition": plan.uniform(0.5, 2, ROWS).tolist(),
    }
    counted = [row != 2 for row in range(ROWS)]
    held.write_history(prompts, outputs)
    held.write_weights(**weights, counted=counted)
    tokens = plan.integers(0, VOCABULARY, ROWS).astype(np.uint32)
    sampled = upload(mesh, tokens.reshape(1, 1, 1, ROWS), ttnn_twin.uint32)
    live = mesh.counters.live_tensors
    for _ in range(2):
        held.count(sampled)
    values = 3 * plan.standard_normal((rows, VOCABULARY)).astype(np.float32)
    logits = upload(mesh, values[None, None].copy(), ttnn_twin.bfloat16, ttnn_twin.TILE_LAYOUT)
    result = held.apply(logits)
    assert result.shape == (1, 1, ROWS, VOCABULARY) and result.dtype is ttnn_twin.bfloat16
    assert mesh.counters.live_tensors == live + 2
    got = result.cpu().to_numpy()[0, 0]
    for row in range(rows):
        output = outputs[row] + 2 * [int(tokens[row])] * counted[row]
        want = penalised(values[row], prompts[row], output, *(weights[name][row] for name in weights))
        np.testing.assert_allclose(got[row], want, rtol=1e-5, atol=1e-5)
    for tensor in (result, logits, sampled):
        ttnn_twin.deallocate(tensor)
    mesh.faults.fail("deallocate", at=2)
    with pytest.raises(RuntimeError, match="injected"):
        held.release()
    held.release()
    held.release()
    assert mesh.counters.live_tensors == 0


class Server:
    """Two requests on an executor with penalties; recomputes every token from scratch."""

    def __init__(self, bench: Bench, mode: str, **penalties: Any) -> None:
        checkpoint = tiny_checkpoint()
        self.oracle = NumpyLlama(checkpoint.config, checkpoint.tensor)
        model = bench.model(log_probs="enable_log_probs" in penalties)
        self.controller = SamplingStateController1D(model.sampling)
        self.state = self.controller.create_state()
        options = {
            "sampling_state_controller": self.controller,
            "sampling_state": self.state,
            "disable_batched_prefill": False,
            "request_state_fields": ("prompt_tokens", "output_tokens", "slot_remap"),
        }
        self.executor = bench.executor(model=model, mode=mode, options=options, num_blocks=64)
        hints = {
            "kv_cache": self.executor.allocate_kv_cache(),
            "can_sample_on_device": True,
            "enable_trace": mode == "all",
        }
        self.executor.warmup_model_prefill(**hints)
        self.executor.warmup_model_decode(**hints, max_batch_size=2, num_blocks=16)
        self.table = np.arange(16, dtype=np.int32).reshape(2, 8)
        self.outputs: list[list[int]] = [[], []]
        self.penalties = {**PENALTIES, **penalties}

    def params(self) -> SamplingParams:
        return SamplingParams(temperature=[0.0] * 2, top_k=[1] * 2, top_p=[1.0] * 2, **self.penalties)

    def want(self, row: int) -> int:
        prompt, output = PROMPTS[row], self.outputs[row]
        logits = self.oracle.logits([*prompt, *output])[-1]
        weights = (self.penalties[f"{name}_penalty"][row] for name in ("presence", "frequency", "repetition"))
        return int(penalised(logits, prompt, output, *weights).argmax())

    def prefill(self) -> None:
        width = max(map(len, PROMPTS))
        tokens = np.array([[*prompt, *[0] * (width - len(prompt))] for prompt in PROMPTS])
        want = [self.want(row) for row in range(2)]
        got, _ = self.executor.prefill_forward(
            tokens=tokens,
            page_table=self.table[:, :1].copy(),
            prompt_lens=np.array([len(prompt) for prompt in PROMPTS]),
            empty_slots=[0, 1],
            sampling_params=self.params(),
        )
        self.take(got, want)

    def step(self, **commands: Any) -> None:
        want = [self.want(row) for row in range(2)]
        got, _ = self.executor.decode_forward(**self.call(), sampling_params=self.params(), **commands)
        self.take(got, want)

    def call(self) -> dict[str, Any]:
        return {
            "tokens": np.array([output[-1] for output in self.outputs]),
            "start_pos": np.array([len(p) + len(o) - 1 for p, o in zip(PROMPTS, self.outputs, strict=True)]),
            "page_table": self.table,
        }

    def histories(self) -> dict[str, Any]:
        return {"prompt_tokens": _padded(PROMPTS), "output_tokens": _padded(self.outputs)}

    def take(self, got: Any, want: list[int]) -> None:
        assert got.tolist() == want
        for output, token in zip(self.outputs, want, strict=True):
            output.append(token)


def _padded(rows: Any) -> npt.NDArray[Any]:
    width = max(map(len, rows))
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows])


@pytest.mark.parametrize("mode", ["none", "all"])
@pytest.mark.parametrize("contract", ["inferred", "commanded"])
def test_tokens_are_those_of_penalties_recomputed_from_scratch(bench: Bench, mode: str, contract: str) -> None:
    server = Server(bench, mode)
    server.prefill()
    first: dict[str, Any] = {"reset_batch": True}
    steady: dict[str, Any] = {}
    if contract == "commanded":
        first = {"reload_inputs": True, "reload_sampling_params": True, "reset_sampling_state": True}
        steady = {"reload_inputs": mode == "none"}
    server.step(**first, **server.histories())
    uploads = bench.mesh.counters.calls["copy_host_to_device_tensor"]
    for _ in range(12):
        server.step(**steady)
    if mode == "all":
        # The seeds of each step, and nothing else: counts grow on the device.
        assert bench.mesh.counters.calls["copy_host_to_device_tensor"] - uploads == 12
    plain = [server.oracle.greedy(prompt, max_new_tokens=14) for prompt in PROMPTS]
    assert [a != b for a, b in zip(server.outputs, plain, strict=True)] == [True, True]


def test_changed_penalties_apply_from_the_next_token_on(bench: Bench) -> None:
    server = Server(bench, "all")
    server.prefill()
    server.step(reset_batch=True, **server.histories())
    server.step()
    server.penalties["repetition_penalty"] = [1.5, 20.0]
    for _ in range(4):
        server.step()


@pytest.mark.parametrize("between", ["prefill", "host", "plain", "remap"])
def test_counts_that_miss_a_token_need_a_reset(bench: Bench, between: str) -> None:
    server = Server(bench, "all")
    server.prefill()
    if between != "prefill":
        server.step(reset_batch=True, **server.histories())
    remap: dict[str, Any] = {}
    if between == "host":
        logits, _ = server.executor.decode_forward(**server.call())
        server.take(logits[:, 0].argmax(-1), logits[:, 0].argmax(-1).tolist())
    elif between == "plain":
        kept, server.penalties = server.penalties, {name: [float("rep" in name)] * 2 for name in PENALTIES}
        server.step()
        server.penalties = kept
    elif between == "remap":
        remap = {"slot_remap": [1, 0]}
    calls = bench.mesh.counters.calls.copy()
    with pytest.raises(RuntimeError, match="complete token counts: reset"):
        server.executor.decode_forward(**server.call(), sampling_params=server.params(), **remap)
    assert bench.mesh.counters.calls == calls
    server.step(reset_batch=True, **server.histories())
    server.step()


@pytest.mark.parametrize(
    ("history", "match"),
    [
        ({}, "need prompt_tokens"),
        ({"prompt_tokens": [[1], [2]], "output_tokens": [[3], [256]]}, r"output_tokens\[1\] holds 256"),
    ],
)
def test_a_reset_without_a_usable_history_is_refused_before_device_work(
    bench: Bench, history: dict[str, Any], match: str
) -> None:
    server = Server(bench, "all")
    server.prefill()
    calls = bench.mesh.counters.calls.copy()
    with pytest.raises(ValueError, match=match):
        server.executor.decode_forward(**server.call(), sampling_params=server.params(), reset_batch=True, **history)
    assert bench.mesh.counters.calls == calls
    server.step(reset_batch=True, **server.histories())


def test_log_probabilities_are_those_before_penalties(bench: Bench) -> None:
    server = Server(bench, "all", enable_log_probs=[True, True])
    server.prefill()
    logits = [server.oracle.logits([*p, *o])[-1] for p, o in zip(PROMPTS, server.outputs, strict=True)]
    got, log_probs = server.executor.decode_forward(
        **server.call(), sampling_params=server.params(), reset_batch=True, **server.histories()
    )
    for row, values in enumerate(logits):
        shifted = values.astype(np.float64) - values.max()
        want = shifted[int(got[row])] - np.log(np.exp(shifted).sum())
        np.testing.assert_allclose(log_probs[row], want, rtol=1e-4, atol=1e-5)
