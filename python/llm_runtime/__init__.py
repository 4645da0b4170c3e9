# SPDX-License-Identifier: Apache-2.0
"""Reusable execution toolkit for autoregressive language models on Tenstorrent devices.

Import from the submodules; this package re-exports nothing and imports neither torch nor ttnn.
"""

import os

__version__ = "0.1.0"

if os.environ.get("LLM_RUNTIME_PROFILE"):
    from llm_runtime.profiling import start_from_environment

    start_from_environment()
