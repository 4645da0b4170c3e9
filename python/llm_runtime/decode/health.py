# SPDX-License-Identifier: Apache-2.0
"""Whether a decode runtime may take new work: retained transients and failed submissions.

Follows chapter 20, sections 1.6, 1.7 and 5.8.
"""

from __future__ import annotations

from typing import Any

from llm_runtime.tensor_resources import (
    TensorResourceOrphan,
    raise_cleanup_failures,
    release_or_retain,
    release_orphans,
)

__all__ = ["DecodeHealth"]


class DecodeHealth:
    """Owns transients whose release failed, and remembers a failure that left device state unknown.

    ``blocked`` says whether :meth:`require_usable` would refuse; a hot path reads it instead of calling.
    """

    def __init__(self) -> None:
        self._orphans: list[TensorResourceOrphan] = []
        self.failed = False
        self.blocked = False

    @property
    def orphan_count(self) -> int:
        """Trees that wait for another release attempt."""
        return len(self._orphans)

    def release(self, values: Any) -> list[BaseException]:
        """Free ``values``; what cannot be freed is retained and blocks new work. Returns the failures."""
        failures = release_or_retain(values, self._orphans)
        if failures:
            self.blocked = True
        return failures

    def invalidate(self) -> None:
        """Refuse all further work: a submission failed after device work may have begun."""
        self.failed = self.blocked = True

    def require_usable(self) -> None:
        """RuntimeError when failed (terminal) or while transients are unreleased (until a cleanup)."""
        if self.failed:
            raise RuntimeError(
                "an earlier decode submission failed after device work began; the state on the device is "
                "unknown: clean up and rebuild the executor"
            )
        if self._orphans:
            raise RuntimeError(
                f"the decode runtime holds {len(self._orphans)} unreleased transients; call cleanup_transients first"
            )

    def cleanup(self) -> None:
        """Retry every retained release; the first failure is raised with the others attached."""
        if not self._orphans:
            return
        failures = release_orphans(self._orphans)
        self.blocked = self.failed or bool(self._orphans)
        if failures:
            raise_cleanup_failures(failures)
