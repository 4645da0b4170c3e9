# SPDX-License-Identifier: Apache-2.0
"""The Llama family: a model body in ttnn's op vocabulary, its weights, sampling and runtime policy."""
