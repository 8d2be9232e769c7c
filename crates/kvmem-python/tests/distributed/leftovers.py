"""Files in /dev/shm that a test must not leave."""

from __future__ import annotations

import os
import time

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
