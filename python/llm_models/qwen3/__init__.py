# SPDX-License-Identifier: Apache-2.0
"""Qwen3: a Llama that norms every query and key head before rotation. See docs/new-model.md."""
