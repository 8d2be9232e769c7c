"""*Progress*: a line on the terminal that says what is being compiled.

``pip`` keeps the output of a build to itself and shows a turning line for minutes. This module
reads what cargo writes to standard error, passes it on, and writes one line to the terminal that
controls the process. The line stands below ``pip``'s own and is erased at the end. Without such a
terminal (in CI, in a container) nothing is written."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator

COMPILING = re.compile(rb"^\s*(?:\x1b\[[0-9;]*m)*\s*Compiling(?:\x1b\[[0-9;]*m)* (\S+) v")

# Control sequences of ECMA-48 and the VT100. The first two make room for a line below the cursor,
# which stays in its column: the terminal scrolls if necessary.
MAKE_ROOM = b"\x1bD\x1b[A"
BELOW = b"\x1b7\x1b[E"
ERASE = b"\x1b[K"
BACK = b"\x1b8"

PERIOD = 1.0
"""Seconds between two lines while nothing else changes."""


@contextlib.contextmanager
def shown(terminal: str = "/dev/tty") -> Iterator["Progress"]:
    """Gives a progress that writes to the terminal, or to nothing if there is none."""
    with contextlib.ExitStack() as stack:
        out: int | None = None
        if os.environ.get("TERM", "dumb") != "dumb":
            with contextlib.suppress(OSError):
                out = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
                stack.callback(os.close, out)
        yield Progress(out if out is not None and os.isatty(out) else None)


class Progress:
    """The steps of a build."""

    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal
        self._lock = threading.Lock()
        self._what, self._crates, self._done, self._name = "", 0, 0, ""
        self._start = 0.0

    @contextlib.contextmanager
    def step(self, what: str, crates: int) -> Iterator[None]:
        """Shows the progress of what runs inside. Its standard error is read, and passed on."""
        self._what, self._crates, self._done, self._name = what, crates, 0, ""
        self._start = time.monotonic()
        reading, writing = os.pipe()
        before = os.dup(2)
        os.dup2(writing, 2)
        os.close(writing)
        ended = threading.Event()
        threads = [
            threading.Thread(target=self._read, args=(reading, before)),
            threading.Thread(target=self._tick, args=(ended,)),
        ]
        self._write(MAKE_ROOM)
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            os.dup2(before, 2)
            ended.set()
            for thread in threads:
                thread.join()
            os.close(before)
            self._write(BELOW + b"\r" + ERASE + BACK)

    def _read(self, reading: int, before: int) -> None:
        """Passes lines on, and counts the crates that they name."""
        with open(reading, "rb") as lines:
            for line in lines:
                with contextlib.suppress(OSError):
                    os.write(before, line)
                found = COMPILING.match(line)
                if found:
                    self._done += 1
                    self._name = found[1].decode(errors="replace")
                    self._draw()

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(PERIOD):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            self._write(BELOW + b"\r" + ERASE + self._line().encode() + BACK)

    def _line(self) -> str:
        seconds = time.monotonic() - self._start
        text = f"kvmem: compiling {self._what}, {seconds:.0f} s"
        if self._done:
            of = f" of {self._crates}" if self._done <= self._crates else ""
            text += f", crate {self._done}{of}: {self._name}"
        # A line that wraps could not be erased. A terminal that does not know its width says 0.
        width = 0
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                width = os.get_terminal_size(self._terminal).columns
        return text[: (width or 80) - 1]

    def _write(self, text: bytes) -> None:
        if self._terminal is not None:
            try:
                os.write(self._terminal, text)
            except OSError:
                # The terminal was closed.
                self._terminal = None
