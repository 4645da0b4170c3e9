# SPDX-License-Identifier: Apache-2.0
"""Exclusive ownership of the physical paged KV cache (chapter 30, section 6)."""

from llm_runtime.paged_kv_cache.dtypes import torch_dtype_for_ttnn
from llm_runtime.paged_kv_cache.manager import PagedKVCacheContext, PagedKVCacheManager

__all__ = ["PagedKVCacheContext", "PagedKVCacheManager", "torch_dtype_for_ttnn"]
