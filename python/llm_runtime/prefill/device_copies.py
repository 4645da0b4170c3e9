# SPDX-License-Identifier: Apache-2.0
"""Uploads and in-place copies of lists of host tensors. Follows chapter 10, section 8.4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llm_runtime.device import namespace_of, tensor_namespace
from llm_runtime.tensor_resources import attach_cleanup_failures, best_effort_deallocate_owned_tensors

#: Releases a nested value and returns the failures; what could not be released is kept for a retry.
ReleaseTransient = Callable[[Any], list[BaseException]]


def namespace_of_tensor(tensor: Any) -> Any:
    """The device namespace of a tensor; ``TypeError`` for anything else."""
    namespace = tensor_namespace(tensor)
    if namespace is None:
        raise TypeError(f"a device tensor is needed, got {type(tensor).__name__}")
    return namespace


def allocate_device_tensors(
    host_tensors: Sequence[Any],
    *,
    mesh_device: Any,
    release: ReleaseTransient = best_effort_deallocate_owned_tensors,
) -> list[Any]:
    """Upload each host tensor (``None`` stays ``None``); on failure what was uploaded goes to ``release``."""
    namespace = namespace_of(mesh_device)
    device: list[Any] = []
    try:
        for host in host_tensors:
            device.append(None if host is None else namespace.to_device(host, device=mesh_device))
    except BaseException as error:
        attach_cleanup_failures(error, release(device))
        raise
    return device


def copy_into_device_tensors(host_tensors: Sequence[Any], device_tensors: Sequence[Any]) -> Sequence[Any]:
    """Copy host tensors into existing device tensors pairwise; nothing is allocated.

    ``ValueError`` before any copy when the lengths differ or only one side of a pair is ``None``.
    """
    if len(host_tensors) != len(device_tensors):
        raise ValueError(
            f"host/device structure differs: {len(host_tensors)} host tensors, {len(device_tensors)} device tensors"
        )
    pairs = list(zip(host_tensors, device_tensors, strict=True))
    for index, (host, device) in enumerate(pairs):
        if (host is None) != (device is None):
            present = "device" if host is None else "host"
            raise ValueError(f"host/device structure differs: optional tensor {index} exists on the {present} only")
    for host, device in pairs:
        if host is not None:
            namespace_of_tensor(device).copy_host_to_device_tensor(host, device)
    return device_tensors
