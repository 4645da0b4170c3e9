# SPDX-License-Identifier: Apache-2.0
"""Checks and conversions between a vLLM server's calls and the executors; owns no device resource (chapter 40, C)."""

from llm_runtime.vllm_adapter.adapter import VLLMAdapter
from llm_runtime.vllm_adapter.config import REQUEST_STATE_FIELDS, VLLMAdapterConfig

__all__ = ["REQUEST_STATE_FIELDS", "VLLMAdapter", "VLLMAdapterConfig"]
