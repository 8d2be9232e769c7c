"""The contents of the installed package beside its code."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def installed() -> metadata.Distribution:
    try:
        return metadata.distribution("kvmem")
    except metadata.PackageNotFoundError:
        pytest.skip("kvmem is imported from a folder, and not installed")


@pytest.mark.parametrize("name", ["LICENSE", "THIRD-PARTY.md"])
def test_it_contains_its_licence_and_those_of_linked_crates(name: str) -> None:
    found = installed()
    assert name in (found.metadata.get_all("License-File") or [])
    carried = [file for file in found.files or [] if file.match(f"*.dist-info/licenses/{name}")]
    assert len(carried) == 1
    text = carried[0].read_text(encoding="utf-8")
    assert text == (HERE.parent / name).read_text(encoding="utf-8")
    if name == "LICENSE":
        assert "Apache License" in text


def test_the_notices_cover_all_linked_crates() -> None:
    """``cargo xtask notices --check`` compares them with ``Cargo.lock``."""
    page = (HERE.parent / "THIRD-PARTY.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| (\d\S+) \| (.+?) \| http", page, re.M)
    names = {name for name, _, _ in rows}
    assert {"pyo3", "serde", "libc", "foldhash", "hashbrown"} <= names
    texts = re.findall(r"^## (.+)$", page, re.M)
    told = {each.split(" (")[0] for those in texts for each in those.split(", ")}
    assert told == names, "each has its text"
    assert all(licence for _, _, licence in rows)
