# SPDX-License-Identifier: Apache-2.0
"""Makes one fatal call on ttnn, in a process of its own: `python -m support.conformance.fatal TITLE`."""

from __future__ import annotations

import importlib
import sys

from support.conformance.calls import run
from support.conformance.cases import calls


def main(title: str) -> None:
    """Open a mesh, make the call; a process that comes back says so."""
    ttnn = importlib.import_module("ttnn")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    call = next(call for call in calls() if call.fatal and call.title == title)
    print("survived:", run(call, ttnn, {"mesh": mesh}))


if __name__ == "__main__":
    main(sys.argv[1])
