"""*Calls*: worker threads make blocking calls; the caller waits with a deadline.

When the deadline passes, or Ctrl-C ends the wait, the caller *abandons* the call: it goes on, and
its result is dropped. The memory that it may still read or write stays *held* until it has ended
(:class:`HeldViews`): it can neither be freed nor reused. A call that waits for a free worker is
removed from the queue and never made."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from .errors import ClosedError

WORKERS = 16
"""Maximum number of concurrent calls."""
CLOSED = "the connection to the cluster is closed: make another one"


class HeldViews:
    """Reference-counted views of memory, which the last reference releases."""

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        self._lock = threading.Lock()
        self._references = 1
        self._views: list[memoryview] = []
        try:
            for each in objects:
                self._views.append(memoryview(each))
        except BaseException:
            self.release()
            raise

    def retain(self) -> None:
        """Adds a reference."""
        with self._lock:
            self._references += 1

    def release(self) -> None:
        """Drops a reference."""
        with self._lock:
            self._references -= 1
            views = self._views if self._references == 0 else []
        for view in views:
            view.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.release()


class Call:
    """A call that is queued, running or ended."""

    def __init__(self, calls: "CallQueue", work: Callable[[], Any], held: HeldViews | None) -> None:
        if held is not None:
            held.retain()
        self._held = held
        self._calls = calls
        self._work: Callable[[], Any] | None = work
        self._ended = threading.Event()
        self.started = self._abandoned = False
        self._result: Any = None
        self._error: BaseException | None = None

    def wait(self, seconds: float | None = None) -> Any:
        """Waits at most ``seconds`` for the result. Raises what the call raised. Raises
        ``TimeoutError`` after that time. The call is then abandoned, and so it is on Ctrl-C."""
        try:
            ended = self._ended.wait(seconds)
        except BaseException:
            self._abandon()
            raise
        if not ended and not self._abandon():
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result

    def wait_ended(self, seconds: float) -> bool:
        """Waits until the call has ended, abandoned or not. Returns whether it has ended."""
        return self._ended.wait(seconds)

    def wait_started(self, seconds: float) -> None:
        """Waits until a worker has started the call."""
        with self._calls.lock:
            self._calls.lock.wait_for(lambda: self.started, seconds)

    def _abandon(self) -> bool:
        """Abandons the result, unless the call has ended. Returns whether it has ended."""
        with self._calls.lock:
            if self._ended.is_set() and not self._abandoned:
                return True
            if self.started:
                self._calls.abandoned += not self._abandoned
                self._abandoned = True
                return False
            self._abandoned = True
            with contextlib.suppress(ValueError):
                self._calls.queue.remove(self)
        self._end(None, None)
        return False

    def run(self) -> None:
        """Makes the call. Runs in a worker."""
        assert self._work is not None
        try:
            result, error = self._work(), None
        except BaseException as raised:  # raised in the calling thread
            result, error = None, raised
        self._end(result, error)

    def _end(self, result: Any, error: BaseException | None) -> None:
        """Releases the held memory, then publishes the end of the call."""
        self._work = None
        held, self._held = self._held, None
        if held is not None:
            held.release()
        del held
        with self._calls.lock:
            if not self._abandoned:
                self._result, self._error = result, error
            elif self.started:
                self._calls.abandoned -= 1
            self._ended.set()


class CallQueue:
    """The calls of one engine or backend, by at most ``limit`` workers."""

    def __init__(self, name: str, limit: int = WORKERS) -> None:
        self.name = name
        self.limit = limit
        # Reentrant: the garbage collector may close a store inside any of these methods.
        self.lock = threading.Condition(threading.RLock())
        self.queue: deque[Call] = deque()
        self.abandoned = 0
        """Number of abandoned calls that have not ended."""
        self._workers = self._idle = self._running = 0
        self._last: Call | None = None
        self.closed = False
        """Whether the queue is closed: it accepts no further calls."""

    def submit(self, work: Callable[[], Any], held: HeldViews | None = None) -> Call:
        """Queues a call for a worker. ``held`` stays held until the call has ended. Raises
        :class:`~kvmem.ClosedError` if the queue is closed."""
        with self.lock:
            if self.closed:
                raise ClosedError(CLOSED)
            call = Call(self, work, held)
            self.queue.append(call)
            self._start_worker()
            return call

    def close(self, work: Callable[[], Any]) -> Call:
        """Closes the queue and makes ``work`` the last call, when all others have ended. A second
        call of this method returns the first one's :class:`Call`."""
        with self.lock:
            if self._last is None:
                self.closed = True
                self._last = Call(self, work, None)
                self._start_worker()
            return self._last

    def _start_worker(self) -> None:
        """Starts a worker if the idle ones are too few. The caller holds the lock."""
        waiting = len(self.queue) + (self._last is not None)
        if self._idle < waiting and self._workers < self.limit:
            self._workers += 1
            try:
                threading.Thread(target=self._run, name=f"kvmem-{self.name}", daemon=True).start()
            except RuntimeError:  # The interpreter is ending: the existing workers have to suffice.
                self._workers -= 1
        self.lock.notify_all()

    def _next(self) -> Call | None:
        with self.lock:
            self._idle += 1
            while True:
                if self.queue:
                    call = self.queue.popleft()
                elif self._last is not None and not self._last.started and not self._running:
                    call = self._last
                elif self._last is not None and self._last.started:
                    self._idle -= 1
                    self._workers -= 1
                    return None
                else:
                    self.lock.wait()
                    continue
                self._idle -= 1
                self._running += 1
                call.started = True
                self.lock.notify_all()
                return call

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            del call
            with self.lock:
                self._running -= 1
                self.lock.notify_all()
