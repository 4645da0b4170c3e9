# SPDX-License-Identifier: Apache-2.0
"""Reusable execution toolkit for autoregressive language models on Tenstorrent devices.

Import from the submodules; this package re-exports nothing and imports neither torch nor ttnn.
"""

__version__ = "0.1.0"
