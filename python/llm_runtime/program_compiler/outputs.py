# SPDX-License-Identifier: Apache-2.0
"""What compile runs leave behind: looked at while it is allocated, then released. Follows chapter 30, section 2.4."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from llm_runtime.device import namespace_of
from llm_runtime.program_compiler.values import OutputSpec
from llm_runtime.tensor_resources import (
    TensorResourceOrphan,
    attach_cleanup_failures,
    raise_counted_failures,
    release_or_retain,
    release_orphans,
)

__all__ = ["CompileOutputs"]


class CompileOutputs:
    """Releases compile outputs of one mesh (borrowed); owns those whose release failed."""

    def __init__(self, mesh_device: Any) -> None:
        self._mesh = mesh_device
        self._orphans: list[TensorResourceOrphan] = []

    @property
    def orphan_count(self) -> int:
        """Outputs whose release failed and is still due."""
        return len(self._orphans)

    def inspect_and_release(
        self,
        output: Any,
        owned: Any,
        output_spec: Callable[[Any], OutputSpec],
        expected: OutputSpec | None,
    ) -> OutputSpec:
        """The output's contract, described before `owned` is released; the device has settled before and after.

        `ValueError` for another contract than `expected`, `RuntimeError` when something cannot be released.
        """
        try:
            self._synchronize()
            spec = output_spec(output)
            if expected is not None and spec != expected:
                raise ValueError(f"program output is {spec}, expected {expected}")
        except BaseException as primary:
            attach_cleanup_failures(primary, self._release_and_synchronize(owned))
            raise
        failures = release_or_retain(owned, self._orphans)
        try:
            self._synchronize()
        except BaseException as primary:
            attach_cleanup_failures(primary, failures)
            raise
        if failures:
            raise_counted_failures("failed to release the compile output", failures)
        return spec

    def release_orphans(self) -> None:
        """Try again what could not be released; `RuntimeError` with the count of what still cannot."""
        failures = release_orphans(self._orphans)
        if failures:
            raise_counted_failures("failed to release compile outputs", failures)

    def _release_and_synchronize(self, owned: Any) -> list[BaseException]:
        failures = release_or_retain(owned, self._orphans)
        try:
            self._synchronize()
        except BaseException as error:
            failures.append(error)
        return failures

    def _synchronize(self) -> None:
        self._namespace.synchronize_device(self._mesh)

    @cached_property
    def _namespace(self) -> Any:
        return namespace_of(self._mesh)
