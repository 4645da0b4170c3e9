# SPDX-License-Identifier: Apache-2.0
"""Model layer above `llm_runtime`: model executor, Llama family, checkpoints, text generation, command line."""
