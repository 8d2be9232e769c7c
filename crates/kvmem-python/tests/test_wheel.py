"""The contents of the installed package beside its code."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import kvmem
import pytest
from kvmem import c_library, config

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
    # Of the module, of all parts, of the command.
    assert {"pyo3", "serde", "libc", "foldhash", "hashbrown", "clap"} <= names
    # Nothing of the laboratory.
    assert "plotters" not in names
    texts = re.findall(r"^## (.+)$", page, re.M)
    told = {each.split(" (")[0] for those in texts for each in those.split(", ")}
    assert told == names, "each has its text"
    assert all(licence for _, _, licence in rows)


def test_the_page_of_the_index_has_no_link_into_the_repository() -> None:
    page = (HERE.parent / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert [link for link in links if not link.startswith("https://")] == []
    found = installed().metadata
    assert found["Description-Content-Type"].startswith("text/markdown")
    assert str(found.json["description"]).strip() == page.strip()


def test_every_classifier_and_the_licence_are_stated() -> None:
    found = installed().metadata
    assert found["Requires-Python"] == ">=3.11" and found["License-Expression"] == "Apache-2.0"
    classifiers = found.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert "Programming Language :: Python :: 3.11" in classifiers
    assert "pinned" in found["Keywords"]


def has_c_library() -> bool:
    try:
        kvmem.get_include()
    except kvmem.NotInstalledError as error:
        assert "cargo xtask" in error.remedy and error.remedy in str(error)
        return False
    return True


needs_c_library = pytest.mark.skipif(
    not has_c_library(), reason="the package is not installed with its C library"
)


@needs_c_library
def test_the_c_library_is_there_and_loads() -> None:
    include, library = Path(kvmem.get_include()), Path(kvmem.get_library_dir())
    for header in ("kvmem.h", "kvmem.hpp", "kvmem/compat/gslice.h"):
        assert (include / header).is_file(), header
    assert not (include / "kvmem" / "testing.h").exists(), "functions for tests are not shipped"
    loaded = ctypes.CDLL(str(library / "libkvmem.so.0"))
    loaded.kvmem_version.restype = ctypes.c_char_p
    assert loaded.kvmem_version().decode() == kvmem.__version__
    assert (library / "pkgconfig" / "kvmem.pc").is_file()
    assert (library / "cmake" / "kvmem" / "kvmemConfig.cmake").is_file()


@needs_c_library
def test_a_program_is_compiled_by_the_options(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: apt-get install build-essential")
    ask = [sys.executable, "-m", "kvmem.config", "--cflags", "--libs"]
    options = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
    program = tmp_path / "program"
    source = HERE / "wheel" / "program.c"
    subprocess.run(["cc", source, *options, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0 and "65536 bytes" in done.stdout, done.stderr


def test_options_that_name_nothing_and_a_library_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert config.main([]) == 2 and "--cflags" in capsys.readouterr().err
    monkeypatch.setattr(c_library, "_FOLDER", tmp_path)
    assert config.main(["--libs"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "cargo xtask install" in said.err
    with pytest.raises(FileNotFoundError):
        kvmem.get_library_dir()
