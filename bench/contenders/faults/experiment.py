"""What the experiments with faults share: values, the process with a peer, verdicts.

A peer's file has a class with the peer, and the list of its experiments. It runs as a program::

    hicache_file.py                     # all experiments, a line each
    hicache_file.py flipped_byte        # one
    hicache_file.py serve               # the peer alone, which answers the lines of `Peer`

The peer runs in a process of its own, which an experiment kills, stops, or lets meet errors of the
system. An experiment answers with a verdict: `yes`, the fault does no harm; `late`, the harm ends
by a time limit; `no`, it does not end; or `n/a`. What the peer logs in a run goes to a file, and
the first lines that name an error are shown."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

LIMIT = 60.0
"""Seconds after which a call of a peer that should answer has failed."""
VALUE = 1 << 20
"""Bytes of a value."""


class Ended(RuntimeError):
    """The process with the peer ended."""


class Skipped(Exception):
    """An experiment that cannot run, with the reason."""


def value_of(key: int, version: int, size: int = VALUE) -> np.ndarray:
    """Returns a value. Each word names key, version and position, so no part can be another's."""
    words = np.arange(size // 8, dtype=np.uint64)
    return (words + np.uint64(key << 40 | version << 32)).view(np.uint8)


def version_of(key: int, value: np.ndarray) -> int | None:
    """Returns the version of the whole value of a key, or None if there are other bytes in it."""
    version = int(value[:8].view(np.uint64)[0]) >> 32 & 0xFF
    return version if np.array_equal(value, value_of(key, version, len(value))) else None


class Call:
    """What became of the values of one call."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.misses: list[int] = []
        self.other: list[int] = []
        self.errors: list[int] = []
        self.versions: list[int] = []
        self.said = ""

    def each(self, keys: Iterable[int], do: Callable[[int], object]) -> dict[str, Any]:
        """Calls the function for each key: None is a miss, -1 means other bytes."""
        for key in keys:
            try:
                version = do(key)
            except Exception as error:
                self.errors.append(key)
                self.said = self.said or f"{type(error).__name__}: {error}"[:300]
                continue
            if version is None or version is False:
                self.misses.append(key)
            elif version == -1:
                self.other.append(key)
            else:
                self.done.append(key)
                self.versions.append(int(version))
        return vars(self)


def serve(make: Callable[..., Any]) -> None:
    """Answers the calls of a `Peer` until the input ends, and closes the peer then."""
    peer = None
    for line in sys.stdin:
        call = json.loads(line)
        name = call.pop("call")
        try:
            if name == "open":
                peer, answer = make(**call), {}
            else:
                answer = getattr(peer, name)(**call)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        # By writev: an experiment lets write and pwrite fail.
        os.writev(1, [(json.dumps(answer) + "\n").encode()])
    getattr(peer, "close", lambda: None)()


class Peer:
    """A process with a peer, one line of JSON for each call and one for each answer."""

    def __init__(self, program: list[str], log: Path, wrap: Iterable[str] = (), **env: str) -> None:
        self.log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [*wrap, *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **env},
                start_new_session=True,
            )

    def begin(self, call: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        line = json.dumps({"call": call, **arguments}) + "\n"
        try:
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self) -> dict[str, Any]:
        """Returns the answer. An error raises RuntimeError, and a process that ended Ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Ended(f"the process ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def __call__(self, call: str, **arguments: Any) -> dict[str, Any]:
        self.begin(call, **arguments)
        return self.answer()

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Ends the process as a program that stops in good order does."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()

    def cpu_seconds(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def stopped_connections(port: int) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a process that makes as many connections as it can, 400 at most, and stops it."""
    code = """
import socket, sys, time
held = []
try:
    for _ in range(400):
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2))
except OSError:
    pass
print(len(held), flush=True)
time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", code, str(port)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    held = int(holder.stdout.readline())
    holder.send_signal(signal.SIGSTOP)
    return holder, held


@contextlib.contextmanager
def tmpfs(path: Path, size: int) -> Iterator[Path]:
    """Mounts a small file system in memory."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        raise Skipped("mounting a tmpfs takes root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


Verdict = tuple[str, str]
Experiment = Callable[[Path], Verdict]


def decisive(folder: Path, lines: int = 3) -> list[str]:
    """Returns the first lines of the peer's logs that name an error. A miss is none."""
    text = "\n".join(log.read_text("utf-8", "replace") for log in sorted(folder.glob("*.log")))
    error = re.compile(r"error|assert|failed to save|panicked|short |exception|timed? ?out", re.I)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    wanted = [line.strip()[:160] for line in text.splitlines() if error.search(line)]
    return list(dict.fromkeys(wanted))[:lines]


def main(name: str, experiments: dict[str, Experiment]) -> None:
    """Runs the experiments that the command line names, or all, and prints what came of each."""
    wanted = sys.argv[1:] or list(experiments)
    unknown = [one for one in wanted if one not in experiments]
    if unknown:
        sys.exit(f"no experiment {unknown[0]!r}; there are: {', '.join(experiments)}")
    print(f"# {name}, {time.strftime('%Y-%m-%d', time.gmtime())}", flush=True)
    for one in wanted:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            try:
                verdict, why = experiments[one](Path(folder))
            except Skipped as reason:
                verdict, why = "not run", str(reason)
            except Ended as error:
                verdict, why = "no", str(error)
            except Exception as error:
                traceback.print_exc()
                verdict, why = "failed", f"{type(error).__name__}: {error}"
            print(f"{one:24} {verdict:8} {why}  [{time.monotonic() - begin:.1f} s]", flush=True)
            if verdict in ("no", "failed"):
                for line in decisive(Path(folder)):
                    print(f"{'':24} log: {line}", flush=True)
