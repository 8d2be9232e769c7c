"""*Circuit*: stops calls to processes that have failed recently: each costs its deadline.

*The master.* When a call to it fails, the circuit *opens*: further calls fail at once, and one
thread probes in the background, ``retry`` seconds after each failed probe. The first answer closes
the circuit. A failed transfer proves nothing about the master, since the segment may be at fault.
It only starts a probe, and the circuit opens if the probe fails.

*Segments.* A segment that fails a transfer is skipped for one second, then two, four, up to a
minute. After each pause one call tries the segment, and its success ends the back-off."""

import threading
import time
from collections.abc import Callable, Iterable

from . import errors

_FIRST_PAUSE, _MAX_PAUSE = 1.0, 60.0
_MAX_SEGMENTS = 1024
"""Maximum number of failed segments that are remembered. Each server has one or more."""


class Circuit:
    """The circuit to the master."""

    def __init__(self, probe: Callable[[], object], retry: float = 1.0) -> None:
        self._probe = probe
        self.retry = retry
        """Seconds between a failed probe and the next."""
        self.is_open = False
        self.opened = 0
        """Number of times that the circuit opened."""
        self.probes = 0
        """Number of probes of the master."""
        self.last_error: str | None = None
        """Reason for which it opened last."""
        self._lock = threading.RLock()
        self._probing = False
        self._again = False
        self._stopped = threading.Event()
        self._listeners: list[Callable[[], object]] = []

    def fail(self, error: Exception) -> None:
        """Opens the circuit, because a call to the master failed."""
        with self._lock:
            changed = not self.is_open
            self.is_open = True
            self.last_error = str(error)
            self.opened += changed
            self.suspect()
        if changed:
            self._notify()

    def suspect(self) -> None:
        """Starts a probe, because a failure may be the master's."""
        with self._lock:
            self._again = True
            if self._probing or self._stopped.is_set():
                return
            self._probing = True
            try:
                threading.Thread(target=self._run, name="kvmem-probe", daemon=True).start()
            except RuntimeError:  # The interpreter is ending.
                self._probing = False

    def listen(self, listener: Callable[[], object]) -> None:
        """Registers ``listener``, which any thread calls after each change."""
        with self._lock:
            self._listeners.append(listener)

    def stop(self) -> None:
        """Stops probing."""
        self._stopped.set()

    def _notify(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                self.probes += 1
                self._again = False
            try:
                self._probe()
            except Exception as error:  # Any exception means that there was no answer.
                if self._stopped.is_set():
                    break
                self.fail(error)
                self._stopped.wait(self.retry)
                continue
            with self._lock:
                changed, self.is_open = self.is_open, False
                done = not self._again
                self._probing = not done
            if changed:
                self._notify()
            if done:
                return
        with self._lock:
            self._probing = False


class SegmentBackoff:
    """Segments, by name, that are skipped for a while because they failed."""

    def __init__(
        self, first: float = _FIRST_PAUSE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._first = first
        self._failed: dict[str, tuple[int, float]] = {}
        """Number of consecutive failures, and the time until which the segment is skipped."""
        self.skipped = 0
        """Number of calls that were not made."""

    def __len__(self) -> int:
        """Returns the number of failed segments."""
        return len(self._failed)

    def allow(self, names: Iterable[str], *, trying: bool = True) -> str | None:
        """Returns None if one of the segments may be called now; otherwise the name of one, and how
        long it is still skipped. ``trying``: the caller does call it. After a pause only the first
        such caller is allowed to."""
        now = self._clock()
        blocked: str | None = None
        with self._lock:
            for name in names:
                failures, until = self._failed.get(name, (0, now))
                if until <= now:
                    if failures and trying:
                        # This call tries the segment; others skip it until the result is known.
                        self._failed[name] = (failures, now + self._pause(failures))
                    return None
                blocked = (
                    f"{name}, which failed {failures} time(s) in a row, and is skipped for another "
                    f"{until - now:.1f} s"
                )
            self.skipped += blocked is not None
        return blocked

    def fail(self, names: Iterable[str]) -> None:
        """Records that a transfer with one of these segments failed."""
        with self._lock:
            for name in names:
                failures = self._failed.pop(name, (0, 0.0))[0] + 1
                if len(self._failed) >= _MAX_SEGMENTS:
                    del self._failed[next(iter(self._failed))]
                self._failed[name] = (failures, self._clock() + self._pause(failures))

    def succeed(self, names: Iterable[str]) -> None:
        """Records that a transfer with these segments succeeded."""
        with self._lock:
            for name in names:
                self._failed.pop(name, None)

    def _pause(self, failures: int) -> float:
        return min(self._first * 2.0 ** min(failures - 1, 16), _MAX_PAUSE)


def circuit_open(circuit: Circuit, doing: str, key: str | None) -> errors.CircuitOpenError:
    """Returns the error of a call that is not made because the circuit is open."""
    what = doing if key is None else f"{doing} {key!r}"
    return errors.CircuitOpenError(
        f"cannot {what}: the call was not made, because the master did not answer earlier "
        f"({circuit.last_error}); it is probed every {circuit.retry:g} s: try again once it "
        "answers",
        code=errors.MASTER_GONE,
        key=key,
    )
