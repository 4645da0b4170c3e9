# SPDX-License-Identifier: Apache-2.0
"""What the packages use of a device namespace, read from their sources: attribute chains and keywords of calls."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("llm_runtime", "llm_models")
_NAMESPACE_NAMES = {"ns", "namespace", "_ns", "_namespace"}


def namespace_uses() -> dict[str, set[str]]:
    """Keywords by name (`experimental.paged_fill_cache`, `bfloat16` …) of everything that is looked up in a namespace.

    Keywords of calls through a local alias are not seen; recorded calls show those.
    """
    uses: dict[str, set[str]] = {}
    for tree in _trees():
        for node in ast.walk(tree):
            name = _looked_up(node)
            if name is not None:
                uses.setdefault(name, set())
            if isinstance(node, ast.Call):
                called = _chain(node.func)
                if called is not None:
                    uses.setdefault(called, set()).update(word.arg for word in node.keywords if word.arg)
    longest = {name for name in uses if not any(other.startswith(f"{name}.") for other in uses)}
    return {name: uses[name] for name in sorted(longest)}


def attributes() -> set[str]:
    """Names of all attributes that the packages read or call, of whatever object."""
    return {node.attr for tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _trees() -> Iterator[ast.Module]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def _looked_up(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return _chain(node)
    # getattr(namespace, "record_event", None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        target, name = node.args[0], node.args[1]
        if _is_namespace(target) and isinstance(name, ast.Constant) and isinstance(name.value, str):
            return name.value
    return None


def _chain(node: ast.AST) -> str | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute) and not _is_namespace(node):
        names.append(node.attr)
        node = node.value
    return ".".join(reversed(names)) if names and _is_namespace(node) else None


def _is_namespace(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _NAMESPACE_NAMES
    return isinstance(node, ast.Attribute) and node.attr in _NAMESPACE_NAMES
