# SPDX-License-Identifier: Apache-2.0
"""Prefill: planning, identities, staging, traces, eager sequences and results. Import from the submodules."""
