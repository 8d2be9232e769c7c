"""The docstrings of the stub."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

STUB = Path(__file__).parents[1] / "python" / "kvmem" / "_kvmem.pyi"


def documented() -> Iterator[tuple[str, str, str]]:
    """Yields class (or nothing), function (or nothing) and docstring of everything in the stub."""
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield "", node.name, ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            if not node.name.startswith("_"):
                yield node.name, "", ast.get_docstring(node) or ""
            overloaded: set[str] = set()
            for each in node.body:
                if (
                    isinstance(each, ast.FunctionDef)
                    and not each.name.startswith("__")
                    and each.name not in overloaded
                ):
                    overloaded.add(each.name)
                    yield node.name, each.name, ast.get_docstring(each) or ""
