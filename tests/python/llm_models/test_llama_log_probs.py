# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of sampled tokens: the sampler's values, and prefill and decode in row order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ttnn_twin
from llm_models.llama.sampling import Sampling1D, Sampling1DConfig
from llm_runtime.prefill.sampling_helpers import SamplingParams
from oracle.numpy_llama import NumpyLlama
from support.executors import Bench
from support.llama import tiny_checkpoint

VOCABULARY = 256


def log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: npt.NDArray[Any] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


@pytest.mark.parametrize("rows", [1, 5, 32])
def test_values_are_those_of_the_model_whatever_the_sampler_is_told(rows: int) -> None:
    mesh = ttnn_twin.open_mesh_device(ttnn_twin.MeshShape(1, 1))
    sampler = Sampling1D(Sampling1DConfig(mesh_device=mesh, vocab_size=VOCABULARY, supports_log_probs=True))
    sampler.load_device_buffers()
    values = 3 * np.random.default_rng(rows).standard_normal((rows, VOCABULARY)).astype(np.float32)

    def upload(array: npt.NDArray[Any], dtype: Any, layout: Any = None) -> Any:
        return ttnn_twin.to_device(ttnn_twin.Tensor(array, dtype, layout=layout), device=mesh)

    logits = upload(values[None, None].copy(), ttnn_twin.bfloat16, ttnn_twin.TILE_LAYOUT)
    options = {
        "k": upload(np.full(32, 20, np.uint32), ttnn_twin.uint32),
        "p": upload(np.full(32, 0.9, np.float32), ttnn_twin.bfloat16),
        "temp": upload(np.full(32, 0.5, np.float32), ttnn_twin.bfloat16),
    }
    before = mesh.counters.live_tensors
    tokens, log_probs = sampler.decode_forward(logits, **options, enable_log_probs=True)
    assert mesh.counters.live_tensors == before + 2
    picked = tokens.cpu().to_numpy().reshape(-1)[:rows]
    result = log_probs.cpu().to_numpy().reshape(-1)
    np.testing.assert_allclose(result[:rows], log_softmax(values)[np.arange(rows), picked], rtol=1e-5)
    assert result[rows:].tolist() == [1.0] * (32 - rows)
    assert len(set(picked.tolist()) - set(values.argmax(-1).tolist())) > 0 or rows == 1
    with pytest.raises(ValueError, match="top-k"):
        sampler.decode_forward(logits, enable_log_probs=True)
    ttnn_twin.close_mesh_device(mesh)


def params(rows: int, **changes: Any) -> SamplingParams:
    values: dict[str, Any] = {"temperature": [0.0] * rows, "top_k": [1] * rows, "top_p": [1.0] * rows}
    return SamplingParams(**{**values, **changes})


@pytest.mark.covers("D18")
@pytest.mark.parametrize("mode", ["none", "all"])
def test_prefill_and_decode_give_the_values_of_the_rows_that_ask(bench: Bench, mode: str) -> None:
    checkpoint = tiny_checkpoint()
    oracle = NumpyLlama(checkpoint.config, checkpoint.tensor)
    executor = bench.executor(model=bench.model(log_probs=True), mode=mode, num_blocks=64)
    kv_cache = executor.allocate_kv_cache()
    hints = {"kv_cache": kv_cache, "can_sample_on_device": True, "enable_trace": mode == "all"}
    executor.warmup_model_prefill(**hints)
    executor.warmup_model_decode(**hints, max_batch_size=2, num_blocks=16)
    prompts = [[5, 9, 200, 17], [31, 7]]
    tokens = np.zeros((2, 4), np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    table = np.arange(16, dtype=np.int32).reshape(2, 8)
    # Row 0 wants a value, row 1 does not. This model is sure of its tokens: heat makes it take others.
    wishes = params(
        2, temperature=[20.0] * 2, top_k=[32] * 2, seed=[5, 6], enable_log_probs=[True, False], num_logprobs=[0, -2]
    )
    first, log_probs = executor.prefill_forward(
        tokens=tokens,
        page_table=table[:, :1].copy(),
        prompt_lens=np.array([4, 2]),
        empty_slots=[0, 1],
        sampling_params=wishes,
    )
    histories = [[*prompt, int(token)] for prompt, token in zip(prompts, first, strict=True)]
    want = [log_softmax(oracle.logits(history[:-1])[-1])[history[-1]] for history in histories]
    assert log_probs.dtype == np.float32 and log_probs.shape == (2,)
    np.testing.assert_allclose(log_probs[0], want[0], rtol=1e-4)
    assert log_probs[1] in (pytest.approx(want[1], rel=1e-4), 1.0)
    second, log_probs = executor.decode_forward(
        tokens=first,
        start_pos=np.array([4, 2]),
        page_table=table,
        sampling_params=wishes,
        reset_batch=True,
    )
    want = [
        log_softmax(oracle.logits(history)[-1])[int(token)] for history, token in zip(histories, second, strict=True)
    ]
    assert max(want) < -2.0
    np.testing.assert_allclose(log_probs, want, rtol=1e-4)


@pytest.mark.parametrize("asked", [{"enable_log_probs": [False, True]}, {"enable_log_probs": True, "num_logprobs": 2}])
def test_what_the_sampler_does_not_return_is_refused_by_name(bench: Bench, asked: dict[str, Any]) -> None:
    served = "num_logprobs" in asked
    executor = bench.executor(model=bench.model(log_probs=served), num_blocks=64)
    executor.allocate_kv_cache()
    executor.model.sampling.load_device_buffers()
    calls = bench.mesh.counters.calls.copy()
    match = "row 0 asks for num_logprobs 2" if served else "row 1 asks for log-probabilities"
    with pytest.raises(ValueError, match=match):
        executor.prefill_forward(
            tokens=np.array([[5, 9], [6, 10]]),
            page_table=np.array([[0], [1]], np.int32),
            sampling_params=params(2, **asked),
        )
    with pytest.raises(ValueError, match=match.replace("row", "slot")):
        executor.decode_forward(
            tokens=np.array([5, 6]),
            start_pos=np.array([2, 2]),
            page_table=np.array([[0], [1]], np.int32),
            sampling_params=params(2, **asked),
            reset_batch=True,
        )
    assert bench.mesh.counters.calls == calls
