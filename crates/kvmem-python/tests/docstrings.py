"""Copies the docstrings of the stub into the sources of the extension.

Type checkers and editors read the stub; ``help()`` reads the sources. The test compares both, and
``python tests/docstrings.py`` copies. Lines of both end by column 100.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parent / "src"
STUB = HERE.parent / "python" / "kvmem" / "_kvmem.pyi"
SHARED = {"_Memory": "memory_methods", "_TierValues": "tier_methods"}
"""Classes of the stub that are a macro in the sources."""


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


def rust(docstring: str, indent: str) -> str:
    """Returns the docstring as a Rust comment."""
    return "".join(f"{indent}/// {line}".rstrip() + "\n" for line in docstring.splitlines())


def replaced(text: str, item: str, docstring: str, start: int, end: int) -> str:
    """Returns the source with the docstring before an item, which is searched between two
    positions.
    """
    found = re.compile(rf"^(?P<indent> *){item}", re.M).search(text, start, end)
    if found is None:
        raise LookupError(f"there is no {item}")
    lines = text[: found.start()].splitlines(keepends=True)
    after = len(lines)
    # Up over attributes, which may span several lines, and ordinary comments.
    while re.match(r" *//[^/]|.*\]$", lines[after - 1].rstrip("\n")):
        attribute = lines[after - 1].rstrip().endswith("]")
        after -= 1
        while attribute and not lines[after].lstrip().startswith("#["):
            after -= 1
    before = after
    while lines[before - 1].lstrip().startswith("///"):
        before -= 1
    lines[before:after] = [rust(docstring, found["indent"])]
    return "".join(lines) + text[found.start() :]


def write() -> None:
    """Copies the docstrings of the stub into the sources."""
    files = {path: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.rs")}
    for kind, function, docstring in documented():
        if not docstring:
            continue
        for path, text in files.items():
            if not kind:
                if re.search(rf"fn {function}[<(]", text) and "#[pyfunction]" in text:
                    files[path] = replaced(
                        text, rf"pub\(crate\) fn {function}\b", docstring, 0, len(text)
                    )
                continue
            class_ = re.search(
                rf'#\[pyclass\(name = "{kind}".*\n(?:#.*\n)*pub\(crate\) struct (\w+)', text
            )
            if kind in SHARED:
                start, end = text.find(f"macro_rules! {SHARED[kind]}"), len(text)
                if start >= 0:
                    files[path] = replaced(text, rf"fn {function}\b", docstring, start, end)
            elif class_ and not function:
                files[path] = replaced(
                    text, rf"pub\(crate\) struct {class_[1]}\b", docstring, 0, len(text)
                )
            elif class_:
                for methods in re.finditer(rf"^#\[pymethods\]\nimpl {class_[1]} {{\n", text, re.M):
                    end = text.index("\n}\n", methods.end())
                    if re.search(
                        rf"^ *(?:pub\(crate\) )?fn {function}\b", text[methods.end() : end], re.M
                    ):
                        files[path] = replaced(
                            text,
                            rf"(?:pub\(crate\) )?fn {function}\b",
                            docstring,
                            methods.end(),
                            end,
                        )
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
