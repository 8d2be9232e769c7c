"""The build backend: the toolchain it needs, the progress it shows, the archive it writes."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import io
import os
import pty
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

BACKEND = Path(__file__).parent.parent / "backend"
sys.path.insert(0, str(BACKEND))
archive: Any = importlib.import_module("kvmem_build.archive")
hooks: Any = importlib.import_module("kvmem_build.hooks")
progress: Any = importlib.import_module("kvmem_build.progress")
toolchain: Any = importlib.import_module("kvmem_build.toolchain")


def cargo_that_says(folder: Path, text: str, status: int = 0) -> None:
    program = folder / "cargo"
    program.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n", encoding="utf-8")
    program.chmod(0o755)


def test_without_a_toolchain_the_first_hook_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for hook in (
        hooks.get_requires_for_build_wheel,
        hooks.get_requires_for_build_editable,
        lambda: hooks.prepare_metadata_for_build_wheel(str(tmp_path)),
        lambda: hooks.build_wheel(str(tmp_path)),
    ):
        with pytest.raises(SystemExit, match=r"cargo is not in PATH.*Rust 1\.\d+.*rustup"):
            hook()


def test_a_toolchain_that_is_too_old_or_broken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    cargo_that_says(tmp_path, "cargo 1.63.0 (fd9c4297c 2022-07-01)")
    with pytest.raises(SystemExit, match=r"cargo 1\.63 is too old.*rustup update"):
        hooks.get_requires_for_build_wheel()
    cargo_that_says(tmp_path, "rustup could not choose a version", status=1)
    with pytest.raises(SystemExit, match="status 1: rustup could not choose"):
        hooks.get_requires_for_build_wheel()
    cargo_that_says(tmp_path, "cargo 2.0.0")
    assert hooks.get_requires_for_build_wheel() == [hooks.MATURIN]


def test_a_free_threaded_interpreter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sysconfig.get_config_vars(), "Py_GIL_DISABLED", 1)
    for hook in (
        hooks.get_requires_for_build_wheel,
        lambda: hooks.prepare_metadata_for_build_wheel(str(tmp_path)),
        lambda: hooks.build_wheel(str(tmp_path)),
    ):
        with pytest.raises(SystemExit, match="free-threaded") as raised:
            hook()
        assert sys.executable in str(raised.value) and "GIL" in str(raised.value)


def test_the_import_on_a_free_threaded_interpreter_says_so() -> None:
    """The check comes before the extension module, which such an interpreter does not find."""
    program = (
        "import sys, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"
        "sys.modules['kvmem._kvmem'] = None\n"
        "import kvmem"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: kvmem does not run"), done.stderr
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert sys.executable in last and f"({version}t)" in last and f"python{version}," in last, last


def test_pip_reports_the_missing_toolchain_before_it_downloads_anything(tmp_path: Path) -> None:
    """An index that does not exist proves that nothing is asked of it."""
    project = BACKEND.parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-input"),
            *("--index-url", "http://127.0.0.1:1", "--target", tmp_path, project),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": "/kvmem-no-such-folder"},
    )
    assert done.returncode != 0
    both = done.stdout + done.stderr
    assert "cargo is not in PATH" in both and "https://rustup.rs" in both
    assert "maturin" not in both.replace("kvmem_build", "") and "Traceback" not in both, both


class Terminal:
    """A pseudo-terminal, and what was written to it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        os.set_blocking(self.ours, False)

    def text(self) -> str:
        parts = []
        while True:
            try:
                parts.append(os.read(self.ours, 65536))
            except BlockingIOError:
                return b"".join(parts).decode()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.ours)
        os.close(self.theirs)


def test_crates_are_counted_on_the_terminal_and_the_output_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    says = (
        "printf '   Compiling libc v0.2.1\\n\\033[1m\\033[32m   Compiling\\033[0m serde v1.0.0\\n"
        "warning: other\\n   Compiling more v1.0.0 (/folder)\\n' >&2"
    )
    with Terminal() as terminal:
        with (
            progress.shown(os.ttyname(terminal.theirs)) as watch,
            watch.step("the command", 2),
        ):
            subprocess.run(["sh", "-c", says], check=True)
        written = terminal.text()
    lines = re.findall(r"kvmem: compiling the command, \d+ s, crate ([^\x1b]+)", written)
    # More crates than expected: the total was wrong, so it is left out.
    assert lines == ["1 of 2: libc", "2 of 2: serde", "3: more"]
    assert written.endswith("\x1b7\x1b[E\r\x1b[K\x1b8"), "the line is erased"
    assert "warning: other" in capfd.readouterr().err


def test_without_a_terminal_nothing_is_shown_and_the_step_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for terminal in ("/kvmem-no-such-terminal", "/dev/null"):
        with progress.shown(terminal) as watch, watch.step("the command", 2):
            os.write(2, b"   Compiling libc v0.2.1\n")
        assert capfd.readouterr().err == "   Compiling libc v0.2.1\n"
    assert not os.path.exists("/kvmem-no-such-terminal")
    monkeypatch.setenv("TERM", "dumb")
    with Terminal() as dumb:
        with progress.shown(os.ttyname(dumb.theirs)) as watch, watch.step("the command", 2):
            os.write(2, b"   Compiling libc v0.2.1\n")
        assert dumb.text() == ""


def test_a_step_that_fails_restores_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        progress.shown("/kvmem-no-such-terminal") as watch,
        pytest.raises(SystemExit),
        watch.step("the command", 2),
    ):
        raise SystemExit("failed")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def wheel_in(folder: Path) -> Path:
    wheel = folder / "kvmem-0.1.0-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("kvmem/__init__.py", "")
        made.writestr("kvmem-0.1.0.dist-info/METADATA", "Name: kvmem\n")
        made.writestr("kvmem-0.1.0.dist-info/RECORD", "")
    return wheel


def test_an_archive_has_the_stage_with_hashes_and_modes(tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    (stage / "scripts").mkdir(parents=True)
    (stage / "scripts" / "kvmem").write_bytes(b"\x7fELF program")
    (stage / "package" / "lib").mkdir(parents=True)
    (stage / "package" / "lib" / "libkvmem.so.0").write_bytes(b"library")
    wheel = wheel_in(tmp_path)
    archive.complete(wheel, stage)
    with zipfile.ZipFile(wheel) as made:
        names = made.namelist()
        assert {"kvmem-0.1.0.data/scripts/kvmem", "kvmem/lib/libkvmem.so.0"} < set(names)
        assert made.getinfo("kvmem-0.1.0.data/scripts/kvmem").external_attr >> 16 == 0o100755
        assert names[-1] == "kvmem-0.1.0.dist-info/RECORD"
        rows = list(csv.reader(io.StringIO(made.read(names[-1]).decode())))
        assert sorted(row[0] for row in rows) == sorted(names)
        for name, digest, length in rows[:-1]:
            content = made.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
            assert digest == "sha256=" + expected.rstrip(b"=").decode()
            assert int(length) == len(content)


def test_the_same_files_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    written: list[bytes] = []
    for name in ("one", "two"):
        stage = tmp_path / name / "stage" / "scripts"
        stage.mkdir(parents=True)
        (stage / "kvmem").write_bytes(b"program")
        os.utime(stage / "kvmem", (len(written), len(written)))
        wheel = wheel_in(tmp_path / name)
        archive.complete(wheel, stage.parent)
        written.append(wheel.read_bytes())
    assert written[0] == written[1]
    with zipfile.ZipFile(io.BytesIO(written[0])) as made:
        assert {entry.date_time[:3] for entry in made.infolist()} == {(2023, 11, 14)}
