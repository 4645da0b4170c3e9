# SPDX-License-Identifier: Apache-2.0
"""Decode commands at the server's boundary: `reset_batch`, or the reload contract of version 1 (decision D12)."""

from __future__ import annotations

from typing import Any

from llm_runtime._validation import require_bool

__all__ = ["check_reload_commands"]


def check_reload_commands(
    *,
    reset_batch: Any,
    reload_inputs: Any,
    reload_page_table: Any,
    reload_sampling_params: Any,
    reset_sampling_state: Any,
    can_stay_resident: bool,
) -> dict[str, bool]:
    """The commands to forward, by name: only `reset_batch` while `reload_inputs` is `None`, else the other four.

    `TypeError` unless every command is a bool. `ValueError` for combinations that mean nothing, and for inputs that
    are to stay on the device in a step that cannot keep them (`can_stay_resident`: traced and device-sampled).
    """
    explicit = {
        "reload_page_table": reload_page_table,
        "reload_sampling_params": reload_sampling_params,
        "reset_sampling_state": reset_sampling_state,
    }
    for name, value in {"reset_batch": reset_batch, **explicit}.items():
        require_bool(value, name=name)
    if reload_inputs is None:
        used = [name for name, value in explicit.items() if value]
        if used:
            raise ValueError(f"{used[0]} needs reload_inputs to be given")
        return {"reset_batch": reset_batch}
    require_bool(reload_inputs, name="reload_inputs")
    if reset_batch:
        raise ValueError("reset_batch is no command of the reload contract; use reload_inputs and reset_sampling_state")
    if reload_inputs and reload_page_table:
        raise ValueError("reload_inputs includes the page table: reload_page_table must not be given with it")
    if reset_sampling_state and not reload_inputs:
        raise ValueError("reset_sampling_state needs reload_inputs")
    if not reload_inputs and not can_stay_resident:
        raise ValueError("reload_inputs may be false only in a traced step that samples on the device")
    return {"reload_inputs": reload_inputs, **explicit}
