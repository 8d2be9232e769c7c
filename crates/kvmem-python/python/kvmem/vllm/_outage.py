"""*Outage*: the time in which a server does not answer, for threads that probe it.

An outage has one warning when it begins and one line when it ends. The pauses between two probes
double from :data:`FIRST_PAUSE` to :data:`LONGEST_PAUSE`. A server that starts makes its socket's
file anew: a pause ends when the file changes."""

import logging
import os
import time
from collections.abc import Callable

_log = logging.getLogger("vllm.kvmem")

FIRST_PAUSE = 1.0
"""Seconds until the first probe."""
LONGEST_PAUSE = 30.0
"""Longest time between two probes, in seconds."""
_LOOK = 0.25
"""Seconds between two looks at the socket's file."""


class Outage:
    """The outages of a server, one after the other. ``path`` is its socket, and ``missing`` says in
    the log what the engine has none of meanwhile. One thread at a time calls the methods."""

    def __init__(self, path: str, missing: str) -> None:
        self._path = path
        self._missing = missing
        self._began: float | None = None
        self._ended = -LONGEST_PAUSE
        self._pause = FIRST_PAUSE
        self._socket: tuple[int, int] | None = None

    def begin(self, error: BaseException) -> None:
        """Begins an outage, with a warning. Does nothing during one. The pauses of an outage that
        follows closely on another one go on to double: a server that answers probes and fails calls
        is not called every second."""
        if self._began is not None:
            return
        self._began = time.monotonic()
        if self._began - self._ended >= LONGEST_PAUSE:
            self._pause = FIRST_PAUSE
        self._socket = self._state_of_socket()
        _log.warning("kvmem: no %s until the server answers: %s", self._missing, error)

    def wait(self, sleep: Callable[[float], object], has_ended: Callable[[], bool]) -> None:
        """Waits until the next probe. ``sleep`` waits for a number of seconds, or shorter, and
        ``has_ended`` returns whether the engine needs no probe any more."""
        until = time.monotonic() + self._pause
        while not has_ended() and (left := until - time.monotonic()) > 0:
            sleep(min(left, _LOOK))
            state = self._state_of_socket()
            if state != self._socket:
                self._socket = state
                if state is not None:
                    self._pause = FIRST_PAUSE
                    return
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def end(self) -> None:
        """Ends an outage, with a line in the log. Does nothing without one."""
        if self._began is None:
            return
        self._ended = time.monotonic()
        seconds, self._began = self._ended - self._began, None
        _log.info("kvmem: the server of the node answers again, after %.1f s", seconds)

    def _state_of_socket(self) -> tuple[int, int] | None:
        """Returns what a new file differs in; None without a file."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns
