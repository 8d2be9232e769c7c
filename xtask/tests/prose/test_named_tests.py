"""Pages that name tests: each test that they name exists."""

from __future__ import annotations

import re
import subprocess

import pytest

from machine import ROOT

PAGES = ("docs/formats.md",)


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
