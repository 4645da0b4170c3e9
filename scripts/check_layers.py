# SPDX-License-Identifier: Apache-2.0
"""Checks who may import whom (docs/architecture.md): exits 1 and names every line that breaks a rule."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What a package must never import, at any depth of its files.
FORBIDDEN_IMPORTS = {
    "llm_runtime": {"llm_models", "ttnn", "ttnn_twin"},
    "ttnn_twin": {"llm_models", "llm_runtime", "torch", "ttnn"},
    "llm_models": {"ttnn", "torch"},
}
# torch is optional: llm_runtime may import it inside a function that was asked for torch, never on import.
FORBIDDEN_AT_IMPORT = {"llm_runtime": {"torch"}}
FORBIDDEN_INCLUDE = re.compile(r'#include\s*[<"](Python\.h|nanobind|pybind11|torch|ATen|ttnn|tt_metal|bindings/)')


def imported_roots(tree: ast.AST) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.lineno, node.module.split(".")[0]))
    return found


def module_level(tree: ast.Module) -> ast.Module:
    """The tree without function bodies: what runs when the module is imported."""

    class DropFunctions(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    return ast.fix_missing_locations(DropFunctions().visit(tree))


def broken_rules() -> list[str]:
    problems = []
    for package, forbidden in FORBIDDEN_IMPORTS.items():
        for path in sorted((ROOT / "python" / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            hits = [hit for hit in imported_roots(tree) if hit[1] in forbidden]
            at_import = FORBIDDEN_AT_IMPORT.get(package, set())
            hits += [hit for hit in imported_roots(module_level(tree)) if hit[1] in at_import]
            problems += [f"{path.relative_to(ROOT)}:{line}: {package} imports {root}" for line, root in hits]
    for path in sorted((ROOT / "csrc" / "llm_runtime").rglob("*")):
        if path.suffix in {".h", ".cc"}:
            for line, text in enumerate(path.read_text().splitlines(), 1):
                if FORBIDDEN_INCLUDE.search(text):
                    problems.append(f"{path.relative_to(ROOT)}:{line}: the core includes {text.strip()}")
    return problems


if __name__ == "__main__":
    problems = broken_rules()
    print("\n".join(problems) or "layers: ok")
    sys.exit(bool(problems))
