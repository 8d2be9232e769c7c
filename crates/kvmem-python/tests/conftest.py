"""Shared fixtures: small pools on base pages, and scripts that run in their own interpreter."""

from __future__ import annotations

import fcntl
import importlib.util
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import kvmem
import pytest
from engine_features import pytest_runtest_logreport, pytest_sessionfinish

# They need vLLM in an environment of its own: cargo xtask test engine.
collect_ignore = ["engine"] if importlib.util.find_spec("vllm") is None else []

__all__ = ["pytest_runtest_logreport", "pytest_sessionfinish"]

MIB = 1 << 20
LIMIT = 120.0
"""Seconds after which a wait fails. Only a fault takes as long, on a busy machine too."""


def until(true: Callable[[], object]) -> None:
    """Waits until a condition is true."""
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"not within {LIMIT} s"
        time.sleep(0.005)


@pytest.fixture
def pool() -> Iterator[kvmem.Pool]:
    with kvmem.Pool(8 * MIB, pages="4k") as pool:
        yield pool
        pool.check()


@pytest.fixture
def hugepages() -> Iterator[None]:
    """Keeps the machine's pool of 2 MiB pages as it is. Tests that size the pool for themselves,
    and count what is left of it, take turns with those of this fixture by a lock on the kernel's
    file.
    """
    try:
        file = open("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def script() -> Callable[..., str]:
    """Runs Python code in a process of its own and returns its output. A non-zero exit status fails
    the test.
    """

    def run(code: str, *, status: int = 0, python: str = sys.executable) -> str:
        done = subprocess.run(
            [python, "-X", "faulthandler", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


def lockable() -> bool:
    """Whether `mlock` can register memory on this machine."""
    try:
        kvmem.mount_report("256KiB", pages="4k", devices="mlock")
    except kvmem.RegistrationError as error:
        print(f"no mlock here: {error}")
        return False
    return True


needs_mlock = pytest.mark.skipif(
    not lockable(), reason="memory cannot be locked here (RLIMIT_MEMLOCK)"
)
