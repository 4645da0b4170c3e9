# SPDX-License-Identifier: Apache-2.0
"""What a server wants of a Llama before its KV cache is known. Follows chapter 40, section C.5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_models.llama.model_config import require_positive_int
from llm_runtime._validation import require_bool
from llm_runtime.config import TraceConfig, TraceMode

__all__ = ["LlamaGeneratorConfig"]


@dataclass(frozen=True, kw_only=True)
class LlamaGeneratorConfig:
    """Capacity and policy of a generator over `tt_data_parallel` lanes; `mesh_device` is borrowed.

    `max_batch_size` counts the rows of all lanes, `max_seq_len` tokens; `n_layers` cuts the model short.
    `optimizations` "performance" keeps matrices in bfloat8_b, anything else (also `None`) in bfloat16.
    `ValueError` or `TypeError` naming the field.
    """

    hf_model: str
    mesh_device: Any
    max_batch_size: int
    max_seq_len: int
    tt_data_parallel: int = 1
    n_layers: int | None = None
    optimizations: str | None = None
    trace_mode: TraceMode = "decode_only"
    device_sampling_enabled: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.hf_model, str) or not self.hf_model:
            raise ValueError(f"hf_model must be a non-empty str, got {self.hf_model!r}")
        if self.mesh_device is None:
            raise ValueError("mesh_device must not be None")
        for name in ("max_batch_size", "max_seq_len", "tt_data_parallel"):
            require_positive_int(name, getattr(self, name))
        if self.n_layers is not None:
            require_positive_int("n_layers", self.n_layers)
        if self.max_batch_size % self.tt_data_parallel:
            raise ValueError(f"max_batch_size {self.max_batch_size} does not divide into {self.tt_data_parallel} lanes")
        require_bool(self.device_sampling_enabled, name="device_sampling_enabled")
        TraceConfig(self.trace_mode)

    @property
    def lane_batch_size(self) -> int:
        """Rows of one lane."""
        return self.max_batch_size // self.tt_data_parallel
