# SPDX-License-Identifier: Apache-2.0
"""Qwen2: a Llama whose query, key and value projections have biases. See docs/new-model.md."""
