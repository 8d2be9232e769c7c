"""The page of documentation runs, and its types are right."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docstrings
import kvmem
import pytest
from conftest import needs_mlock
from kvmem import _kvmem

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "python.md"
FRONT_PAGE = HERE.parent / "README.md"


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


EXAMPLES = examples(PAGE)


@needs_mlock
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    assert len(EXAMPLES) >= 5
    program = tmp_path / "page.py"
    program.write_text("\n".join(EXAMPLES), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_the_front_page_runs(tmp_path: Path) -> None:
    (example,) = examples(FRONT_PAGE)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def mypy(*arguments: str, module: str = "mypy", cwd: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_are_strict(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n".join(EXAMPLES), encoding="utf-8")
    (tmp_path / "front_page.py").write_text("\n".join(examples(FRONT_PAGE)), encoding="utf-8")
    modules = ["page", "front_page"]
    for file in (
        *HERE.glob("*.py"),
        *HERE.glob("distributed/*.py"),
        *(it for it in HERE.glob("engine/*.py") if it.name != "conftest.py"),
        *HERE.parent.glob("benches/*.py"),
    ):
        shutil.copy(file, tmp_path)
        modules.append(file.stem)
    shutil.copytree(HERE.parent / "backend" / "kvmem_build", tmp_path / "kvmem_build")
    # Tests call what has no types. One run checks them and the package: reading the types of NumPy
    # takes most of its time.
    settings = (HERE.parent / "pyproject.toml").read_text(encoding="utf-8")
    override = f"\n[[tool.mypy.overrides]]\nmodule = {modules}\ndisallow_untyped_calls = false\n"
    (tmp_path / "pyproject.toml").write_text(settings + override, encoding="utf-8")
    names = [argument for module in modules for argument in ("-m", module)]
    mypy("--strict", "-p", "kvmem", "-p", "kvmem_build", *names, cwd=tmp_path)


def test_stubs_match_the_extension(tmp_path: Path) -> None:
    allowed = ("--allowlist", str(HERE / "stubtest.txt"), "--ignore-unused-allowlist")
    settings = ("--mypy-config-file", str(HERE.parent / "pyproject.toml"))
    mypy("kvmem", *allowed, *settings, module="mypy.stubtest", cwd=tmp_path)


def test_help_matches_the_stub() -> None:
    """The sources take the docstrings from the stub, by names."""
    documented, missing = {}, []
    for kind, function, docstring in docstrings.documented():
        name = f"{kind}.{function}".strip(".")
        kinds = [
            kvmem.Region,
            kvmem.Piece,
            kvmem.Block,
            kvmem.AttachedBlock,
            kvmem.Pinned,
            kvmem.Reservation,
            kvmem.PinnedValue,
            kvmem.NodeReservation,
        ]
        owners: list[Any] = (
            kinds
            if kind == "_Memory"
            else [kvmem.DiskTier, kvmem.TierSet]
            if kind == "_TierValues"
            else [getattr(_kvmem, kind) if kind else _kvmem]
        )
        if not docstring:
            missing.append(name)
        for owner in owners:
            documented[name] = (
                docstring,
                inspect.getdoc(getattr(owner, function) if function else owner),
            )
    assert not missing, "the stub says nothing of them"
    assert [
        line for line in docstrings.STUB.read_text(encoding="utf-8").splitlines() if len(line) > 100
    ] == []
    assert len(documented) > 150
    assert {name: both for name, both in documented.items() if both[0] != both[1]} == {}


def test_every_option_is_documented() -> None:
    for node in ast.parse(docstrings.STUB.read_text(encoding="utf-8")).body:
        functions = [
            each
            for each in getattr(node, "body", [])
            if isinstance(each, ast.FunctionDef) and each.name == "__new__"
        ]
        for function in functions:
            assert isinstance(node, ast.ClassDef)
            options = [each.arg for each in (*function.args.args[1:], *function.args.kwonlyargs)]
            docstring = ast.get_docstring(node) or ""
            if "the options of :class:`DiskTier`" in docstring:
                docstring += kvmem.DiskTier.__doc__ or ""
            if len(options) > 3:
                assert [each for each in options if f"- ``{each}``: " not in docstring] == [], (
                    node.name
                )


def test_signatures_match_the_stub() -> None:
    """Names, kinds and defaults of parameters, as ``help()`` shows them."""
    compared = 0
    for kind, function in functions_of_the_stub():
        if any(
            "overload" in ast.dump(each) for each in function.decorator_list
        ) or function.name.startswith("__"):
            continue
        if any(
            isinstance(each, ast.Name) and each.id == "property" for each in function.decorator_list
        ):
            continue
        owner: Any = getattr(_kvmem, kind) if kind else _kvmem
        theirs = [
            str(each)
            for each in inspect.signature(getattr(owner, function.name)).parameters.values()
        ]
        arguments = function.args
        plain = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        defaults = [ast.literal_eval(each) for each in arguments.defaults]
        ours = [
            f"{name}={value!r}"
            for name, value in zip(plain[len(plain) - len(defaults) :], defaults, strict=True)
        ]
        ours = plain[: len(plain) - len(defaults)] + ours
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            ours.append(
                each.arg if default is None else f"{each.arg}={ast.literal_eval(default)!r}"
            )
        assert theirs == ours, f"{kind}.{function.name}"
        compared += 1
    assert compared > 80


def functions_of_the_stub() -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.parse(docstrings.STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield "", node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (
                (node.name, each) for each in node.body if isinstance(each, ast.FunctionDef)
            )


def test_help_shows_the_options(script: Callable[..., str]) -> None:
    # From 3.13 on each parameter has a line of its own.
    shown = " ".join(script("import kvmem; help(kvmem.Pool)").replace("|", " ").split())
    assert re.search(r"Pool\( ?size, \*, max_size=None, pages=None", shown)
    assert "- ``quarantine``: keep parts that cannot be populated" in shown
    assert re.search(r"allocate\(self, ?(/, )?nbytes, \*, align=None\)", shown)
