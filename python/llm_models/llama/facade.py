# SPDX-License-Identifier: Apache-2.0
"""A Llama as one object: `from_pretrained`, `generate`, `cleanup`. Follows chapter 40, section E."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llm_models.executor import ModelExecutor, ModelExecutorConfig
from llm_models.llama.facade_inputs import read_prompts
from llm_models.llama.facade_load import load
from llm_models.llama.facade_options import UNSET, GenerationConfig, resolve_options
from llm_models.llama.facade_run import GenerationRun, Tokens, ready_executor
from llm_models.llama.model import LlamaModel
from llm_models.llama.runtime_config import LlamaRuntimeConfig
from llm_runtime.host_arrays import result_like

__all__ = ["LlamaLLM"]


class LlamaLLM:
    """Owns a model and its executor; the mesh is borrowed and never closed here.

    `random` draws for stochastic generation; give it a seeded generator to repeat a text. Calls are exclusive: a
    second `generate` or a `cleanup` while one runs is a `RuntimeError`.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        runtime_config: LlamaRuntimeConfig,
        tokenizer: Any = None,
        instruct: bool = True,
        generation_config: GenerationConfig | None = None,
        executor: ModelExecutor | None = None,
        max_context_len: int | None = None,
    ) -> None:
        self.model = model
        self.runtime_config = runtime_config
        self.tokenizer = tokenizer
        self.instruct = instruct
        self.executor = executor
        self.random = np.random.default_rng()
        config = generation_config or GenerationConfig()
        if not config.eos_token_ids and tokenizer is not None:
            config = GenerationConfig(**{**vars(config), "eos_token_ids": tuple(tokenizer.stop_tokens)})
        self.generation_config = config
        model.model_args = runtime_config
        self._context = min(model.config.max_seq_len, max_context_len or model.config.max_seq_len)
        self._busy = threading.Lock()
        self._terminal = self._cleaned = False

    @classmethod
    def from_pretrained(
        cls,
        mesh_device: Any,
        *,
        hf_model: str = "smollm2",
        hf_revision: str | None = None,
        instruct: bool = True,
        max_batch_size: int = 32,
        max_seq_len: int = 4096,
        optimizations: str | None = "accuracy",
        n_layers: int | None = None,
        dtype: Any = None,
        paged_attention_config: Any = None,
        cache_dir: str | Path | None = None,
        executor_config: ModelExecutorConfig | None = None,
    ) -> LlamaLLM:
        """Load a checkpoint and build its executor.

        `hf_model` is a path, `smollm2`, or a model of the Hugging Face hub (`hf_revision`, `cache_dir`), which is
        downloaded unless the cache has it or `HF_HUB_OFFLINE` forbids it. `dtype` is the device type of the matrices:
        what `optimizations` says ("performance": bfloat8_b, else bfloat16) unless given.
        `max_batch_size` rows of `max_seq_len` tokens get a KV cache of blocks of 32, unless `paged_attention_config`
        (`block_size`, `max_num_blocks`) or `executor_config` say otherwise; both must then agree. By default nothing
        is traced and tokens are picked on the host. `TypeError` for another kind of `executor_config`, `ValueError`
        for sizes; a later failure releases what was made and is raised unchanged.
        """
        loaded: LlamaLLM = load(
            cls,
            mesh_device,
            hf_model=hf_model,
            hf_revision=hf_revision,
            instruct=instruct,
            max_batch_size=max_batch_size,
            max_seq_len=max_seq_len,
            optimizations=optimizations,
            n_layers=n_layers,
            dtype=dtype,
            paged_attention_config=paged_attention_config,
            cache_dir=cache_dir,
            executor_config=executor_config,
        )
        return loaded

    def generate(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        *,
        max_new_tokens: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        eos_token_id: Any = UNSET,
        pad_token_id: int | None = None,
        **unsupported: Any,
    ) -> Any:
        """Continue every row of `input_ids` [N, width]; returns int64 [N, width + new] in the same kind of array.

        Rows may be padded on the left or right (see `attention_mask`); new tokens stand behind the given columns, rows
        that ended are filled with the padding id, and the result is only as wide as the longest row needs.
        `eos_token_id=None` disables stopping. Options default to the checkpoint's. `TypeError` for other options,
        `ValueError` for values and for checkpoint options that cannot be honoured, `RuntimeError` after `cleanup` or
        while another call runs.
        """
        with self._exclusive():
            run, given = self._plan(
                input_ids,
                attention_mask,
                unsupported,
                max_new_tokens=max_new_tokens,
                do_sample=do_sample,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                eos_token_id=eos_token_id,
                pad_token_id=pad_token_id,
            )
            columns = [] if run is None else list(self._run(run))
            grown = np.concatenate([given, *[column[:, None] for column in columns]], axis=1)
            return result_like(input_ids)(grown)

    def generate_stream(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> Iterator[Any]:
        """`generate` step by step: one int64 [N] per new token, as soon as it is there.

        Arguments are checked at once; the object is busy from the first step until the iterator is used up or closed.
        """
        unsupported = {name: value for name, value in options.items() if name not in _OPTIONS}
        chosen = {name: options.get(name, default) for name, default in _OPTIONS.items()}
        with self._exclusive():
            run, _ = self._plan(input_ids, attention_mask, unsupported, **chosen)
        like = result_like(input_ids)

        def stream() -> Iterator[Any]:
            with self._exclusive():
                self._require_usable()
                yield from (like(column) for column in self._run(run)) if run is not None else ()

        return stream()

    def cleanup(self) -> None:
        """Release the executor, then the model; idempotent, the mesh stays open.

        When the executor cannot be cleaned its failure is raised and the model is kept, because the cache may still be
        bound to it; the call can be repeated.
        """
        with self._exclusive():
            self._terminal = True
            if self._cleaned:
                return
            if self.executor is not None:
                self.executor.cleanup()
            self.model.release()
            self._cleaned = True

    def _plan(
        self, input_ids: Any, attention_mask: Any, unsupported: dict[str, Any], **options: Any
    ) -> tuple[GenerationRun | None, Tokens]:
        if unsupported:
            raise TypeError(f"generate() does not support {', '.join(sorted(unsupported))}")
        if self.generation_config.unsupported:
            names = ", ".join(self.generation_config.unsupported)
            raise ValueError(f"the checkpoint's generation options {names} cannot be honoured")
        self._require_usable()
        vocab_size = self.model.vocab_size
        resolved = resolve_options(self.generation_config, vocab_size=vocab_size, **options)
        padding = resolved.configured_pad
        prompts = read_prompts(
            input_ids,
            attention_mask,
            vocab_size=vocab_size,
            capacity=self.model.config.max_batch_size,
            padding_id=None if padding in resolved.eos_ids else padding,
        )
        run = GenerationRun(self.executor, prompts, resolved, context=self._context, random=self.random)
        return (run if resolved.max_new_tokens else None), prompts.given

    def _run(self, run: GenerationRun) -> Iterator[Tokens]:
        ready_executor(self.executor)
        yield from run.steps()

    def _require_usable(self) -> None:
        if self._terminal:
            raise RuntimeError("this model was cleaned up: load it again")
        if self.executor is None or self.executor.terminal:
            raise RuntimeError("this model has no executor that could generate")

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this model is busy: generate and cleanup are exclusive")
        try:
            yield
        finally:
            self._busy.release()


_OPTIONS: dict[str, Any] = {
    "max_new_tokens": None,
    "do_sample": None,
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "eos_token_id": UNSET,
    "pad_token_id": None,
}
