"""Output files of the package's command: complete or unchanged."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from conftest import LIMIT
from kvmem.output import write_file


def test_a_file_is_replaced_with_its_mode_and_its_links(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("earlier")
    file.chmod(0o640)
    link.symlink_to(file)
    write_file(link, "new\n")
    assert link.is_symlink() and file.read_text() == "new\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    write_file(tmp_path / "first", "text")
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "first").stat().st_mode) == 0o666 & ~umask
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "first", "link"]


def test_a_write_that_fails_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("earlier")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(file, "new")
    assert file.read_text() == "earlier"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_devices_and_pipes_are_written_directly(tmp_path: Path) -> None:
    write_file("/dev/null", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "text")
    reader.join(timeout=LIMIT)
    assert read == ["text"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_that_takes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    def failing(**_: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", failing)
    file = tmp_path / "file"
    file.write_text("earlier, and longer")
    write_file(file, "new")
    assert file.read_text() == "new"
