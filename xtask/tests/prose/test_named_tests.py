"""Pages that name tests: each test that they name exists.

A page names them in backticks in its section "Tests". One of `PAGES_WITH_LINKS` links them to their
files, in the column ``tests`` of its tables.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from machine import ROOT

PAGES = ("docs/formats.md",)
PAGES_WITH_LINKS = ("docs/assurance.md", "docs/faults.md")
LINK = re.compile(r"\[([a-z]\w+)\]\(([^)#]+\.(?:rs|py))\)")


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_page_names_exist(page: str) -> None:
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "crates", "lab"]
    listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / path for path in listed.split("\0") if path.endswith((".rs", ".cpp", ".py"))]
    names = {path.name for path in paths} | {path.name for path in (ROOT / "crates").iterdir()}
    functions = re.compile(r"\b(?:fn|void|def) (\w+)\(")
    for path in paths:
        text = path.read_text("utf-8")
        if "/tests/" in path.as_posix() or "#[test]" in text:
            names.update(functions.findall(text))
    section = (ROOT / page).read_text("utf-8").partition("\n## Tests\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 10, "the page has a table of tests"
    assert [name for name in named if name.rpartition("::")[2] not in names] == []


def rows(page: str) -> list[str]:
    """Returns the cells ``tests`` of the rows of all tables that have this column."""
    found, column = [], None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            column = None
        elif column is None:
            column = cells.index("tests") if "tests" in cells else -1
        elif column >= 0 and not cells[0].startswith("---"):
            found.append(cells[column])
    return found


def is_test(name: str, text: str) -> bool:
    """Returns whether a source has a test of this name, also one that runs on request alone."""
    # Further attributes may stand between, and a property test has parameters.
    rust = rf"#\[test\]\s+(?:#\[.*\]\s+)*(?:pub )?fn {name}\("
    return bool(re.search(rust, text) or re.search(rf"(?m)^(?:async )?def {name}\(", text))


def missing(page: str, folder: Path) -> list[str]:
    """Returns what is wrong with the tests that a page in this folder names."""
    found = []
    for cell in rows(page):
        links = LINK.findall(cell)
        if not links or LINK.sub("", cell).replace("<br>", "").strip():
            found.append(f"not only links to tests: {cell!r}")
        for name, path in links:
            file = folder / path
            if not file.is_file():
                found.append(f"{name}: there is no file {path}")
            elif not is_test(name, file.read_text("utf-8")):
                found.append(f"{name}: {path} has no such test")
    return found


def test_tests_that_a_page_links_exist() -> None:
    for page in PAGES_WITH_LINKS:
        text = (ROOT / page).read_text("utf-8")
        assert len(rows(text)) > 10
        assert missing(text, (ROOT / page).parent) == []


def test_missing_tests_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.rs").write_text(
        '#[test]\n#[ignore = "slow"]\nfn one() {}\n#[test]\nfn two(x in y()) {}\nfn three() {}'
    )
    (tmp_path / "test_a.py").write_text("def test_four() -> None: ...\n    def test_five(): ...\n")
    head = "text\n\n| fault | tests |\n|---|---|\n"
    for cell, faults in (
        ("[one](a.rs)<br>[two](a.rs)", 0),
        ("[test_four](test_a.py)", 0),
        ("[three](a.rs)", 1),
        ("[tw](a.rs)", 1),
        ("[test_five](test_a.py)", 1),
        ("[one](b.rs)", 1),
        ("[one](a.rs) and others", 1),
        ("", 1),
    ):
        assert len(missing(f"{head}| a | {cell} |\n", tmp_path)) == faults, cell
    assert missing("| fault | a |\n|---|---|\n| b | |\n", tmp_path) == []
