"""Files in /dev/shm that tests must not leave."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

PATIENCE = 60.0
"""Seconds until files of others are gone."""


def in_shm() -> set[str]:
    """Returns the names of the files."""
    return set(os.listdir("/dev/shm"))


def none_is_new(before: set[str]) -> bool:
    """Returns whether no file has been added to those of ``before``. Other programs create files
    there too, such as the tests of other crates, and remove them: a file counts only if it stays.
    """
    end = time.monotonic() + PATIENCE
    while not in_shm() <= before and time.monotonic() < end:
        time.sleep(0.05)
    return in_shm() <= before


def remove_unused(before: set[str]) -> set[str]:
    """Removes shared memory and semaphores of Python's processes that were added to those of
    ``before``, and that no process has mapped. Returns their names. A killed process leaves them if
    its resource tracker was killed too.
    """
    new = {name for name in in_shm() - before if name.startswith(("psm_", "sem.mp-"))}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(encoding="utf-8", errors="replace")
            new = {name for name in new if f"/dev/shm/{name}" not in text}
    for name in new:
        Path("/dev/shm", name).unlink(missing_ok=True)
    return new
