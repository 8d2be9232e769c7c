"""An attack sees what goes wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from attack import FAILS, STEERS, Chaos

from machine import processes_of_group

FAULTS = {
    "panicked": "echo 'thread panicked at x' >&2",
    "the control character": "printf 'a\\033[31m'",
    "ended with 3": "exit 3",
    "failed without an error": "exit 1",
    "the error does not say `word`": "echo 'kvmem: no' >&2; exit 1",
    "left processes": "sleep 30 & exit 0",
    "left the file": "touch $TMPDIR/x",
    "did not end": "sleep 30",
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with programs that do what their first argument says."""
    for name in ("kvmem", "kvmem-lab"):
        (tmp_path / name).write_text('#!/bin/sh\neval "$1"\n')
        (tmp_path / name).chmod(0o755)
    return tmp_path / "kvmem"


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_faults_are_seen(program: Path, fault: str) -> None:
    chaos = Chaos(program, "0", quick=True)
    ends = FAILS if "exit 1" in FAULTS.get(fault, "") else (0,)
    try:
        chaos.run(FAULTS.get(fault, "true"), within=2, ends=ends, says=["word"] * (ends == FAILS))
    finally:
        chaos.clean()
    assert bool(chaos.complaints) == bool(fault)
    assert all(fault in complaint or "say" in complaint for complaint in chaos.complaints)


def test_what_steers_a_terminal_is_known() -> None:
    assert all(STEERS.search(one) for one in "\x1b\x07\r\x9b\u202e\0")
    assert not STEERS.search("plain text,\n\twith ½ and …")


def test_names_of_processes_need_not_be_utf8(tmp_path: Path) -> None:
    program = os.fsencode(tmp_path) + b"/(\xd0 \xff"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"], process_group=0) as other:
        try:
            assert processes_of_group(other.pid) == [other.pid]
        finally:
            other.kill()
