# SPDX-License-Identifier: Apache-2.0
"""The sampler's seeds on the device, for models that keep them as one tensor. Follows chapter 20, section 5.5."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from llm_runtime.device import namespace_of
from llm_runtime.host_slots import HostSlot, host_slot

__all__ = ["DeviceSeedBuffer"]

Seeds = npt.NDArray[np.uint32]


class DeviceSeedBuffer:
    """One seed per sampler row, uint32 [rows]. `source` holds the defaults, which loading uploads.

    Borrows the mesh; owns the device tensor from `load` to `release`.
    """

    def __init__(self, mesh_device: Any, rows: int) -> None:
        self.source: Seeds = np.arange(1, rows + 1, dtype=np.uint32)
        self._mesh = mesh_device
        self._ns = namespace_of(mesh_device)
        self._buffer: Any = None
        # What the buffer holds, or will hold once it is loaded; None while nobody knows.
        self._held: bytes | None = self.source.tobytes()
        self._slots: dict[int, HostSlot | None] = {}

    def load(self) -> None:
        """Make the device buffer and fill it with the defaults; does nothing when it is there."""
        if self._buffer is None:
            self._buffer = self._ns.to_device(self._ns.Tensor(self.source.copy(), self._ns.uint32), device=self._mesh)

    def get_device_buffer(self) -> Any:
        """The device tensor, the same until `release`."""
        if self._buffer is None:
            self.load()
        return self._buffer

    def update(self, values: Seeds) -> None:
        """Write uint32 [rows] into the buffer in place, unless it holds them already.

        A queued copy may read `values` later, so they must not be written to any more.
        """
        content = values.tobytes()
        if content != self._held:
            self._write(self._ns.Tensor(values, self._ns.uint32), content)

    def update_staged(self, values: Seeds, staging_set: int) -> None:
        """As `update`, through the host tensor of a staging set, so that `values` may change at once.

        Only for a caller that knows no queued copy to read this set's tensor any more.
        """
        content = values.tobytes()
        if content == self._held:
            return
        if staging_set not in self._slots:
            self._slots[staging_set] = host_slot(self._ns, values.shape, np.uint32, self._ns.uint32)
        slot = self._slots[staging_set]
        if slot is None:
            self._write(self._ns.Tensor(values.copy(), self._ns.uint32), content)
        else:
            slot.elements[...] = values
            self._write(slot.tensor, content)

    def release(self) -> None:
        """Free the buffer; it can be loaded again. Idempotent."""
        if self._buffer is not None:
            self._ns.deallocate(self._buffer)
            self._buffer, self._held = None, self.source.tobytes()

    def _write(self, host: Any, content: bytes) -> None:
        buffer = self.get_device_buffer()
        self._held = None  # should the copy fail, nobody knows what the buffer holds
        self._ns.copy_host_to_device_tensor(host, buffer)
        self._held = content
