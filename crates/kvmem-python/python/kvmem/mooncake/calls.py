"""*Calls*: the engine's blocking calls, made by worker threads; the caller waits with a deadline.

A call of the engine cannot be ended from outside. If its peer hangs, the call returns when the
engine gives up. So a worker thread makes the call, and the calling thread waits for the result:
until the deadline, or until Ctrl-C ends the wait. Both *abandon* the call. It goes on, its result
is dropped, and whatever it may still read or write is *held* until it has really ended
(:class:`Held`): the memory cannot be freed, and nothing else is put there.

There are at most ``limit`` workers. Further calls wait for a free worker; that counts against their
deadline. A call that no worker has begun is withdrawn when it is abandoned, and never made.

:meth:`Calls.close` runs one last function when the last call has ended, however late: that is where
the engine is closed.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from ..errors import ClosedError

WORKERS = 16
"""Calls that an engine makes at once."""


class Held:
    """Views of memory that several parties use: they are released when the last party lets go.
    ``also`` is kept with them.
    """

    def __init__(self, objects: Iterable[Any] = (), also: object = None) -> None:
        self._lock = threading.Lock()
        self._also = also
        self._holders = 1
        self._views: list[memoryview] = []
        try:
            for each in objects:
                self._views.append(memoryview(each))
        except BaseException:
            self.let_go()
            raise

    def hold(self) -> None:
        """One party more."""
        with self._lock:
            self._holders += 1

    def let_go(self) -> None:
        """One party less."""
        with self._lock:
            self._holders -= 1
            views = self._views if self._holders == 0 else []
        for view in views:
            view.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.let_go()


class Call:
    """A call under way."""

    def __init__(self, calls: Calls, work: Callable[[], Any], held: Held | None) -> None:
        if held is not None:
            held.hold()
        self._held = held
        self._calls = calls
        self._work: Callable[[], Any] | None = work
        self._ended = threading.Event()
        self.begun = self._abandoned = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._then: list[Callable[[], object]] = []

    def wait(self, seconds: float | None = None) -> Any:
        """Waits for the result, ``seconds`` at most. Raises what the call raised, or
        ``TimeoutError``: then it is abandoned, as with Ctrl-C.
        """
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

    def wait_over(self, seconds: float) -> bool:
        """Waits until it has ended, abandoned or not; returns whether it has. Abandons nothing."""
        return self._ended.wait(seconds)

    def wait_begun(self, seconds: float) -> None:
        """Waits until a worker has begun it."""
        with self._calls.lock:
            self._calls.lock.wait_for(lambda: self.begun, seconds)

    @property
    def over(self) -> bool:
        """Whether it has ended, or was never begun and never will be."""
        return self._ended.is_set()

    def when_over(self, then: Callable[[], object]) -> None:
        """Calls ``then`` when it is over: at once if it is, or else in a worker."""
        with self._calls.lock:
            if not self.over:
                self._then.append(then)
                return
        then()

    def _abandon(self) -> bool:
        """The result is not wanted any more. Returns whether there is one."""
        with self._calls.lock:
            if self.over and not self._abandoned:
                return True
            if self.begun:
                self._calls.late += not self._abandoned
                self._abandoned = True
                return False
            self._abandoned = True
            with contextlib.suppress(ValueError):
                self._calls.queue.remove(self)
        self._end(None, None)
        return False

    def make(self) -> None:
        """Makes it: in a worker."""
        assert self._work is not None
        try:
            result, error = self._work(), None
        except BaseException as raised:  # It is the caller's, who is in another thread.
            result, error = None, raised
        self._end(result, error)

    def _end(self, result: Any, error: BaseException | None) -> None:
        """Lets go of what is held, and then tells."""
        self._work = None
        held, self._held = self._held, None
        if held is not None:
            held.let_go()
        del held
        with self._calls.lock:
            if not self._abandoned:
                self._result, self._error = result, error
            elif self.begun:
                self._calls.late -= 1
            then, self._then = self._then, []
            self._ended.set()
        for each in then:
            each()


class Calls:
    """The calls of one engine."""

    def __init__(self, name: str, limit: int = WORKERS) -> None:
        self.name = name
        self.limit = limit
        # Reentrant: the collector may end a store in the middle of anything.
        self.lock = threading.Condition(threading.RLock())
        self.queue: deque[Call] = deque()
        self.late = 0
        """Calls that nobody waits for any more, and that have not ended."""
        self._workers = self._idle = self._running = 0
        self._last: Call | None = None
        self.closed = False
        """No further calls are made."""

    def begin(self, work: Callable[[], Any], held: Held | None = None) -> Call:
        """Has a worker make a call. ``held`` stays held until it has ended. Raises
        :class:`~kvmem.ClosedError`.
        """
        with self.lock:
            if self.closed:
                raise ClosedError("the connection to the cluster has been closed")
            call = Call(self, work, held)
            self.queue.append(call)
            self._provide()
            return call

    def close(self, work: Callable[[], Any]) -> Call:
        """No further calls; ``work`` is the last, when all others have ended. A second time it is
        the first one's.
        """
        with self.lock:
            if self._last is None:
                self.closed = True
                self._last = Call(self, work, None)
                self._provide()
            return self._last

    def _provide(self) -> None:
        """Sees to a worker for what waits. Under the lock."""
        waiting = len(self.queue) + (self._last is not None)
        if self._idle < waiting and self._workers < self.limit:
            self._workers += 1
            try:
                threading.Thread(target=self._run, name=f"kvmem-{self.name}", daemon=True).start()
            except RuntimeError:  # The interpreter is ending: those that there are have to do.
                self._workers -= 1
        self.lock.notify_all()

    def _next(self) -> Call | None:
        with self.lock:
            self._idle += 1
            while True:
                if self.queue:
                    call = self.queue.popleft()
                elif self._last is not None and not self._last.begun and not self._running:
                    call = self._last
                elif self._last is not None and self._last.begun:
                    self._idle -= 1
                    self._workers -= 1
                    return None
                else:
                    self.lock.wait()
                    continue
                self._idle -= 1
                self._running += 1
                call.begun = True
                self.lock.notify_all()
                return call

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call.make()
            del call
            with self.lock:
                self._running -= 1
                self.lock.notify_all()
