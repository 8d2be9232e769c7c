"""*Circuit*: whom not to ask for a while.

A call to a process that hangs or is gone costs its deadline. So nobody repeats it.

*The master.* When a call to it fails, the circuit *opens*: further calls fail at once, and one
thread probes in the background, ``retry`` seconds after each failed probe. The first answer closes
the circuit. A failed transfer is no proof, since the segment may be to blame: it only makes the
thread probe, and the circuit opens if the probe fails.

*Segments.* A segment that fails a transfer is not asked for a second, then two, four, up to a
minute. After each pause one call tries, and its success ends the back-off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from . import errors

_FIRST, _LONGEST = 1.0, 60.0
_MOST = 1024
"""Segments that are remembered. There are as many as servers."""


class Circuit:
    """Whether the master is asked."""

    def __init__(self, probe: Callable[[], object], retry: float = 1.0) -> None:
        self._probe = probe
        self.retry = retry
        """Seconds between a failed probe and the next."""
        self.is_open = False
        self.opened = 0
        """How often it was opened."""
        self.probes = 0
        """How often the master was probed."""
        self.last_error: str | None = None
        """Why it was opened last."""
        self._lock = threading.RLock()
        self._probing = False
        self._again = False
        self._end = threading.Event()
        self._listeners: list[Callable[[], object]] = []

    def fail(self, error: Exception) -> None:
        """A call to the master failed: opens."""
        with self._lock:
            news = not self.is_open
            self.is_open = True
            self.last_error = str(error)
            self.opened += news
            self.suspect()
        if news:
            self._tell()

    def suspect(self) -> None:
        """Something failed that may be the master's fault: has it probed."""
        with self._lock:
            self._again = True
            if self._probing or self._end.is_set():
                return
            self._probing = True
            try:
                threading.Thread(target=self._run, name="kvmem-probe", daemon=True).start()
            except RuntimeError:  # The interpreter is ending.
                self._probing = False

    def listen(self, listener: Callable[[], object]) -> None:
        """Calls ``listener`` from any thread after each change."""
        with self._lock:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], object]) -> None:
        """Does not call it any more."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def end(self) -> None:
        """No more probes."""
        self._end.set()

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _run(self) -> None:
        while not self._end.is_set():
            with self._lock:
                self.probes += 1
                self._again = False
            try:
                self._probe()
            except Exception as error:  # Whatever it is, there was no answer.
                if self._end.is_set():
                    break
                self.fail(error)
                self._end.wait(self.retry)
                continue
            with self._lock:
                news, self.is_open = self.is_open, False
                done = not self._again
                self._probing = not done
            if news:
                self._tell()
            if done:
                return
        with self._lock:
            self._probing = False


class Segments:
    """Which segments are not asked for a while. Keys are their names."""

    def __init__(self, first: float = _FIRST, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._first = first
        self._failed: dict[str, tuple[int, float]] = {}
        """How often in a row, and until when it is not asked."""
        self.skipped = 0
        """Calls that were not made."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._failed)

    def allow(self, names: Iterable[str], *, trying: bool = True) -> str | None:
        """None if one of the segments may be asked now; else the name of one, and for how long it
        is not.

        ``trying``: the caller does ask it, so after a pause only the first caller is allowed to.
        """
        now = self._clock()
        refused: str | None = None
        with self._lock:
            for name in names:
                failures, until = self._failed.get(name, (0, now))
                if until <= now:
                    if failures and trying:
                        # This call tries; others wait for what comes of it.
                        self._failed[name] = (failures, now + self._pause(failures))
                    return None
                refused = f"{name}, which failed {failures} time(s) in a row, for another {until - now:.1f} s"
            self.skipped += refused is not None
        return refused

    def fail(self, names: Iterable[str]) -> None:
        """A transfer with one of these failed."""
        with self._lock:
            for name in names:
                failures = self._failed.pop(name, (0, 0.0))[0] + 1
                if len(self._failed) >= _MOST:
                    del self._failed[next(iter(self._failed))]
                self._failed[name] = (failures, self._clock() + self._pause(failures))

    def succeed(self, names: Iterable[str]) -> None:
        """A transfer with these succeeded."""
        with self._lock:
            for name in names:
                self._failed.pop(name, None)

    def _pause(self, failures: int) -> float:
        return min(self._first * 2.0 ** min(failures - 1, 16), _LONGEST)


def circuit_open(circuit: Circuit, doing: str, key: str | None) -> errors.CircuitOpenError:
    """The error of a call that an open circuit does not let through."""
    what = doing if key is None else f"{doing} {key!r}"
    return errors.CircuitOpenError(
        f"cannot {what}: the master did not answer before ({circuit.last_error}); it is probed every {circuit.retry:g} s, and nobody "
        "waits for it meanwhile",
        code=errors.MASTER_GONE,
        key=key,
    )
