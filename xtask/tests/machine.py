"""The state of the machine that a run must leave unchanged, and cgroups of our own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
NUMBERS = count()


class Unavailable(Exception):
    """What this machine does not allow."""


class Cgroup:
    """A cgroup of our own with a limit, in either version."""

    def __init__(self, controller: str, limit: int, v1: str, v2: str) -> None:
        name = f"kvmem-chaos-{os.getpid()}-{next(NUMBERS)}"
        reason = f"no cgroup with the controller {controller} can be made"
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            self.unified = not controllers
            if not self.unified and controller not in controllers.split(","):
                continue
            top = "/sys/fs/cgroup" if self.unified else f"/sys/fs/cgroup/{controller}"
            for parent in (top + path, top):
                self.path = Path(parent) / name
                try:
                    self.path.mkdir()
                    # Only a file that the kernel has put there is a limit.
                    with open(self.path / (v2 if self.unified else v1), "r+") as file:
                        file.write(str(limit))
                    return
                except OSError as error:
                    reason = str(error)
                    self.close()
        raise Unavailable(reason)

    @classmethod
    def memory(cls, limit: int) -> Cgroup:
        return cls("memory", limit, "memory.limit_in_bytes", "memory.max")

    @classmethod
    def pids(cls, limit: int) -> Cgroup:
        return cls("pids", limit, "pids.max", "pids.max")

    def join(self) -> str:
        """What a shell says to join it."""
        return f"echo $$ > {self.path}/cgroup.procs"

    def killed(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        file = self.path / ("memory.events" if self.unified else "memory.oom_control")
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts.get("oom_kill", 0))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def __enter__(self) -> Cgroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def turn(path: Path) -> contextlib.AbstractContextManager[bool]:
    """The right to change a setting: a test that borrows pages locks the kernel's file meanwhile.
    ``False`` if it does not come in half a minute."""

    @contextlib.contextmanager
    def held() -> Iterator[bool]:
        with open(path) as file:
            limit = time.monotonic() + 30
            while time.monotonic() < limit:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    time.sleep(0.02)
                    continue
                yield True
                return
            yield False

    return held()


class Settings:
    """Settings and files of the machine that no run may change."""

    def __init__(self) -> None:
        paths = [Path("/proc/sys/vm/nr_overcommit_hugepages")]
        paths += Path("/sys/kernel/mm/hugepages").glob("*/nr_hugepages")
        self.texts = {}
        for path in (path for path in paths if path.exists()):
            with turn(path):
                self.texts[path] = path.read_text().strip()
        self.shared_memory = set(Path("/dev/shm").iterdir())

    def restore(self) -> list[str]:
        """Says what has changed, and puts settings back."""
        changed = []
        for path, before in self.texts.items():
            if path.read_text().strip() == before:
                continue
            # Another program may have borrowed pages and return them soon.
            with turn(path) as is_ours:
                after = path.read_text().strip()
                if is_ours and after != before:
                    changed.append(f"{path} was {before} and is {after}")
                    path.write_text(before)
        for path in set(Path("/dev/shm").iterdir()) - self.shared_memory:
            # kvmem and its tests make files of its name; other programs make and leave others.
            if "kvmem" in path.name and not is_mapped(path):
                # Files of another program may be about to go.
                time.sleep(0.2)
                if path.exists():
                    changed.append(f"{path} was left")
        return changed


def is_mapped(file: Path) -> bool:
    """Whether a process has a file mapped: then the file is in use, not left behind."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(file) in maps.read_text(errors="replace"):
                return True
    return False


def processes_of_group(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name may have spaces, brackets and bytes that are not UTF-8: state, parent and
            # group stand behind the last bracket.
            text = stat.read_text(errors="replace")
            state, _, its_group = text.rpartition(")")[2].split()[:3]
            if state != "Z" and its_group == str(group):
                found.append(int(stat.parent.name))
    return found
