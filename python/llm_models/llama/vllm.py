# SPDX-License-Identifier: Apache-2.0
"""The Llama class that a vLLM server registers as `TTLlamaForCausalLM`. Follows chapter 40, sections C.5 and D.

Importing this module opens no device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from llm_models.checkpoints import LlamaCheckpoint, load_checkpoint
from llm_models.llama.model import LlamaModel
from llm_models.llama.tile_end_warmup import TileEndWarmup
from llm_models.llama.vllm_build import load_lanes
from llm_models.llama.vllm_config import LlamaGeneratorConfig
from llm_models.vllm_lanes import LateVLLMGenerator
from llm_runtime.config import TraceMode

__all__ = ["LlamaForCausalLM"]


class LlamaForCausalLM(LateVLLMGenerator):
    """Llama for a vLLM server: made by `initialize_vllm_model`, ready after `allocate_kv_cache` and warmup.

    A family that is a Llama but for its model sets `model_type` and overrides `load_checkpoint`, and
    `executor_options` when its executor is made differently.
    """

    model_type: ClassVar[type[LlamaModel]] = LlamaModel

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: Any,
        max_batch_size: int,
        max_seq_len: int,
        n_layers: int | None = None,
        tt_data_parallel: int = 1,
        optimizations: str | None = None,
        trace_mode: TraceMode = "all",
        device_sampling_enabled: bool = True,
        **other_options: Any,
    ) -> LlamaForCausalLM:
        """Load the model of `hf_config._name_or_path` onto `mesh_device` (borrowed), one copy per lane.

        `max_batch_size` counts the rows of all `tt_data_parallel` lanes, `max_seq_len` tokens. The defaults are the
        most that a server may ask for later; it narrows them call by call. Options of other servers (`vllm_config`)
        are accepted and ignored. `ValueError` without a model name, and as in `LlamaGeneratorConfig`.
        """
        del other_options
        name = getattr(hf_config, "_name_or_path", None)
        if not name:
            raise ValueError("hf_config._name_or_path is empty: it has to name the checkpoint")
        config = LlamaGeneratorConfig(
            hf_model=str(name),
            mesh_device=mesh_device,
            max_batch_size=max_batch_size,
            max_seq_len=max_seq_len,
            tt_data_parallel=tt_data_parallel,
            n_layers=n_layers,
            optimizations=optimizations,
            trace_mode=trace_mode,
            device_sampling_enabled=device_sampling_enabled,
        )
        return cls(
            *load_lanes(
                config, model_type=cls.model_type, load=cls.load_checkpoint, executor_options=cls.executor_options
            )
        )

    @staticmethod
    def load_checkpoint(path: Path) -> LlamaCheckpoint:
        """Open the checkpoint at `path`."""
        return load_checkpoint(path)

    @classmethod
    def executor_options(cls, model: LlamaModel) -> dict[str, Any]:
        """What the executor of `model` gets beside its policy; a family with another warmup overrides it."""
        del model
        return {"prefill_warmup": TileEndWarmup()}

    @classmethod
    def get_max_tokens_all_users(
        cls, *, model_name: str, num_devices: int, tt_data_parallel: int, max_model_len: int, max_num_seqs: int
    ) -> int:
        """KV tokens that one lane should have room for: one sequence of full length.

        The server adds a block per row. Nothing here depends on the number of devices or lanes.
        """
        del model_name, num_devices, tt_data_parallel, max_num_seqs
        return max_model_len
