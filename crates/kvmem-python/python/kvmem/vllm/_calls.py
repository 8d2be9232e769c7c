"""*Calls*: calls to the server of a node for a thread that must not wait, such as a scheduler.

Two threads make the calls: one for the questions that the scheduler has now, and one for those that
may take longer, such as commits with their checksums. The answer of a question that the scheduler
has abandoned is dropped: its pins and reservations end.

A call that fails is the last one until a further thread has found that the server answers (see
:mod:`~kvmem.vllm._outage`). Until then, questions have no answers. A server with other memory than
before ends the calls."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from .._kvmem import NodeCache
from ..errors import KvmemError, NodeReplacedError
from ._outage import Outage

_log = logging.getLogger("vllm.kvmem")
_T = TypeVar("_T")

MAX_LATER = 256
"""Calls that may take longer and can be left out are left out if this number waits."""


def parts(items: Sequence[_T], length: int) -> Iterator[Sequence[_T]]:
    """Yields a sequence in parts: a call with all of it would hold the interpreter for long."""
    for start in range(0, len(items), length):
        yield items[start : start + length]


class Question(Generic[_T]):
    """A call that a thread makes, and its answer."""

    __slots__ = ("_call", "_done", "_drop", "_lock", "_wanted", "answer")

    def __init__(self, call: Callable[[], _T], drop: Callable[[_T], object] | None) -> None:
        self._call = call
        self._drop = drop
        self._wanted = True
        self._lock = threading.Lock()
        # Locked until the call has ended.
        self._done = threading.Lock()
        self._done.acquire()
        self.answer: _T | None = None
        """What the call has returned; None while it has not, and if it has failed."""

    @property
    def is_done(self) -> bool:
        """Whether the call has ended."""
        return not self._done.locked()

    def wait(self, seconds: float) -> bool:
        """Waits until the call has ended. Returns whether it has."""
        ended = self._done.acquire(timeout=seconds)
        if ended:
            self._done.release()
        return ended

    def run(self, attempt: Callable[[Callable[[], _T]], _T | None]) -> None:
        """Makes the call, in the thread for it."""
        answer = attempt(self._call) if self._wanted else None
        with self._lock:
            self.answer = answer
            self._done.release()
            is_dropped = not self._wanted
        if is_dropped:
            self._drop_answer()

    def abandon(self) -> None:
        """Drops the answer, when it comes or now."""
        with self._lock:
            self._wanted = False
            is_done = self.is_done
        if is_done:
            self._drop_answer()

    def _drop_answer(self) -> None:
        answer, self.answer = self.answer, None
        if answer is not None and self._drop is not None:
            self._drop(answer)


class NodeCalls:
    """The threads that call one server. ``check`` is called once, before the first call: it returns
    why there can be none, or None. ``on_end`` is called when there are no more."""

    def __init__(
        self,
        cache: NodeCache,
        check: Callable[[], str | None],
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._cache = cache
        self._on_end = on_end
        self._check: Callable[[], str | None] | None = check
        self._checking = threading.Lock()
        self._queues: tuple[SimpleQueue[Question[Any] | None], ...] = (SimpleQueue(), SimpleQueue())
        self._threads: list[threading.Thread] = []
        self._outage = Outage(str(cache.path), "chunks")
        self._away = False
        self._failing = threading.Lock()
        self.has_ended = False
        """Whether there are no more calls."""
        self._closed = threading.Event()

    def is_usable(self) -> bool:
        """Whether the server is worth a call now."""
        return not (self.has_ended or self._away)

    def ask(
        self,
        call: Callable[[], _T],
        drop: Callable[[_T], object] | None = None,
        *,
        later: bool = False,
    ) -> Question[_T]:
        """Lets a thread make a call. ``drop`` ends what the call returns if its question is
        abandoned. Calls that may take ``later`` than others have a thread of their own."""
        question = Question(call, drop)
        if not self._threads:
            self._start()
        self._queues[later].put(question)
        return question

    @property
    def waiting_later(self) -> int:
        """Number of calls that wait for the second thread."""
        return self._queues[1].qsize()

    def end(self, error: str) -> None:
        """Ends the calls."""
        self.has_ended = True
        self._on_end()
        _log.error("kvmem: this engine shares nothing until it restarts: %s", error)

    def close(self) -> None:
        """Ends the threads, after the calls that they have."""
        self._closed.set()
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            # A call ends in the time that it may take. The interpreter does not wait longer.
            thread.join(timeout=5.0)

    def _start(self) -> None:
        for name, queue in zip(("kvmem-calls", "kvmem-later"), self._queues):
            thread = threading.Thread(target=self._run, args=(queue,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, queue: SimpleQueue[Question[Any] | None]) -> None:
        while (question := queue.get()) is not None:
            try:
                question.run(self._attempt)
            except Exception:
                # The thread goes on: a request would wait for ever for the next answer.
                _log.exception("kvmem: what a call has returned cannot be dropped")

    def _attempt(self, call: Callable[[], _T]) -> _T | None:
        """Calls the server, unless it is away. Returns None if the call fails."""
        if not self.is_usable():
            return None
        try:
            return call() if self._may_call() else None
        except NodeReplacedError as error:
            self.end(str(error))
        except KvmemError as error:
            self._begin_outage(error)
        except Exception as error:
            # Anything else is a fault of this program: the engine goes on without chunks.
            _log.debug("kvmem: a call failed", exc_info=True)
            self._begin_outage(error)
        return None

    def _may_call(self) -> bool:
        """Checks the server before the first call."""
        with self._checking:
            why = self._check() if self._check is not None else None
            if why is None:
                self._check = None
        if why is not None:
            self.end(why)
        return why is None

    def _begin_outage(self, error: Exception) -> None:
        """Leaves all calls out until the server answers a probe."""
        with self._failing:
            if self._away or self.has_ended:
                return
            self._outage.begin(error)
            self._away = True
        threading.Thread(target=self._probe, name="kvmem-probe", daemon=True).start()

    def _probe(self) -> None:
        """Probes the server until it answers."""
        while True:
            self._outage.wait(self._closed.wait, self._closed.is_set)
            if self._closed.is_set():
                return
            try:
                self._cache.lookup([b"kvmem"])
            except NodeReplacedError as error:
                self.end(str(error))
                return
            except KvmemError:
                continue
            with self._failing:
                self._outage.end()
                self._away = False
            return
