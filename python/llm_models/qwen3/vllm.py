# SPDX-License-Identifier: Apache-2.0
"""The Qwen3 class that a vLLM server registers as `TTQwen3ForCausalLM`; importing it opens no device."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama.model import LlamaModel
from llm_models.llama.tile_end_warmup import TileEndWarmup
from llm_models.llama.vllm import LlamaForCausalLM
from llm_models.qwen3.checkpoint import load_qwen3
from llm_models.qwen3.model import Qwen3Model

__all__ = ["Qwen3ForCausalLM", "capture_prime_lengths"]

_PRIMED_LENGTHS = {(1, 8): (128, 1024)}


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3 for a vLLM server; beside model and checkpoints its executors differ from Llama's in their warmup."""

    model_type = Qwen3Model

    @staticmethod
    def load_checkpoint(path: Path) -> LlamaCheckpoint:
        """Open the Qwen3 folder at `path`."""
        return load_qwen3(path)

    @classmethod
    def executor_options(cls, model: LlamaModel) -> dict[str, Any]:
        """Tile ends behind the default warmup when eager, and waves that run once before their capture."""
        return {
            "prefill_warmup": TileEndWarmup(eager_order="after"),
            "trace_capture_prime_sequence_lengths": capture_prime_lengths(
                model.config.mesh_device.shape, model.model_args.trace_prefill_supported_seq_lens
            ),
        }


def capture_prime_lengths(mesh_shape: Iterable[int], traced_lengths: Iterable[int]) -> tuple[int, ...]:
    """The wave lengths in tokens whose body runs once before it is captured, on a mesh of (rows, columns).

    Eight devices in one row prime 128 and 1024 as far as those are traced, other meshes nothing. Follows chapter 10,
    section 9.2.
    """
    rows, columns = mesh_shape
    traced = set(traced_lengths)
    return tuple(length for length in _PRIMED_LENGTHS.get((rows, columns), ()) if length in traced)
